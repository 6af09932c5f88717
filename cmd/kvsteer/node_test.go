package main

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"math"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/enginesim"
	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/logtest"
)

// nodeSite is the configuration of a node, with addresses that nobody uses.
type nodeSite struct {
	t             *testing.T
	dir, path     string
	listen, admin string
	head          string // of the file
	ports         config.PortRange
}

func newNodeSite(t *testing.T) *nodeSite {
	t.Helper()
	runs, err := lab.FreeRuns([]int{1, 1, 12})
	if err != nil {
		t.Fatal(err)
	}
	s := &nodeSite{
		t: t, dir: t.TempDir(), listen: fmt.Sprintf("127.0.0.1:%d", runs[0]), admin: fmt.Sprintf("127.0.0.1:%d", runs[1]),
		ports: config.PortRange{uint16(runs[2]), uint16(runs[2] + 11)},
	}
	s.path = filepath.Join(s.dir, "node.yaml")
	s.head = fmt.Sprintf("name: n1\nlisten: %s\nadmin: {listen: %q, write: true}\nstate_dir: %s\nports: %s\nprobe: {interval: 200ms}\nscrape: {interval: 100ms}\npools:\n- name: chat\n  models: [tiny]\n  adapters_refresh: 1s\n  engines:\n",
		s.listen, s.admin, filepath.Join(s.dir, "state"), s.ports)
	return s
}

// write replaces the file.
func (s *nodeSite) write(engines ...string) {
	s.t.Helper()
	text := s.head + "  - " + strings.Join(engines, "\n  - ") + "\n"
	if err := errors.Join(os.WriteFile(s.path+".new", []byte(text), 0o600), os.Rename(s.path+".new", s.path)); err != nil {
		s.t.Fatal(err)
	}
}

// runningNode is a node that runs.
type runningNode struct {
	*nodeService
	t    *testing.T
	log  *logtest.Buffer
	stop func() // and wait
}

func (s *nodeSite) start() *runningNode {
	s.t.Helper()
	cfg, err := config.LoadNode(s.path)
	if err != nil {
		s.t.Fatal(err)
	}
	log := new(logtest.Buffer)
	n, err := newNodeService(s.path, cfg, slog.New(slog.NewTextHandler(log, nil)))
	if err != nil {
		s.t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- n.run(ctx) }()
	r := &runningNode{nodeService: n, t: s.t, log: log}
	r.stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.t.Error(err)
		}
	})
	s.t.Cleanup(func() {
		r.stop()
		if s.t.Failed() {
			s.t.Log(log.String())
		}
	})
	r.until("it is ready", func() bool { return len(n.missing()) == 0 })
	return r
}

func (r *runningNode) until(what string, done func() bool) {
	r.t.Helper()
	until(r.t, what, done)
}

