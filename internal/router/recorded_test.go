package router

import (
	"bufio"
	"context"
	"encoding/hex"
	"encoding/json"
	"io"
	"net"
	"os"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/subscriber"
)

// recordedRanks is what vLLM 0.32.0 with --data-parallel-size 2 published at its two sockets for these requests; see
// subscriber/testdata/README.md.
const recordedRanks = "../../subscriber/testdata/events/vllm-0.32.0/40_data_parallel_2.json"

type rankRecording struct {
	Requests []struct {
		Body    struct{ Prompt []uint32 }
		Headers map[string]string
	}
	Responses []struct{ Status int }
	Ranks     map[string]struct {
		Messages []struct{ Frames []string }
	}
}

// publish answers one ZMQ subscriber with these messages, then keeps the connection until ctx ends.
func publish(ctx context.Context, t *testing.T, messages [][][]byte) (address string) {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	var wg sync.WaitGroup
	t.Cleanup(wg.Wait)
	wg.Go(func() {
		defer l.Close()
		stop := context.AfterFunc(ctx, func() { l.Close() })
		defer stop()
		c, err := l.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		defer context.AfterFunc(ctx, func() { c.Close() })()
		// ZMTP 3.0, mechanism NULL: greeting and READY both ways, then the subscription, which is for everything.
		greeting := make([]byte, 64)
		copy(greeting, "\xff\x00\x00\x00\x00\x00\x00\x00\x00\x7f\x03\x00NULL")
		const ready = "\x05READY\x0bSocket-Type\x00\x00\x00\x03PUB"
		r := bufio.NewReader(c)
		if _, err := c.Write(append(greeting, append([]byte{4, byte(len(ready))}, ready...)...)); err != nil {
			t.Errorf("greet the subscriber: %v", err)
			return
		}
		if _, err := io.ReadFull(r, greeting); err != nil {
			t.Errorf("read the subscriber's greeting: %v", err)
			return
		}
		for range 2 { // READY and the subscription
			head := make([]byte, 2)
			if _, err := io.ReadFull(r, head); err != nil {
				t.Errorf("read the subscriber's handshake: %v", err)
				return
			}
			if _, err := io.CopyN(io.Discard, r, int64(head[1])); err != nil {
				t.Errorf("read the subscriber's handshake: %v", err)
				return
			}
		}
		for _, frames := range messages {
			for i, f := range frames {
				head := []byte{2, 0, 0, 0, 0, byte(len(f) >> 24), byte(len(f) >> 16), 0, 0}
				head[7], head[8] = byte(len(f)>>8), byte(len(f))
				if i < len(frames)-1 {
					head[0] |= 1
				}
				if _, err := c.Write(append(head, f...)); err != nil {
					t.Errorf("publish: %v", err)
					return
				}
			}
		}
		<-ctx.Done()
	})
	return "tcp://" + l.Addr().String()
}

// TestRecordedRanks follows both sockets of a recorded engine with two ranks.
func TestRecordedRanks(t *testing.T) {
	text, err := os.ReadFile(recordedRanks)
	if err != nil {
		t.Fatal(err)
	}
	var rec rankRecording
	if err := json.Unmarshal(text, &rec); err != nil {
		t.Fatal(err)
	}
	const size = 32
	w := newWorld(t, Options{}, ranked(2, 2, false))
	ctx, cancel := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	for rank, name := range []string{"rank0", "rank1"} {
		var messages [][][]byte
		for _, m := range rec.Ranks[name].Messages {
			var frames [][]byte
			for _, f := range m.Frames {
				raw, err := hex.DecodeString(f)
				if err != nil {
					t.Fatal(err)
				}
				frames = append(frames, raw)
			}
			messages = append(messages, frames)
		}
		source, err := w.r.Source("chat", address(0), rank)
		if err != nil {
			t.Fatal(err)
		}
		sub, err := subscriber.New(subscriber.Options{Pool: "chat", Endpoint: address(0), Rank: rank, Dial: publish(ctx, t, messages), Sink: source})
		if err != nil {
			t.Fatal(err)
		}
		wg.Go(func() {
			if err := sub.Run(ctx); err != nil {
				t.Error(err)
			}
		})
	}

	// Which rank holds a request's prompt: the one that the header names, and where it names none, one of both.
	index := func(rank int) (blocks int) { return w.r.State().Pools[0].Endpoints[0].Ranks[rank].Blocks }
	deadline := time.Now().Add(20 * time.Second)
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for index(0) != 4 || index(1) != 10 { // two whole blocks of each of two and five messages
		if time.Now().After(deadline) {
			t.Fatalf("ranks hold %d and %d blocks", index(0), index(1))
		}
		<-tick.C
	}
	asked := 0
	best := func(req Request) (matched int) {
		for range 8 {
			matched = max(matched, w.sendAlone(req).Matched)
		}
		return matched
	}
	both := 0
	for i, req := range rec.Requests {
		prompt := req.Body.Prompt
		whole := (len(prompt) - 1) / size * size
		at := [2]int{best(asking(given("llama", prompt), "0")), best(asking(given("llama", prompt), "1"))}
		mean := best(given("llama", prompt))
		switch header := req.Headers["X-data-parallel-rank"]; {
		case rec.Responses[i].Status != 200:
			if at != [2]int{} || mean != 0 {
				t.Errorf("request %d was refused: %v and %d tokens matched", i, at, mean)
			}
			continue
		case header != "":
			asked++
			if at[header[0]-'0'] != whole {
				t.Errorf("request %d at rank %s: %v tokens matched", i, header, at)
			}
		case at[0]+at[1] != whole:
			t.Errorf("request %d at one rank: %v tokens matched", i, at)
		}
		if mean != (at[0]+at[1])/2 {
			t.Errorf("request %d: %d tokens matched on average of %v", i, mean, at)
		}
		if at == [2]int{whole, whole} {
			both++
		}
	}
	if asked != 3 || both != 2 { // the first prompt was sent to both
		t.Errorf("%d requests name a rank, %d are held by both", asked, both)
	}
}
