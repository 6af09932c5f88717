package feed

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"google.golang.org/protobuf/proto"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// blocks are the tiers of each block that is there.
type blocks map[uint64]byte

// tree says which block is the parent of which, 0 for none. Blocks are numbered from 1.
type tree struct {
	parent   []uint64
	children [][]uint64
}

func newTree(r *rand.Rand, n int) *tree {
	t := &tree{parent: make([]uint64, n+1), children: make([][]uint64, n+1)}
	for k := 2; k <= n; k++ {
		if r.IntN(10) > 0 {
			t.parent[k] = uint64(k - 1 - r.IntN(min(k-1, 4))) // mostly long chains
		}
		t.children[t.parent[k]] = append(t.children[t.parent[k]], uint64(k))
	}
	return t
}

// misses names a block that breaks a rule: a parent that is not there, or one that is on the device and in no tier.
func (t *tree) misses(b blocks) error {
	for k, tiers := range b {
		for _, tier := range []byte{tierAny, tierDevice} {
			if p := t.parent[k]; tiers&tier != 0 && p != 0 && b[p]&tier == 0 {
				return fmt.Errorf("block %d is in tier %d without its parent %d", k, tier, p)
			}
		}
		if tiers == tierDevice {
			return fmt.Errorf("block %d is on the device and in no tier", k)
		}
	}
	return nil
}

// receiver is a router, slow and obvious.
type receiver struct {
	tree    *tree
	stream  *stream
	sources map[uint32]*received
	loads   int
	gone    []string
}

type received struct {
	known   blocks
	fresh   blocks // nil without a copy under way
	state   *feedpb.State
	ends    int
	changes int
}

// tierOf are the tiers of key i; no tiers stand for all.
func tierOf(tiers []byte, i int) byte {
	if len(tiers) == 0 {
		return tierBoth
	}
	return tiers[i]
}

// step takes one message, if there is one.
func (r *receiver) step() (more bool, err error) {
	copied := r.stream.copy()
	m, peers, ok := r.stream.next()
	if peers || !ok {
		return peers || copied, nil
	}
	var n feedpb.NodeMessage
	if err := proto.Unmarshal(m.data, &n); err != nil {
		return false, err
	}
	return true, r.take(&n)
}

func (r *receiver) take(n *feedpb.NodeMessage) error {
	of := func(source uint32) (*received, error) {
		if s := r.sources[source]; s != nil {
			return s, nil
		}
		return nil, fmt.Errorf("%v of a source that is not announced", n)
	}
	switch m := n.GetMessage().(type) {
	case *feedpb.NodeMessage_Replicas:
		before := r.sources
		r.sources = map[uint32]*received{}
		for _, p := range m.Replicas.GetReplicas() {
			for _, number := range p.GetSources() {
				if r.sources[number] = before[number]; before[number] == nil {
					r.sources[number] = &received{known: blocks{}}
				}
			}
		}
	case *feedpb.NodeMessage_State:
		s, err := of(m.State.GetSource())
		if err != nil {
			return err
		}
		s.state = m.State
	case *feedpb.NodeMessage_Begin:
		s, err := of(m.Begin.GetSource())
		if err != nil {
			return err
		}
		s.fresh = blocks{}
	case *feedpb.NodeMessage_Blocks:
		s, err := of(m.Blocks.GetSource())
		if err != nil {
			return err
		}
		if s.fresh == nil {
			return fmt.Errorf("blocks of source %d outside of a copy", m.Blocks.GetSource())
		}
		count, err := countKeys("blocks", m.Blocks.GetKeys(), m.Blocks.GetTiers(), true)
		if err != nil {
			return err
		}
		for i := range count {
			s.fresh[keyAt(m.Blocks.GetKeys(), i)] |= tierOf(m.Blocks.GetTiers(), i)
		}
	case *feedpb.NodeMessage_End:
		s, err := of(m.End.GetSource())
		if err != nil {
			return err
		}
		if s.fresh == nil {
			return fmt.Errorf("the end of no copy of source %d", m.End.GetSource())
		}
		if err := r.tree.misses(s.fresh); err != nil {
			return fmt.Errorf("at the end of a copy: %w", err)
		}
		s.known, s.fresh = s.fresh, nil
		s.ends++
	case *feedpb.NodeMessage_Reset_:
		s, err := of(m.Reset_.GetSource())
		if err != nil {
			return err
		}
		s.known = blocks{}
		if s.fresh != nil {
			s.fresh = blocks{}
		}
	case *feedpb.NodeMessage_Delta:
		s, err := of(m.Delta.GetSource())
		if err != nil {
			return err
		}
		s.changes++
		return r.delta(s, m.Delta)
	case *feedpb.NodeMessage_Loads:
		r.loads++
	case *feedpb.NodeMessage_Charges:
		if m.Charges.GetGone() {
			r.gone = append(r.gone, m.Charges.GetInstance())
		}
	}
	return nil
}

