package feed

import (
	"encoding/hex"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// listen joins a stream to a node and takes what it is told at first.
func listen(n *Node) *stream {
	st := n.newStream("a", "", "")
	n.join(st)
	drain(st)
	return st
}

// told are the deltas and resets that a stream is told.
func told(t *testing.T, st *stream) (all []*feedpb.NodeMessage) {
	t.Helper()
	for {
		m, peers, ok := st.next()
		if !ok && !peers {
			return all
		}
		var n feedpb.NodeMessage
		check(t, proto.Unmarshal(m.data, &n))
		if n.GetDelta() != nil || n.GetReset_() != nil || n.GetState() != nil {
			all = append(all, &n)
		}
	}
}

// TestDeltaBytes has the bytes that doc.go shows.
func TestDeltaBytes(t *testing.T) {
	c := changes{
		removed: appendKey(nil, 0x1122334455667788), removedTiers: []byte{tierDevice},
		added: appendKey(appendKey(nil, 0xa1a2a3a4a5a6a7a8), 0xb1b2b3b4b5b6b7b8), addedTiers: []byte{tierBoth, tierBoth},
	}
	want := strings.ReplaceAll("3a 21 08 05 12 08 88 77 66 55 44 33 22 11 1a 01 02 22 10 a8 a7 a6 a5 a4 a3 a2 a1 b8 b7 b6 b5 b4 b3 b2 b1", " ", "")
	if all := encodeDeltas(5, &c); len(all) != 1 || hex.EncodeToString(all[0].data) != want {
		t.Errorf("%x", all)
	}
}

func TestWindows(t *testing.T) {
	type step func(s *Source)
	store := func(tier subscriber.Tier, keys ...uint64) step { return func(s *Source) { s.Store(tier, keys) } }
	remove := func(tier subscriber.Tier, keys ...uint64) step { return func(s *Source) { s.Remove(tier, keys) } }
	on, dev := subscriber.Any, subscriber.Device
	for name, tt := range map[string]struct {
		before, within         []step
		removed, added         []uint64
		removedTier, addedTier []byte
	}{
		"nothing":               {},
		"came":                  {within: []step{store(on, 1, 2), store(dev, 1, 2)}, added: []uint64{1, 2}},
		"came to a slow medium": {within: []step{store(on, 1)}, added: []uint64{1}, addedTier: []byte{1}},
		"came and went":         {within: []step{store(on, 1), store(dev, 1), remove(dev, 1), remove(on, 1)}},
		"went and came":         {before: []step{store(on, 1), store(dev, 1)}, within: []step{remove(dev, 1), remove(on, 1), store(on, 1), store(dev, 1)}},
		"went":                  {before: []step{store(on, 1, 2), store(dev, 1)}, within: []step{remove(dev, 1), remove(on, 2, 1)}, removed: []uint64{2, 1}, removedTier: []byte{1, 3}},
		"left the device":       {before: []step{store(on, 1, 2), store(dev, 1, 2)}, within: []step{remove(dev, 2, 1)}, removed: []uint64{2, 1}, removedTier: []byte{2, 2}},
		"came to the device":    {before: []step{store(on, 1, 2)}, within: []step{store(dev, 1, 2)}, added: []uint64{1, 2}, addedTier: []byte{2, 2}},
		"told twice":            {before: []step{store(on, 1)}, within: []step{store(on, 1), store(on, 1)}},
		"removed without being": {within: []step{remove(dev, 1), remove(on, 1)}},
		"the child before all of a parent that stays": {
			before: []step{store(on, 1, 2), store(dev, 1, 2)}, within: []step{remove(dev, 2), remove(dev, 1), remove(on, 2)},
			removed: []uint64{2, 1}, removedTier: []byte{3, 2},
		},
		"the parent's device before the child": {
			before: []step{store(on, 1)}, within: []step{store(on, 2), store(dev, 1), store(dev, 2)}, added: []uint64{1, 2}, addedTier: []byte{2, 3},
		},
		"came again after its parent": {
			before: []step{store(on, 1)}, within: []step{store(on, 3), remove(on, 3), store(on, 2), store(on, 3)}, added: []uint64{2, 3}, addedTier: []byte{1, 1},
		},
	} {
		t.Run(name, func(t *testing.T) {
			n := testNode(t, NodeOptions{})
			s := n.Source()
			n.announceOne(s)
			for _, f := range tt.before {
				f(s)
			}
			s.close()
			st := listen(n)
			defer st.end()
			for _, f := range tt.within {
				f(s)
			}
			if got := told(t, st); len(got) > 0 {
				t.Errorf("told before the window's end: %v", got)
			}
			s.close()
			var removed, added []uint64
			var removedTier, addedTier []byte
			for _, m := range told(t, st) {
				d := m.GetDelta()
				for i := range len(d.GetRemoved()) / keySize {
					removed = append(removed, keyAt(d.GetRemoved(), i))
				}
				for i := range len(d.GetAdded()) / keySize {
					added = append(added, keyAt(d.GetAdded(), i))
				}
				removedTier, addedTier = append(removedTier, d.GetRemovedTiers()...), append(addedTier, d.GetAddedTiers()...)
			}
			if diff := cmp.Diff([]any{tt.removed, tt.removedTier, tt.added, tt.addedTier}, []any{removed, removedTier, added, addedTier}); diff != "" {
				t.Errorf("-want +told:\n%s", diff)
			}
		})
	}
}

// TestWindowEnds shows when a window ends: before one block too many, at a description, and without a delta at a reset.
func TestWindowEnds(t *testing.T) {
	n := testNode(t, NodeOptions{WindowKeys: 4})
	s := n.Source()
	n.announceOne(s)
	st := listen(n)
	defer st.end()
	s.Store(subscriber.Any, sequence(1, 4))
	s.Store(subscriber.Device, sequence(1, 4))
	if got := told(t, st); len(got) != 0 {
		t.Errorf("four blocks: %v", got)
	}
	s.Store(subscriber.Any, sequence(5, 1))
	if got := told(t, st); len(got) != 1 || len(got[0].GetDelta().GetAdded()) != 4*keySize || len(got[0].GetDelta().GetAddedTiers()) != 0 {
		t.Errorf("five blocks: %v", got)
	}
	s.Describe(subscriber.Description{Connected: true})
	if got := told(t, st); len(got) != 2 || len(got[0].GetDelta().GetAdded()) != keySize || !got[1].GetState().GetConnected() {
		t.Errorf("described: %v", got)
	}
	s.Store(subscriber.Any, sequence(6, 2))
	s.Reset(subscriber.CauseGap)
	s.close()
	if got := told(t, st); len(got) != 1 || got[0].GetReset_().GetCause() != "gap" || s.Blocks() != 0 {
		t.Errorf("reset: %v", got)
	}
	// One block that comes and goes without end.
	for range 100 {
		s.Store(subscriber.Any, []uint64{9})
		s.Remove(subscriber.Any, []uint64{9})
	}
	if calls := cap(s.window.calls); calls > 64 {
		t.Errorf("%d calls are kept", calls)
	}
	if got := told(t, st); len(got) != 0 {
		t.Errorf("a block that comes and goes: %v", got)
	}
}

// TestLongWindows are told in several messages, in order.
func TestLongWindows(t *testing.T) {
	n := testNode(t, NodeOptions{WindowKeys: 1 << 16})
	s := n.Source()
	n.announceOne(s)
	st := listen(n)
	defer st.end()
	s.Store(subscriber.Any, sequence(1, 20_000))
	s.close()
	drain(st)
	s.Store(subscriber.Any, sequence(20_001, 10_000))
	s.Remove(subscriber.Any, sequence(1, 20_000))
	s.close()
	var order []int
	for _, m := range told(t, st) {
		order = append(order, -len(m.GetDelta().GetRemoved())/keySize, len(m.GetDelta().GetAdded())/keySize)
	}
	if diff := cmp.Diff([]int{-8192, 0, -8192, 0, -3616, 4576, 0, 5424}, order); diff != "" {
		t.Error(diff)
	}
}

// TestAnnouncements has what routers do not take left out, and what has not changed not said.
func TestAnnouncements(t *testing.T) {
	n := testNode(t, NodeOptions{})
	a, b := n.Source(), n.Source()
	st := n.newStream("a", "", "")
	n.join(st)
	defer st.end()
	next := func() (all []string) {
		for {
			m, peers, ok := st.next()
			if !ok && !peers {
				return all
			}
			var d feedpb.NodeMessage
			check(t, proto.Unmarshal(m.data, &d))
			switch k := d.GetMessage().(type) {
			case *feedpb.NodeMessage_Replicas:
				words := []string{"replicas"}
				for _, r := range k.Replicas.GetReplicas() {
					words = append(words, r.GetEndpoint()+strings.Join(r.GetModels(), ","))
				}
				all = append(all, strings.Join(words, " "))
			case *feedpb.NodeMessage_Begin:
				all = append(all, "begin")
			}
		}
	}
	expect := func(want ...string) {
		t.Helper()
		if diff := cmp.Diff(want, next()); diff != "" {
			t.Error(diff)
		}
	}
	expect("replicas")
	first := Replica{Endpoint: ":1", Pool: "chat", Sources: []uint32{a.Number()}}
	n.Announce([]Replica{first})
	expect("replicas :1", "begin")
	n.Announce([]Replica{first})
	expect()
	n.Announce([]Replica{
		first,
		{Endpoint: ":2"},
		{Endpoint: ":3", Pool: "chat", Sources: []uint32{a.Number()}},
		{Endpoint: ":4", Pool: "chat", Models: []string{"m\xff", strings.Repeat("ü", 600), strings.Repeat("ü", 200)}, Sources: []uint32{b.Number(), 99}},
	})
	expect("replicas :1 :4m�,"+strings.Repeat("ü", 200), "begin")
	a.Close()
	n.Announce([]Replica{first, {Endpoint: ":4", Pool: "chat", Sources: []uint32{b.Number()}}})
	expect("replicas :1 :4")
	moved := Replica{Endpoint: ":5", Pool: "chat", Sources: []uint32{b.Number()}}
	n.Announce([]Replica{moved}) // the same blocks, of another engine to routers
	expect("replicas :5", "begin")
	for range 9000 {
		moved.Adapters = append(moved.Adapters[:min(len(moved.Adapters), maxAdapters-1)], Adapter{Name: strings.Repeat("x", 250), Path: strings.Repeat("y", 4000)})
	}
	n.Announce([]Replica{moved})
	if !st.queue.empty() {
		t.Error("adapters that are too much for a message are announced")
	}
}

// TestOverflow has what was dropped told anew: replicas, and for each source a reset if there was one, its state, and a copy.
func TestOverflow(t *testing.T) {
	reg := prometheus.NewRegistry()
	n := testNode(t, NodeOptions{Metrics: NewNodeMetrics(reg)})
	a, b := n.Source(), n.Source()
	n.Announce([]Replica{{Endpoint: ":1", Pool: "chat", Sources: []uint32{a.Number(), b.Number()}}})
	st := listen(n)
	defer st.end()
	st.queue.limit = 4000
	a.Reset(subscriber.CauseGap)
	a.Describe(subscriber.Description{Connected: true, BlockSize: 32})
	a.Store(subscriber.Any, sequence(1, 20))
	a.close()
	if !st.pass(message{kind: kindCharges, charges: 3}, 2) {
		t.Fatal("no room")
	}
	b.Store(subscriber.Any, sequence(1, 1000)) // 9,000 bytes
	b.close()
	b.Store(subscriber.Any, sequence(2000, 5)) // are part of the copy
	b.close()
	var got []string
	for {
		m, peers, ok := st.next()
		if !ok && !peers {
			break
		}
		var k feedpb.NodeMessage
		check(t, proto.Unmarshal(m.data, &k))
		text := strings.TrimPrefix(fmt.Sprintf("%T", k.GetMessage()), "*feedpb.NodeMessage_")
		switch {
		case k.GetReset_() != nil:
			text += fmt.Sprint(k.GetReset_().GetSource(), k.GetReset_().GetCause())
		case k.GetState() != nil:
			text += fmt.Sprint(k.GetState().GetSource(), k.GetState().GetBlockSize())
		case k.GetBegin() != nil:
			text += fmt.Sprint(k.GetBegin().GetSource())
		case peers:
			text = "peers"
		}
		got = append(got, text)
	}
	if diff := cmp.Diff([]string{"Replicas", "Reset_1gap", "State1 32", "Begin1", "State2 0", "Begin2", "peers"}, got); diff != "" {
		t.Error(diff)
	}
	if m := n.o.Metrics; testutil.ToFloat64(m.overflows) != 1 || testutil.ToFloat64(m.charges[dropped]) != 3 || testutil.ToFloat64(m.queued) != 0 {
		t.Error("not counted")
	}
	st.queue.limit = 1 << 20
	r := &receiver{tree: flat(3000), stream: st, sources: map[uint32]*received{1: {fresh: blocks{}}, 2: {fresh: blocks{}}}}
	settle(t, r)
	if len(r.sources[1].known) != 20 || len(r.sources[2].known) != 1005 {
		t.Errorf("%d and %d blocks", len(r.sources[1].known), len(r.sources[2].known))
	}
}

// TestWindowsEndInTime closes windows as Run does.
func TestWindowsEndInTime(t *testing.T) {
	n := testNode(t, NodeOptions{Window: time.Second})
	a, b := n.Source(), n.Source()
	start := time.Now()
	a.Store(subscriber.Any, []uint64{1})
	a.Store(subscriber.Any, []uint64{2})
	b.Store(subscriber.Any, []uint64{1})
	if s, wait := n.windows.ended(start); s != nil || wait < 900*time.Millisecond || wait > 2*time.Minute {
		t.Errorf("%v, %v", s, wait)
	}
	later := start.Add(time.Hour)
	if s, _ := n.windows.ended(later); s != a {
		t.Error("not the first window")
	}
	if s, _ := n.windows.ended(later); s != b {
		t.Error("not the second window")
	}
	if s, wait := n.windows.ended(later); s != nil || wait != 0 {
		t.Error("a window too many")
	}
}
