package router

import (
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

// TestNobodyFillsTheIndex: a node that announces more blocks than the index holds, at one endpoint or at many, leaves room for others, whoever came first.
func TestNobodyFillsTheIndex(t *testing.T) {
	const room = 8000
	tests := []struct {
		name      string
		endpoints int // of the greedy node
		blocks    int // that each of them announces, beyond what there is room for
		first     bool
	}{
		{"one endpoint, after others", 1, 2 * room, false},
		{"one endpoint, before others", 1, 2 * room, true},
		{"one endpoint that fills the index just so, before others", 1, room, true},
		{"many endpoints, after others", 16, room / 8, false},
		{"many endpoints, before others", 16, room / 8, true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			index, err := kvindex.New(kvindex.Options{MaxBlocks: room})
			if err != nil {
				t.Fatal(err)
			}
			w := newWorld(t, Options{Index: index}, chat(tt.endpoints+2))
			source := func(owner string, i int) *Source {
				s, err := w.r.SourceOf(owner, "chat", address(i), 0)
				if err != nil {
					t.Fatal(err)
				}
				s.Describe(subscriber.Description{Connected: true, BlockSize: block})
				return s
			}
			var greedy []*Source
			for i := range tt.endpoints {
				greedy = append(greedy, source("greedy", i+2))
			}
			take := func() {
				for i, s := range greedy {
					for from := 0; from < tt.blocks; from += 100 {
						keys := make([]uint64, 100)
						for j := range keys {
							keys[j] = uint64(1+i)<<32 + uint64(from+j)
						}
						s.Store(subscriber.Any, keys)
					}
				}
			}
			var good []*Source
			long := [][]uint32{run(1, room/8*block), run(1_000_000, room/8*block)}
			fill := func() (kept int) {
				for i, s := range good {
					s.Begin()
					store(s, chain(long[i]))
					s.End()
					w.pass(time.Hour)
					if d := w.r.Decide(t.Context(), given("llama", long[i])); d.Matched > 0 && d.Endpoint == address(i) {
						kept++
					}
				}
				return kept
			}
			if tt.first {
				take()
				if n := index.Stats().Blocks; n < room && tt.blocks <= room {
					t.Errorf("alone the node has %d blocks of %d", n, room)
				}
			}
			good = []*Source{source("a", 0), source("b", 1)}
			fill() // while the greedy node has not been asked
			if !tt.first {
				take()
			}
			for range 3 { // as a node's sinks are asked and its blocks copied again
				for i, s := range good {
					if s.Dropped() && s.problemName(s.state.Load()) != problemIndexFull {
						t.Errorf("endpoint %d has problem %q", i, s.problemName(s.state.Load()))
					}
				}
				for _, s := range greedy {
					s.Dropped()
				}
				fill()
			}
			if kept := fill(); kept != 2 {
				t.Errorf("%d of 2 others are matched, the index has %d blocks", kept, index.Stats().Blocks)
			}
			for _, s := range greedy {
				s.Dropped()
			}
			if share := index.Share(greedy[0].owner.held.Load()); share > fairShare && index.Used() >= crowdedFrom {
				t.Errorf("the greedy node has %v of the index, which is %v full", share, index.Used())
			}
			problems := map[string]int{}
			for _, s := range greedy {
				problems[s.problemName(s.state.Load())]++
			}
			if problems[problemIndexShare]+problems[problemIndexFull] == 0 {
				t.Errorf("problems of the greedy node: %v", problems)
			}
			all := append(greedy, good...)
			for _, s := range all {
				s.Close()
			}
			if len(w.r.owners.all) != 0 || greedy[0].owner.held.Load() != 0 || w.r.owners.several.Load() {
				t.Errorf("%d owners are left, %d blocks", len(w.r.owners.all), greedy[0].owner.held.Load())
			}
		})
	}
}

// TestOneOwnerMayFillTheIndex: with nobody else there is nobody to leave room for.
func TestOneOwnerMayFillTheIndex(t *testing.T) {
	index, err := kvindex.New(kvindex.Options{MaxBlocks: 1000})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Options{Index: index}, chat(2))
	for i := range 2 {
		s, err := w.r.SourceOf("node", "chat", address(i), 0)
		if err != nil {
			t.Fatal(err)
		}
		s.Describe(subscriber.Description{Connected: true, BlockSize: block})
		for from := range 5 {
			keys := make([]uint64, 100)
			for j := range keys {
				keys[j] = uint64(1+i)<<32 + uint64(100*from+j)
			}
			s.Store(subscriber.Any, keys)
		}
		if s.Dropped() {
			t.Errorf("source %d: %s", i, s.problemName(s.state.Load()))
		}
	}
}

// TestUnclosedBlocksCostTheirOwnEndpoint: blocks without their ancestors are found by a check, and cost nobody else anything; a copy that is sound is matched.
func TestUnclosedBlocksCostTheirOwnEndpoint(t *testing.T) {
	index, err := kvindex.New(kvindex.Options{CheckEvery: 3})
	if err != nil {
		t.Fatal(err)
	}
	w := newWorld(t, Options{Index: index}, chat(2))
	tokens := run(1, 20*block+1)
	keys := chain(tokens)
	w.hold(address(0), block, plain, tokens[:8*block])
	bad := w.connect(address(1), block)
	store(bad, keys[10:])
	for range 10 {
		w.r.Decide(t.Context(), given("llama", tokens))
	}
	if st := index.Stats(); st.Opened != 1 || st.Walking || st.Differences != 0 {
		t.Errorf("%+v", st)
	}
	s := w.r.State().Pools[0].Endpoints
	if s[0].Problem != "" || !s[0].Matchable || s[1].Problem != problemNotClosed || s[1].Matchable {
		t.Errorf("the sound endpoint: %+v, the other: %+v", s[0], s[1])
	}
	w.pass(time.Hour)
	if d := w.r.Decide(t.Context(), given("llama", tokens)); d.Endpoint != address(0) || d.Matched != 8*block {
		t.Errorf("%+v", d)
	}
	if w.sources[address(0)].Dropped() || !bad.Dropped() {
		t.Error("dropped, or not")
	}
	if n := index.Stats().Blocks; n != 8 {
		t.Errorf("%d blocks are in the index", n)
	}
	bad.Store(subscriber.Any, keys[:1])
	bad.Begin()
	store(bad, keys[:12])
	bad.End()
	w.pass(time.Hour)
	if d := w.r.Decide(t.Context(), given("llama", tokens)); d.Endpoint != address(1) || d.Matched != 12*block || bad.Dropped() {
		t.Errorf("after a sound copy: %+v", d)
	}
}