// delta applies net changes key by key. Outside of a copy each has to have an effect, and both tiers keep to the rules throughout.
func (r *receiver) delta(s *received, d *feedpb.Delta) error {
	removed, err := countKeys("removed", d.GetRemoved(), d.GetRemovedTiers(), false)
	if err != nil {
		return err
	}
	added, err := countKeys("added", d.GetAdded(), d.GetAddedTiers(), false)
	if err != nil {
		return err
	}
	set, live := s.fresh, false
	if set == nil {
		set, live = s.known, true
	}
	once := map[uint64]bool{}
	for i := range removed {
		once[keyAt(d.GetRemoved(), i)] = true
	}
	for i := range added {
		once[keyAt(d.GetAdded(), i)] = true
	}
	if len(once) != removed+added {
		return fmt.Errorf("a key is there twice: %v", d)
	}
	remove := func(tier byte) error {
		for i := range removed {
			k := keyAt(d.GetRemoved(), i)
			if tierOf(d.GetRemovedTiers(), i)&tier == 0 {
				continue
			}
			if live && set[k]&tier == 0 {
				return fmt.Errorf("block %d is removed from tier %d and was not there", k, tier)
			}
			if set[k] &^= tier; set[k] == 0 {
				delete(set, k)
			}
			for _, c := range r.tree.children[k] {
				if live && set[c]&tier != 0 {
					return fmt.Errorf("block %d is removed from tier %d before its child %d", k, tier, c)
				}
			}
			if live && set[k] == tierDevice {
				return fmt.Errorf("block %d is left on the device alone", k)
			}
		}
		return nil
	}
	add := func(tier byte) error {
		for i := range added {
			k := keyAt(d.GetAdded(), i)
			if tierOf(d.GetAddedTiers(), i)&tier == 0 {
				continue
			}
			if live && set[k]&tier != 0 {
				return fmt.Errorf("block %d is added to tier %d and was there", k, tier)
			}
			set[k] |= tier
			if p := r.tree.parent[k]; live && p != 0 && set[p]&tier == 0 {
				return fmt.Errorf("block %d is added to tier %d before its parent %d", k, tier, p)
			}
			if live && set[k] == tierDevice {
				return fmt.Errorf("block %d is added to the device before any tier", k)
			}
		}
		return nil
	}
	for _, tier := range []byte{tierDevice, tierAny} {
		if err := remove(tier); err != nil {
			return err
		}
	}
	for _, tier := range []byte{tierAny, tierDevice} {
		if err := add(tier); err != nil {
			return err
		}
	}
	return nil
}

// engine calls a source as a subscriber does, and keeps what it has announced.
type engine struct {
	tree   *tree
	rand   *rand.Rand
	source *Source
	has    blocks
	about  subscriber.Description
}

