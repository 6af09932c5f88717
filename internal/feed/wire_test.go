package feed

import (
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"

	"github.com/kvsteer/kvsteer/internal/enginesim"
	"github.com/kvsteer/kvsteer/subscriber"
)

// tap records what goes over connections, in each direction.
type tap struct {
	mu       sync.Mutex
	up, down bytes.Buffer
}

type tapped struct {
	net.Conn
	tap *tap
}

func (t *tap) dial(ctx context.Context, addr string) (net.Conn, error) {
	c, err := (&net.Dialer{}).DialContext(ctx, "tcp", addr)
	if err != nil {
		return nil, err
	}
	return &tapped{c, t}, nil
}

func (c *tapped) Read(b []byte) (int, error) {
	n, err := c.Conn.Read(b)
	c.tap.mu.Lock()
	defer c.tap.mu.Unlock()
	c.tap.down.Write(b[:n])
	return n, err
}

func (c *tapped) Write(b []byte) (int, error) {
	c.tap.mu.Lock()
	c.tap.up.Write(b)
	c.tap.mu.Unlock()
	return c.Conn.Write(b)
}

// encodings write runs of token ids in all the ways in which programs do.
func encodings() map[string]func(ids []uint32) []byte {
	join := func(one func(b []byte, id uint32) []byte) func([]uint32) []byte {
		return func(ids []uint32) (b []byte) {
			for _, id := range ids {
				b = one(b, id)
			}
			return b
		}
	}
	text := func(between string) func([]uint32) []byte {
		return func(ids []uint32) []byte {
			var all []string
			for _, id := range ids {
				all = append(all, strconv.Itoa(int(id)))
			}
			return []byte(strings.Join(all, between))
		}
	}
	return map[string]func([]uint32) []byte{
		"uint32, little-endian": join(binary.LittleEndian.AppendUint32),
		"uint32, big-endian":    join(binary.BigEndian.AppendUint32),
		"uint64, little-endian": join(func(b []byte, id uint32) []byte { return binary.LittleEndian.AppendUint64(b, uint64(id)) }),
		"uint64, big-endian":    join(func(b []byte, id uint32) []byte { return binary.BigEndian.AppendUint64(b, uint64(id)) }),
		"varints":               join(func(b []byte, id uint32) []byte { return binary.AppendUvarint(b, uint64(id)) }),
		"zigzag varints":        join(func(b []byte, id uint32) []byte { return binary.AppendVarint(b, int64(id)) }),
		"msgpack": join(func(b []byte, id uint32) []byte {
			switch {
			case id < 1<<7:
				return append(b, byte(id))
			case id < 1<<8:
				return append(b, 0xcc, byte(id))
			case id < 1<<16:
				return binary.BigEndian.AppendUint16(append(b, 0xcd), uint16(id))
			}
			return binary.BigEndian.AppendUint32(append(b, 0xce), id)
		}),
		"CBOR": join(func(b []byte, id uint32) []byte {
			switch {
			case id < 24:
				return append(b, byte(id))
			case id < 1<<8:
				return append(b, 0x18, byte(id))
			case id < 1<<16:
				return binary.BigEndian.AppendUint16(append(b, 0x19), uint16(id))
			}
			return binary.BigEndian.AppendUint32(append(b, 0x1a), id)
		}),
		"decimal, commas":            text(","),
		"decimal, commas and spaces": text(", "),
		"decimal, spaces":            text(" "),
		"decimal, lines":             text("\n"),
	}
}

// leaks names how a capture tells token ids, or words of a prompt. Three ids in a row are too long to be there by chance.
func leaks(capture []byte, ids []uint32, words []string) (found []string) {
	for name, encode := range encodings() {
		for i := range len(ids) - 2 {
			if bytes.Contains(capture, encode(ids[i:i+3])) {
				found = append(found, fmt.Sprintf("token ids from number %d on as %s", i, name))
				break
			}
		}
	}
	for _, w := range words {
		if bytes.Contains(bytes.ToLower(capture), []byte(strings.ToLower(w))) {
			found = append(found, "the word "+w)
		}
	}
	return found
}