// until waits until something is so.
func until(t *testing.T, what string, done func() bool) {
	t.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(time.Minute); !done(); <-tick.C { // for busy machines; only a failure takes so long
		if time.Now().After(end) {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

func (r *runningNode) engine(address string) engineState {
	for _, e := range r.state().Engines {
		if e.Address == address {
			return e
		}
	}
	return engineState{}
}

// at is where rank 0 of an engine is to connect, and where its replay socket is looked for.
func (r *runningNode) at(address string) enginesim.Events {
	r.t.Helper()
	r.until("the ports of "+address+" are known", func() bool { return len(r.engine(address).Ranks) > 0 })
	at := r.engine(address).Ranks[0]
	return enginesim.Events{Connect: at.Listen, Replay: at.Replay}
}

// engineAt runs an engine until its end is asked for.
func engineAt(t *testing.T, address string, events enginesim.Events) (e *enginesim.Engine, kill func()) {
	t.Helper()
	e, err := enginesim.New(enginesim.Options{Listen: address, Events: events})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		if err := e.Run(ctx); err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	kill = func() { cancel(); wg.Wait() }
	t.Cleanup(kill)
	ready(t, e)
	return e, kill
}

// watcher is a router as the wire has it: it keeps what a node says.
type watcher struct {
	mu       sync.Mutex
	name     string
	replicas []*feedpb.Replica
	fewest   int // replicas of all announcements
	states   map[uint32]*feedpb.State
	blocks   map[uint32]map[uint64]bool // in any tier
	copying  map[uint32]map[uint64]bool
	loads    map[string]*feedpb.Load
	resets   []string
	ended    bool
}

func watchNode(t *testing.T, address string) *watcher {
	t.Helper()
	conn, err := grpc.NewClient(address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	stream, err := feedpb.NewFeedClient(conn).Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	hello := &feedpb.RouterMessage{Message: &feedpb.RouterMessage_Hello{Hello: &feedpb.RouterHello{Protocol: 1, Oldest: 1, Release: "test", Instance: "router-of-the-test"}}}
	if err := stream.Send(hello); err != nil {
		t.Fatal(err)
	}
	w := &watcher{fewest: math.MaxInt, states: map[uint32]*feedpb.State{}, blocks: map[uint32]map[uint64]bool{}, copying: map[uint32]map[uint64]bool{}, loads: map[string]*feedpb.Load{}}
	var wg sync.WaitGroup
	wg.Go(func() {
		for {
			m, err := stream.Recv()
			if err != nil {
				w.mu.Lock()
				defer w.mu.Unlock()
				w.ended = true
				return
			}
			w.take(m)
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait(); conn.Close() })
	return w
}

func (w *watcher) take(m *feedpb.NodeMessage) {
	w.mu.Lock()
	defer w.mu.Unlock()
	set := func(source uint32) map[uint64]bool {
		if c := w.copying[source]; c != nil {
			return c
		}
		if w.blocks[source] == nil {
			w.blocks[source] = map[uint64]bool{}
		}
		return w.blocks[source]
	}
	change := func(source uint32, keys, tiers []byte, on bool) {
		for i := 0; i*8 < len(keys); i++ {
			key := binary.LittleEndian.Uint64(keys[i*8:])
			if len(tiers) > 0 && tiers[i]&1 == 0 {
				continue
			}
			if on {
				set(source)[key] = true
			} else {
				delete(set(source), key)
			}
		}
	}
	switch m := m.GetMessage().(type) {
	case *feedpb.NodeMessage_Hello:
		w.name = m.Hello.GetName()
	case *feedpb.NodeMessage_Replicas:
		w.replicas = m.Replicas.GetReplicas()
		w.fewest = min(w.fewest, len(w.replicas))
	case *feedpb.NodeMessage_State:
		w.states[m.State.GetSource()] = m.State
	case *feedpb.NodeMessage_Begin:
		w.copying[m.Begin.GetSource()] = map[uint64]bool{}
	case *feedpb.NodeMessage_Blocks:
		change(m.Blocks.GetSource(), m.Blocks.GetKeys(), m.Blocks.GetTiers(), true)
	case *feedpb.NodeMessage_End:
		w.blocks[m.End.GetSource()] = w.copying[m.End.GetSource()]
		delete(w.copying, m.End.GetSource())
	case *feedpb.NodeMessage_Delta:
		change(m.Delta.GetSource(), m.Delta.GetRemoved(), m.Delta.GetRemovedTiers(), false)
		change(m.Delta.GetSource(), m.Delta.GetAdded(), m.Delta.GetAddedTiers(), true)
	case *feedpb.NodeMessage_Reset_:
		clear(set(m.Reset_.GetSource()))
		w.resets = append(w.resets, m.Reset_.GetCause())
	case *feedpb.NodeMessage_Loads:
		clear(w.loads)
		for _, l := range m.Loads.GetLoads() {
			w.loads[l.GetEndpoint()] = l
		}
	}
}

func (w *watcher) see(f func() bool) func() bool {
	return func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return f()
	}
}

// replica is an engine by how it is announced; nil when it is not. The caller is inside see.
func (w *watcher) replica(endpoint string) *feedpb.Replica {
	i := slices.IndexFunc(w.replicas, func(r *feedpb.Replica) bool { return r.GetEndpoint() == endpoint })
	if i < 0 {
		return nil
	}
	return w.replicas[i]
}

// held are the blocks of an engine's rank 0, and whether its events are followed. The caller is inside see.
func (w *watcher) held(endpoint string) (blocks int, connected bool) {
	r := w.replica(endpoint)
	if r == nil || len(r.GetSources()) == 0 || w.copying[r.GetSources()[0]] != nil {
		return 0, false
	}
	source := r.GetSources()[0]
	return len(w.blocks[source]), w.states[source].GetConnected()
}

var somePrompt = strings.Repeat("one two three four ", 40)

// TestNode follows an engine through a node and over the wire: blocks, what is told of it, drains; a node that is started anew goes on with the same
// ports and the mirror that was saved; an engine that is started anew is forgotten.
func TestNode(t *testing.T) {
	ignore := goleak.IgnoreCurrent()
	defer goleak.VerifyNone(t, ignore)
	t.Run("life", func(t *testing.T) {
		site := newNodeSite(t)
		ports, err := lab.FreePorts(2)
		if err != nil {
			t.Fatal(err)
		}
		address, announced := fmt.Sprintf("127.0.0.1:%d", ports[0]), fmt.Sprintf(":%d", ports[0])
		engine := fmt.Sprintf("address: %q", announced)
		site.write(engine)
		n := site.start()
		at := n.at(address)
		e, kill := engineAt(t, address, at)
		w := watchNode(t, site.listen)
		until(t, "the engine is announced, connected, with all that it tells", w.see(func() bool {
			r := w.replica(announced)
			_, connected := w.held(announced)
			return connected && r.GetVersion() != "" && r.GetMaxModelLen() > 0
		}))
		complete(t, e, somePrompt)
		until(t, "its blocks are there, and its block size", w.see(func() bool {
			blocks, _ := w.held(announced)
			return blocks > 0 && w.replica(announced).GetBlockSize() == 16
		}))
		until(t, "its load is there", w.see(func() bool {
			l := w.loads[announced]
			return l.GetPrefixQueries() > 0 && !l.GetStale()
		}))
		w.mu.Lock()
		r := w.replica(announced)
		if w.name != "n1" || r.GetPool() != "chat" || !slices.Equal(r.GetModels(), []string{"tiny"}) || r.GetEngine() != "vllm" || r.GetDraining() || len(r.GetProblems()) > 0 {
			t.Errorf("node %q, replica %v", w.name, r)
		}
		before, _ := w.held(announced)
		w.mu.Unlock()

		// A drain by the file, and one by a call.
		site.write(engine + "\n    drain: true")
		until(t, "it is draining", w.see(func() bool { return w.replica(announced).GetDraining() }))
		site.write(engine)
		until(t, "it is not", w.see(func() bool { return !w.replica(announced).GetDraining() }))
		if err := (nodeControl{n.nodeService}).Drain(address, true); err != nil {
			t.Fatal(err)
		}
		until(t, "it is draining again", w.see(func() bool { return w.replica(announced).GetDraining() }))

		// Another engine comes without a dip for the first.
		other := fmt.Sprintf("127.0.0.1:%d", ports[1])
		site.write(engine, fmt.Sprintf("address: %q", other))
		until(t, "the other one is announced", w.see(func() bool { return w.replica(other) != nil }))
		if n.at(other) == at {
			t.Error("two engines have the same ports")
		}
		site.write(engine)
		until(t, "the other one is gone", w.see(func() bool { return w.replica(other) == nil }))
		w.see(func() bool {
			if blocks, connected := w.held(announced); blocks != before || !connected || len(w.resets) > 0 {
				t.Errorf("%d blocks of %d, connected %v, resets %v", blocks, before, connected, w.resets)
			}
			return true
		})()

		// A node that is started anew.
		n.stop()
		until(t, "the stream has ended", w.see(func() bool { return w.ended }))
		w.see(func() bool {
			if blocks, _ := w.held(announced); blocks != before || len(w.resets) > 0 {
				t.Errorf("a stop is told as %d blocks of %d, resets %v", blocks, before, w.resets)
			}
			return true
		})()
		n = site.start()
		if again := n.at(address); again != at {
			t.Errorf("ports %+v, before %+v", again, at)
		}
		w = watchNode(t, site.listen)
		until(t, "the engine is announced again", w.see(func() bool { return w.replica(announced) != nil }))
		least := 1 << 30
		until(t, "all blocks are there again", w.see(func() bool {
			blocks, connected := w.held(announced)
			if source := w.replica(announced).GetSources()[0]; w.blocks[source] != nil {
				least = min(least, blocks)
			}
			return blocks == before && connected
		}))
		if least != before {
			t.Errorf("routers are told of %d blocks of %d in between", least, before)
		}
		if !strings.Contains(n.log.String(), "mirror restored") {
			t.Error("no mirror was restored")
		}

		// An engine that is started anew.
		kill()
		until(t, "the engine is not connected", w.see(func() bool { _, connected := w.held(announced); return !connected }))
		e, _ = engineAt(t, address, at)
		until(t, "it is connected, and empty", w.see(func() bool { blocks, connected := w.held(announced); return blocks == 0 && connected }))
		complete(t, e, somePrompt)
		until(t, "it has blocks", w.see(func() bool { blocks, _ := w.held(announced); return blocks > 0 }))
		if n := w.replica(announced); n.GetDraining() {
			t.Error("a drain by a call outlives the node")
		}
	})
}

// TestNodeReloadKeepsEngines holds that a change in how events are followed, which ends what is known of an engine, takes it from no router.
func TestNodeReloadKeepsEngines(t *testing.T) {
	site := newNodeSite(t)
	engines := func(topic string) []string {
		return []string{fmt.Sprintf("{address: \":1\", events: {topic: %q}}", topic), fmt.Sprintf("{address: \":2\", events: {topic: %q, ranks: 2}}", topic)}
	}
	site.write(engines("a")...)
	site.start()
	w := watchNode(t, site.listen)
	source := uint32(0) // of the first engine
	told := w.see(func() bool {
		r := w.replica(":1")
		if len(w.replicas) < 2 {
			return w.fewest < 2 && source != 0 // it fails anyway
		}
		if r.GetSources()[0] == source {
			return false
		}
		source = r.GetSources()[0]
		return true
	})
	until(t, "the engines are announced", told)
	w.see(func() bool { w.fewest = 2; return true })()
	for i := range 5 {
		site.write(engines(string('b' + rune(i)))...)
		until(t, "its blocks are told under another number", told)
	}
	if w.see(func() bool { return w.fewest < 2 })() {
		t.Errorf("%d of two engines are announced in between", w.fewest)
	}
}

// TestNodePortTaken holds that a kept port that another process has taken is replaced, and that this is said.
func TestNodePortTaken(t *testing.T) {
	site := newNodeSite(t)
	site.write(`address: "127.0.0.1:9"`, `address: "127.0.0.1:10"`)
	n := site.start()
	at, other := n.at("127.0.0.1:9"), n.at("127.0.0.1:10")
	n.stop()
	l, err := net.Listen("tcp", strings.TrimPrefix(at.Connect, "tcp://"))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	n = site.start()
	if now := n.at("127.0.0.1:9"); now.Connect == at.Connect || now.Replay != at.Replay {
		t.Errorf("ports %+v, before %+v", now, at)
	}
	if now := n.at("127.0.0.1:10"); now != other {
		t.Errorf("ports of the other one %+v, before %+v", now, other)
	}
	if text := n.log.String(); strings.Count(text, "start it anew with what kvsteer engine-args prints") != 1 || !strings.Contains(text, "endpoint=127.0.0.1:9") {
		t.Error("it is not said")
	}
}

// TestNodeEngineArgs holds that kvsteer engine-args and the node agree on ports, whoever picks them.
func TestNodeEngineArgs(t *testing.T) {
	site := newNodeSite(t)
	printed := func() string {
		t.Helper()
		var out strings.Builder
		cmd := engineArgsCmd{Config: site.path, Format: "json", Replay: true}
		if err := cmd.Run(&out, slog.New(slog.DiscardHandler)); err != nil {
			t.Fatal(err)
		}
		return out.String()
	}
	site.write(`address: ":9"`, `address: "127.0.0.1:10"`)
	first := printed()
	site.write(`address: "127.0.0.1:10"`, `address: ":9"`)
	n := site.start()
	for _, engine := range []string{"127.0.0.1:9", "127.0.0.1:10"} {
		at := n.at(engine)
		if want := fmt.Sprintf(`\"endpoint\":\"%s\",\"replay_endpoint\":\"%s\"`, at.Connect, at.Replay); !strings.Contains(first, want) {
			t.Errorf("engine %s: the node listens at %+v, printed is\n%s", engine, at, first)
		}
	}
	site.write(`address: "127.0.0.1:10"`, `address: ":9"`, `address: ":11"`)
	n.until("the third is followed", func() bool { return len(n.engine("127.0.0.1:11").Ranks) > 0 })
	if again := printed(); !strings.Contains(again, strings.TrimPrefix(n.at("127.0.0.1:11").Connect, "tcp://127.0.0.1:")) {
		t.Errorf("the third engine is at %+v, printed is\n%s", n.at("127.0.0.1:11"), again)
	}
}

// TestNodeAdmin holds what the admin listener of a node has, and has not.
func TestNodeAdmin(t *testing.T) {
	site := newNodeSite(t)
	site.write(`address: ":9"`)
	n := site.start()
	watchNode(t, site.listen)
	n.until("the router is shown", func() bool { return len(n.state().Routers) == 1 })
	for path, want := range map[string]struct {
		status int
		text   string
	}{
		"/":                 {200, "kvsteer node"},
		"/healthz":          {200, "ok"},
		"/readyz":           {200, "ready"},
		"/metrics":          {200, "kvsteer_feed_"},
		"/api/v1/state":     {200, `"announced":":9"`},
		"/api/v1/config":    {200, `"window":"20ms"`},
		"/api/v1/bundle":    {200, ""},
		"/api/v1/decisions": {404, "this is a node: modes, decisions and the index are the routers'"},
	} {
		resp, err := http.Get("http://" + site.admin + path)
		if err != nil {
			t.Fatal(err)
		}
		if text := readAll(t, resp); resp.StatusCode != want.status || !strings.Contains(text, want.text) {
			t.Errorf("%s: status %d: %.300s", path, resp.StatusCode, text)
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

// TestNodeRefused holds that what keeps a node from its start is named.
func TestNodeRefused(t *testing.T) {
	site := newNodeSite(t)
	site.write(`address: ":9"`)
	first := site.start()
	tests := []struct {
		name string
		cfg  func(c *config.Node)
		want string
	}{
		{"another node has the folder", func(*config.Node) {}, "in use by another router or node"},
		{"the admin listener", func(c *config.Node) { c.StateDir = t.TempDir() }, "admin.listen: listen tcp " + site.admin},
		{"the listener", func(c *config.Node) { c.StateDir, c.Admin.Listen = t.TempDir(), "127.0.0.1:0" }, "listen: listen tcp " + site.listen},
		{"no folder", func(c *config.Node) { c.StateDir = site.path }, "state_dir: "},
		{"no ports", func(c *config.Node) {
			c.StateDir, c.Ports = t.TempDir(), config.PortRange{2000, 2000}
		}, "ports of engines: engine 127.0.0.1:9 needs 1 ports in a row"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			cfg, err := config.LoadNode(site.path)
			if err != nil {
				t.Fatal(err)
			}
			tt.cfg(cfg)
			n, err := newNodeService(site.path, cfg, slog.New(slog.DiscardHandler))
			if err != nil {
				t.Fatal(err)
			}
			if err := n.run(t.Context()); err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %s", err, tt.want)
			}
		})
	}
	if missing := first.missing(); len(missing) > 0 {
		t.Errorf("the first one lacks %v", missing)
	}
}

func readAll(t *testing.T, resp *http.Response) string {
	t.Helper()
	defer resp.Body.Close()
	text, err := io.ReadAll(resp.Body)
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}