func (e *engine) pick(want func(k uint64) bool) (uint64, bool) {
	for range 20 {
		if k := 1 + uint64(e.rand.IntN(len(e.tree.parent)-1)); want(k) {
			return k, true
		}
	}
	return 0, false
}

func (e *engine) set(tier subscriber.Tier, keys []uint64, on bool) {
	bit := tierAny
	if tier == subscriber.Device {
		bit = tierDevice
	}
	for _, k := range keys {
		if e.has[k] ^= bit; e.has[k] == 0 {
			delete(e.has, k)
		}
	}
	if len(keys) == 0 {
		return
	}
	if on {
		e.source.Store(tier, keys)
	} else {
		e.source.Remove(tier, keys)
	}
}

// under are the descendants of a block in a tier, children before parents, and the block itself.
func (e *engine) under(k uint64, tier byte) (all []uint64) {
	for _, c := range e.tree.children[k] {
		all = append(all, e.under(c, tier)...)
	}
	if e.has[k]&tier != 0 {
		all = append(all, k)
	}
	return all
}

// act does one thing that an engine does.
func (e *engine) act() {
	switch n := e.rand.IntN(100); {
	case n < 55: // a chain is computed
		k, ok := e.pick(func(k uint64) bool { return e.has[k] == 0 && (e.tree.parent[k] == 0 || e.has[e.tree.parent[k]] != 0) })
		if !ok {
			return
		}
		var chain []uint64
		for range 1 + e.rand.IntN(8) {
			chain = append(chain, k)
			next := slices.DeleteFunc(slices.Clone(e.tree.children[k]), func(c uint64) bool { return e.has[c] != 0 })
			if len(next) == 0 {
				break
			}
			k = next[e.rand.IntN(len(next))]
		}
		e.set(subscriber.Any, chain, true)
		if p := e.tree.parent[chain[0]]; e.rand.IntN(4) > 0 && (p == 0 || e.has[p] == tierBoth) {
			e.set(subscriber.Device, chain, true)
		}
	case n < 70: // blocks and what hangs on them leave the device
		if k, ok := e.pick(func(k uint64) bool { return e.has[k] == tierBoth }); ok {
			e.set(subscriber.Device, e.under(k, tierDevice), false)
		}
	case n < 80: // a block comes back to the device
		if k, ok := e.pick(func(k uint64) bool {
			return e.has[k] == tierAny && (e.tree.parent[k] == 0 || e.has[e.tree.parent[k]] == tierBoth)
		}); ok {
			e.set(subscriber.Device, []uint64{k}, true)
		}
	case n < 97: // blocks are gone
		if k, ok := e.pick(func(k uint64) bool { return e.has[k] != 0 }); ok {
			e.set(subscriber.Device, e.under(k, tierDevice), false)
			e.set(subscriber.Any, e.under(k, tierAny), false)
		}
	case n < 98:
		e.has = blocks{}
		e.source.Reset(subscriber.CauseCleared)
	default:
		e.about.Connected = !e.about.Connected
		e.about.BlockSize = 16
		e.source.Describe(e.about)
	}
}

func testNode(t testing.TB, o NodeOptions) *Node {
	t.Helper()
	n, err := NewNode(o)
	check(t, err)
	return n
}

func settle(t *testing.T, r *receiver) {
	t.Helper()
	for range 100_000 {
		more, err := r.step()
		check(t, err)
		if !more {
			return
		}
	}
	t.Fatal("a stream never has nothing to say")
}

