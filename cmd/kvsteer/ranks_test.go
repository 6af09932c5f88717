package main

import (
	"fmt"
	"net"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/kvsteer/kvsteer/internal/enginesim"
)

// startRanks starts an engine with so many data-parallel ranks.
func startRanks(t *testing.T, ranks int) *enginesim.Engine {
	t.Helper()
	e, err := enginesim.New(enginesim.Options{
		Listen: "127.0.0.1:0", Models: []string{"tiny"}, Blocks: 1024, Ranks: ranks, Events: enginesim.Events{Bind: "tcp://127.0.0.1:0"},
	})
	if err != nil {
		t.Fatal(err)
	}
	background(t, e.Run)
	ready(t, e)
	return e
}

func TestEveryRankIsFollowed(t *testing.T) {
	a := startRanks(t, 3)
	r := startRunning(t, site(dialled(a, ", ranks: 3"), `{address: "127.0.0.1:1"}`))
	r.until("all are connected", func() bool { return r.endpoint(a.Addr()).Connected })
	held := func() (ranks int) {
		for _, k := range r.endpoint(a.Addr()).Ranks {
			if k.Matchable {
				ranks++
			}
		}
		return ranks
	}
	prompt := strings.Repeat("one two three four ", 20)
	tell(t, "every rank has blocks", a, func() bool { return held() == 3 }, prompt, prompt, prompt) // in turn
	e := r.endpoint(a.Addr())
	if e.Blocks != e.Ranks[0].Blocks+e.Ranks[1].Blocks+e.Ranks[2].Blocks || e.Problem != "" {
		t.Errorf("%+v", e)
	}

	ctl := control{r.router, r.followers, r.feed}
	if err := ctl.Reset(a.Addr()); err != nil {
		t.Fatal(err)
	}
	r.until("no rank has blocks, and all are connected", func() bool {
		e := r.endpoint(a.Addr())
		return held() == 0 && e.Connected && e.Blocks == 0 && e.Problem == ""
	})

	r.change(site(dialled(a, ", ranks: 2"), `{address: "127.0.0.1:1"}`))
	r.until("the number of ranks is wrong", func() bool { return r.endpoint(a.Addr()).Problem == "ranks_mismatch" })
	if e := r.endpoint(a.Addr()); e.Matchable || len(e.Ranks) != 2 {
		t.Errorf("%+v", e)
	}
	r.change(site(dialled(a, ", ranks: 3"), `{address: "127.0.0.1:1"}`))
	r.until("the number of ranks is right", func() bool { e := r.endpoint(a.Addr()); return e.Problem == "" && e.Connected })
	if n := strings.Count(r.log.String(), "another number of data-parallel ranks"); n != 1 {
		t.Errorf("said %d times", n)
	}
}

// TestRanksWhereTheEngineSays: the ports come from the engine where it tells them, also when it tells others later.
func TestRanksWhereTheEngineSays(t *testing.T) {
	publishers := [2]*enginesim.Engine{startRanks(t, 1), startRanks(t, 1)} // each at a port of its own
	var reply atomic.Pointer[string]
	ports := func(engines ...*enginesim.Engine) {
		var ranks []string
		for i, e := range engines {
			_, port, _ := net.SplitHostPort(e.EventsAddr())
			ranks = append(ranks, fmt.Sprintf(`"%d":{"publisher":"zmq","endpoint":"tcp://192.0.2.1:%s"}`, i, port))
		}
		text := "{" + strings.Join(ranks, ",") + "}"
		reply.Store(&text)
	}
	ports(publishers[1], publishers[0])
	api := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/kv_event_sources" {
			fmt.Fprint(w, *reply.Load())
		}
	}))
	defer api.Close()
	address := strings.TrimPrefix(api.URL, "http://")
	r := startRunning(t, site(fmt.Sprintf(`{address: %q, events: {dial: "tcp://127.0.0.1:2", ranks: 2}}`, address), `{address: "127.0.0.1:1"}`))
	r.until("both ranks are connected", func() bool { return r.endpoint(address).Connected })
	tell(t, "rank 0 has blocks", publishers[1], func() bool { return r.endpoint(address).Ranks[0].Matchable }, strings.Repeat("one two three four ", 20))
	if e := r.endpoint(address); e.Ranks[1].Blocks != 0 {
		t.Errorf("%+v", e)
	}

	// The engine comes back with other ports.
	third := startRanks(t, 1)
	ports(publishers[0], third)
	publishers[1].CutConnections(0)
	complete(t, third, strings.Repeat("five six seven ", 20))
	r.until("the new port is followed", func() bool {
		complete(t, third, strings.Repeat("five six seven ", 20))
		e := r.endpoint(address)
		return e.Connected && e.Ranks[0].Blocks == 0
	})
}