// TestWireTellsNoPrompts records a whole conversation in clear text while an engine serves prompts, some of whose blocks the node learns of from the router only: it
// has their blocks and what they hash to, and neither their token ids nor their words, nor names of adapters or salts of the router's prompts.
func TestWireTellsNoPrompts(t *testing.T) {
	e, err := enginesim.New(enginesim.Options{BlockSize: 16, Blocks: 4096, Events: enginesim.Events{Bind: "tcp://127.0.0.1:0", Topic: "kv-events"}})
	check(t, err)
	n, err := NewNode(NodeOptions{Name: "gpu-7"})
	check(t, err)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel()
	wg.Go(func() { check(t, e.Run(ctx)) })
	wg.Go(func() { check(t, n.Run(ctx, l)) })
	<-e.Ready()
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	post := func(path string, body, to any) {
		t.Helper()
		text, err := json.Marshal(body)
		check(t, err)
		resp, err := client.Post("http://"+e.Addr()+path, "application/json", bytes.NewReader(text))
		check(t, err)
		defer resp.Body.Close()
		reply, err := io.ReadAll(resp.Body)
		check(t, err)
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("%s: %d %s", path, resp.StatusCode, reply)
		}
		check(t, json.Unmarshal(reply, to))
	}
	// Token ids of all sizes, and words that are in no other text.
	var ids []uint32
	for i := range uint32(256) {
		ids = append(ids, []uint32{2, 90, 200, 1000, 40_000, 70_000, 150_000}[i%7]+i)
	}
	words := strings.Fields("Marmalade zeppelins whistle quietly beneath forgotten observatories while turquoise accordions negotiate bewildering umbrellas")
	prompt := strings.Repeat(strings.Join(words, " ")+". ", 20)
	var tokenized struct{ Tokens []uint32 }
	post("/tokenize", map[string]any{"model": "tiny", "prompt": prompt}, &tokenized)
	if len(tokenized.Tokens) < 200 {
		t.Fatalf("the prompt has %d tokens", len(tokenized.Tokens))
	}
	var reply map[string]any
	post("/v1/completions", map[string]any{"model": "tiny", "prompt": ids[:160], "max_tokens": 1}, &reply) // which nobody hears of

	source := n.Source()
	sub, err := subscriber.New(subscriber.Options{
		Pool: "chat", Endpoint: e.Addr(), Dial: "tcp://" + e.EventsAddr(), Topic: "kv-events", Sink: source, Wanted: source.Wanted,
	})
	check(t, err)
	source.TellHashes(sub)
	wg.Go(func() { check(t, sub.Run(ctx)) })
	n.Announce([]Replica{{Endpoint: e.Addr(), Pool: "chat", Models: []string{"tiny"}, Sources: []uint32{source.Number()}}})

	capture := &tap{}
	fleet := newModelFleet(t)
	r, _ := startRouter(t, fleet, func(o *RouterOptions) { o.Dial = capture.dial }, l.Addr().String())
	eventually(t, "the engine is connected", func() bool {
		s := fleet.sink("chat " + e.Addr() + " 0")
		if s == nil {
			return false
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		return s.about.Connected
	})
	hearer := fleet.sink("chat " + e.Addr() + " 0").hearer
	eventually(t, "prompts are wanted", func() bool { return hearer.Wants() })
	hearer.Witness(subscriber.Prompt{Tokens: ids})
	hearer.Witness(subscriber.Prompt{Tokens: tokenized.Tokens, Adapter: words[0], AdapterPath: words[1], Salt: words[2]})
	post("/v1/completions", map[string]any{"model": "tiny", "prompt": ids, "max_tokens": 4}, &reply)
	post("/v1/completions", map[string]any{"model": "tiny", "prompt": prompt, "max_tokens": 40}, &reply)
	r.Charged(Charge{Pool: "chat", Endpoint: e.Addr(), Rank: -1, Number: 1, Uncached: 256, Prompt: 256, Key: 77})
	held := func() int { return len(fleet.sink("chat " + e.Addr() + " 0").matched(subscriber.Device)) }
	want := (len(ids) + len(tokenized.Tokens)) / 16
	eventually(t, "the blocks of both prompts are known, some by witnesses", func() bool { return held() >= want })
	eventually(t, "both witnesses have come", func() bool { return testutil.ToFloat64(n.o.Metrics.witnesses[taken]) == 2 })
	// Another stream, for a copy.
	second := newModelFleet(t)
	startRouter(t, second, func(o *RouterOptions) { o.Dial, o.Instance = capture.dial, "second" }, l.Addr().String())
	eventually(t, "a copy has come", func() bool {
		s := second.sink("chat " + e.Addr() + " 0")
		return s != nil && len(s.matched(subscriber.Device)) >= want
	})

	capture.mu.Lock()
	defer capture.mu.Unlock()
	down := capture.down.Bytes()
	if len(down) < 2*8*want || capture.up.Len() < 2*8*want {
		t.Fatalf("only %d and %d bytes were recorded", len(down), capture.up.Len())
	}
	all := append(ids, tokenized.Tokens...)
	for name, side := range map[string][]byte{"node to router": down, "router to node": capture.up.Bytes()} {
		if found := leaks(side, all, words); found != nil {
			t.Errorf("%s: %q", name, found)
		}
	}
	// What would tell is found: any encoding in the midst of a recording.
	for name, encode := range encodings() {
		leaky := append(append(bytes.Clone(down[:500]), encode(all[300:316])...), down[500:]...)
		if leaks(leaky, all, nil) == nil {
			t.Errorf("ids as %s are not found", name)
		}
	}
	if leaks(append(bytes.Clone(down), words[2]...), nil, words) == nil {
		t.Error("a word is not found")
	}
}