// TestStreamsFollowSources has random engines, windows, routers that come, read when they like and overflow: what one has read to the end is what
// engines have announced, and on the way there no rule is broken.
func TestStreamsFollowSources(t *testing.T) {
	var ends, changes, overflows, cancelled int
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 1))
		n := testNode(t, NodeOptions{WindowKeys: 1 + r.IntN(60), MaxCopies: 1 + r.IntN(2)})
		clock := time.Unix(1000, 0)
		n.now = func() time.Time { return clock }
		n.part = 1 + r.IntN(40)
		shape := newTree(r, 30+r.IntN(300))
		var engines []*engine
		grow := func() {
			engines = append(engines, &engine{tree: shape, rand: r, source: n.Source(), has: blocks{}})
		}
		announced := 0
		announce := func() {
			var all []Replica
			for i, e := range engines {
				all = append(all, Replica{Endpoint: fmt.Sprintf(":%d", 8000+i), Pool: "chat", Sources: []uint32{e.source.Number()}})
			}
			announced = len(engines)
			n.Announce(all)
		}
		grow()
		grow()
		announce()
		var routers []*receiver
		join := func() {
			st := n.newStream(fmt.Sprint(len(routers)), "", "")
			if r.IntN(2) == 0 {
				st.queue.limit = 6000 + r.IntN(20_000) // a copy fits in
			}
			routers = append(routers, &receiver{tree: shape, stream: st, sources: map[uint32]*received{}})
			n.join(st)
		}
		for range 400 + r.IntN(1000) {
			clock = clock.Add(time.Duration(r.IntN(100)) * time.Millisecond)
			switch k := r.IntN(100); {
			case k < 60:
				engines[r.IntN(len(engines))].act()
			case k < 70:
				engines[r.IntN(len(engines))].source.close()
			case k < 72 && len(routers) < 5:
				join()
			case k < 73 && len(engines) < 4:
				grow()
			case k < 74:
				announce()
			case k < 75 && len(engines) > 2:
				i := r.IntN(len(engines))
				engines[i].source.Close()
				engines = slices.Delete(engines, i, i+1)
				announce()
			case k < 76 && len(routers) > 2:
				i := r.IntN(len(routers))
				n.leave(routers[i].stream)
				routers[i].stream.end()
				routers = slices.Delete(routers, i, i+1)
			case len(routers) > 0:
				for range r.IntN(12) {
					_, err := routers[r.IntN(len(routers))].step()
					if err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
				}
			}
		}
		if announced != len(engines) {
			announce()
		}
		for _, e := range engines {
			check(t, shape.misses(e.has))
			cancelled += e.source.window.cancelled()
			e.source.close()
			got := blocks{}
			var c cursor
			e.source.ledger.follow(&c)
			keys, tiers, _ := e.source.ledger.read(&c, 1<<20, nil, nil)
			e.source.ledger.leave(&c)
			for i, tier := range tiers {
				got[keyAt(keys, i)] = tier
			}
			if diff := cmp.Diff(e.has, got); diff != "" || e.source.Blocks() != len(e.has) {
				t.Fatalf("seed %d: the ledger, -announced +kept:\n%s", seed, diff)
			}
		}
		for range routers { // who waits for a turn gets it when the others are done
			for _, rt := range routers {
				settle(t, rt)
			}
		}
		for i, rt := range routers {
			for _, e := range engines {
				s := rt.sources[e.source.Number()]
				if s == nil || s.fresh != nil {
					t.Fatalf("seed %d: router %d has no copy of source %d: %+v", seed, i, e.source.Number(), s)
				}
				if diff := cmp.Diff(e.has, s.known); diff != "" {
					t.Fatalf("seed %d: router %d, source %d, -announced +received:\n%s", seed, i, e.source.Number(), diff)
				}
				if s.state.GetConnected() != e.about.Connected || s.state.GetBlockSize() != uint32(e.about.BlockSize) {
					t.Fatalf("seed %d: router %d, source %d: state %v of %+v", seed, i, e.source.Number(), s.state, e.about)
				}
				ends += s.ends
				changes += s.changes
				if s.ends > 1 {
					overflows++
				}
			}
			if len(rt.sources) != len(engines) {
				t.Fatalf("seed %d: router %d has %d sources of %d", seed, i, len(rt.sources), len(engines))
			}
			rt.stream.end()
		}
		for _, e := range engines {
			if len(e.source.ledger.cursors) != 0 {
				t.Fatalf("seed %d: a cursor is left", seed)
			}
		}
		if len(n.turns.holders)+len(n.turns.waiting) != 0 {
			t.Fatalf("seed %d: a turn is left", seed)
		}
	}
	if ends < 500 || changes < 1000 || overflows < 20 || cancelled < 100 {
		t.Errorf("%d copies, %d deltas, %d overflows, %d cancelled blocks: too few to show anything", ends, changes, overflows, cancelled)
	}
	t.Log(ends, "copies", changes, "deltas", overflows, "overflows", cancelled, "cancelled")
}

// TestLedger compares a ledger with a list, with pages that merge under copies that are under way.
func TestLedger(t *testing.T) {
	for seed := range uint64(3) {
		r := rand.New(rand.NewPCG(seed, 2))
		l := newLedger()
		var order []uint64 // what is there, in order
		has := map[uint64]byte{}
		type copying struct {
			c    cursor
			seen map[uint64]bool
			at   map[uint64]bool // what was there at its begin and stayed
		}
		var copies []*copying
		next, merges := uint64(0), 0
		for round := range 80 {
			grow := round%40 < 18
			for range 1500 {
				if grow && r.IntN(4) > 0 || len(order) == 0 {
					next++
					has[next] = 1 + byte(r.IntN(2))*2
					order = append(order, next)
					l.add(next, has[next])
					continue
				}
				i := r.IntN(len(order))
				k := order[i]
				at, ok := l.find(k)
				if !ok || l.tiers(at) != has[k] {
					t.Fatalf("seed %d: block %d is not found with tiers %d", seed, k, has[k])
				}
				if r.IntN(3) == 0 {
					has[k] ^= tierDevice
					l.set(at, has[k])
					continue
				}
				l.remove(k, at)
				order = slices.Delete(order, i, i+1)
				delete(has, k)
				for _, c := range copies {
					delete(c.at, k)
				}
			}
			before := len(l.pages) - len(l.free)
			l.tidy()
			merges += before - (len(l.pages) - len(l.free))
			if r.IntN(3) == 0 && len(copies) < 4 {
				c := &copying{seen: map[uint64]bool{}, at: map[uint64]bool{}}
				for k := range has {
					c.at[k] = true
				}
				l.follow(&c.c)
				copies = append(copies, c)
			}
			for i := len(copies) - 1; i >= 0; i-- {
				c := copies[i]
				keys, tiers, done := l.read(&c.c, 1+r.IntN(4000), nil, nil)
				for j, tier := range tiers {
					k := keyAt(keys, j)
					if c.seen[k] || has[k] != tier {
						t.Fatalf("seed %d: block %d is copied twice, or with tiers %d of %d", seed, k, tier, has[k])
					}
					c.seen[k] = true
				}
				if !done {
					continue
				}
				for k := range c.at {
					if !c.seen[k] {
						t.Fatalf("seed %d: block %d is not copied", seed, k)
					}
				}
				l.leave(&c.c)
				copies = slices.Delete(copies, i, i+1)
			}
			var c cursor
			l.follow(&c)
			keys, _, done := l.read(&c, 1<<30, nil, nil)
			l.leave(&c)
			got := make([]uint64, len(keys)/keySize)
			for i := range got {
				got[i] = keyAt(keys, i)
			}
			if !done || !slices.Equal(got, order) || l.blocks != len(order) {
				t.Fatalf("seed %d: %d blocks in another order than that of %d", seed, len(got), len(order))
			}
		}
		if merges < 20 {
			t.Errorf("seed %d: pages were freed %d times only", seed, merges)
		}
		for k := range maps.Keys(has) {
			at, _ := l.find(k)
			l.remove(k, at)
		}
		for range 100 {
			l.tidy()
		}
		if l.first != noPage || l.places.n != 0 || l.blocks != 0 {
			t.Errorf("seed %d: an empty ledger has pages", seed)
		}
	}
}
