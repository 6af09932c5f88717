package subscriber

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMirrorRoom(t *testing.T) {
	type batches = [][]any
	both := func(words string) []string { return []string{"+any " + words, "+dev " + words} }
	gone := func(words string) []string { return []string{"-dev " + words, "-any " + words} }
	join := func(parts ...[]string) []string { return slices.Concat(parts...) }

	tests := []struct {
		name    string
		max     int
		batches batches
		want    []string
		orphans int
		dropped map[drop]int
	}{
		{name: "the oldest leaf goes", max: 3, batches: batches{{st("", "ab")}, {st("", "x")}, {st("", "y")}}, want: join(both("a ab"), both("x"), gone("ab"), both("y"))},
		{name: "a chain goes from its end", max: 3, batches: batches{{st("", "abc")}, {st("", "x")}, {st("", "y")}, {st("", "z")}}, want: join(both("a ab abc"), gone("abc"), both("x"), gone("ab"), both("y"), gone("a"), both("z"))},
		{name: "children before parents in one batch", max: 3, batches: batches{{st("", "abc")}, {st("", "xyz")}}, want: join(both("a ab abc"), gone("abc ab a"), both("x xy xyz"))},
		{name: "what is stored again stays", max: 3, batches: batches{{st("", "a")}, {st("", "b")}, {st("", "c")}, {st("", "a")}, {st("", "x")}}, want: join(both("a"), both("b"), both("c"), gone("b"), both("x"))},
		{name: "what was stored under stays", max: 3, batches: batches{{st("", "a")}, {st("", "b")}, {st("a", "c")}, {rm("c")}, {st("", "x")}, {st("", "y")}}, want: join(both("a"), both("b"), both("ac"), gone("ac"), both("x"), gone("b"), both("y"))},
		{name: "an inner block stays while it is one", max: 3, batches: batches{{st("", "a")}, {st("a", "b")}, {st("", "x")}, {st("a", "c")}, {st("a", "d")}}, want: join(both("a"), both("ab"), both("x"), gone("ab"), both("ac"), gone("x"), both("ad"))},
		{name: "the parent of the new block is spared", max: 2, batches: batches{{st("", "a")}, {st("", "x")}, {st("a", "b")}}, want: join(both("a"), both("x"), gone("x"), both("ab"))},
		{name: "nothing but the parent", max: 2, batches: batches{{st("", "ab")}, {st("b", "c")}}, want: both("a ab"), dropped: map[drop]int{dropFull: 1}},
		{name: "orphans go, too", max: 4, batches: batches{{st("z", "a")}, {st("", "bcd")}, {st("", "x")}}, want: join(both("b bc bcd"), both("x"))},
		{name: "an orphan is not spared", max: 4, batches: batches{{st("", "a")}, {st("", "b")}, {st("", "c")}, {st("", "d")}, {st("y", "x")}}, want: join(both("a"), both("b"), both("c"), both("d"), gone("a")), orphans: 1},
		{name: "its removal is of nothing", max: 2, batches: batches{{st("", "a")}, {st("", "b")}, {st("", "c")}, {rm("a")}, {rm("c")}}, want: join(both("a"), both("b"), gone("a"), both("c"), gone("c"))},
		{name: "stored again after it went", max: 2, batches: batches{{st("", "a")}, {st("", "b")}, {st("", "c")}, {st("", "a")}}, want: join(both("a"), both("b"), gone("a"), both("c"), gone("b"), both("a"))},
		{name: "a child proves it", max: 3, batches: batches{{st("", "ab")}, {st("", "x")}, {st("", "y")}, {st("b", "c")}}, want: join(both("a ab"), both("x"), gone("ab"), both("y"), gone("y x"), both("ab abc"))},
		{name: "a child of what is not known", max: 2, batches: batches{{st("", "a")}, {st("", "x")}, {st("b", "c")}}, want: join(both("a"), both("x"), gone("a")), orphans: 1},
		{name: "cold blocks go first", max: 3, batches: batches{{st("", "a")}, {st("", "b"), known("CPU", "b")}, {rm("b")}, {st("", "c")}, {st("", "d")}}, want: join(both("a"), both("b"), []string{"-dev b"}, both("c"), []string{"-any b"}, both("d"))},
		{name: "a block of two copies goes as a whole", max: 2, batches: batches{{st("", "a"), st("a", "b"), st("a", "b")}, {st("", "x")}, {rm("b")}}, want: join(both("a ab"), gone("ab"), both("x"))},
		{name: "two hashes of one fingerprint", max: 3, batches: batches{
			{st("", "a")}, {storedEvent(nil, 4, letterTokens("a"), 7)}, {st("", "x")}, {st("", "y")}, {st("", "z")},
		}, want: join(both("a"), both("x"), both("y"), gone("a"), both("z"))},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			sink := newNamedSink()
			f := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: c.max})
			dropped := foldBatches(t, f, c.batches)
			if d := cmp.Diff(c.want, sink.log); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			if len(dropped)+len(c.dropped) > 0 && !maps.Equal(c.dropped, dropped) {
				t.Errorf("dropped %v, want %v", dropped, c.dropped)
			}
			if got := f.mirror.orphans(); got != c.orphans {
				t.Errorf("%d orphans, want %d", got, c.orphans)
			}
		})
	}
}

// TestMirrorFullEnds wants the problem to last as long as room is made, and a while longer.
func TestMirrorFullEnds(t *testing.T) {
	sink := newCheckedSink(t)
	wanted := false
	f := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: 2, wanted: func(w Want) { wanted = w.Yes }})
	f.connected(true)
	f.history(true)
	now := time.Unix(1_000, 0)
	fold := func(events ...any) foldStats {
		t.Helper()
		sink.begin()
		st, err := f.fold(packBatch(events...), now)
		if err != nil {
			t.Fatal(err)
		}
		return st
	}
	expect := func(problem Problem, prompts bool) {
		t.Helper()
		if got := sink.last().Problem; got != problem || wanted != prompts {
			t.Errorf("problem %q, prompts wanted: %v; want %q, %v", got, wanted, problem, prompts)
		}
	}
	fold(st("", "a"), st("", "b"))
	expect(ProblemNone, false)
	if st := fold(st("", "c"), st("", "d")); st.withdrawn != 2 || st.blocks != 2 {
		t.Errorf("%+v", st)
	}
	expect(ProblemMirrorFull, true)
	for _, next := range []string{"x", "y", "z"} { // it goes on
		now = now.Add(fullFor - time.Second)
		f.tick(now)
		expect(ProblemMirrorFull, true)
		fold(st("", next))
	}
	now = now.Add(fullFor)
	sink.begin()
	f.tick(now)
	expect(ProblemNone, true) // what went may be there still
	fold(clearedEvent(), st("", "a"))
	expect(ProblemNone, false)
	fold(st("", "b"), st("", "c"))
	expect(ProblemMirrorFull, true)
	f.reset(CauseBackwards)
	expect(ProblemNone, true)
}

// TestMirrorFullLasts wants a mirror from a file to know that it lacks blocks.
func TestMirrorFullLasts(t *testing.T) {
	f := newFold(foldOptions{pool: "chat", sink: &nullSink{}, maxBlocks: 2})
	if _, err := f.fold(packBatch(st("", "a"), st("", "b"), st("", "c")), time.Unix(1_000, 0)); err != nil {
		t.Fatal(err)
	}
	sink := newCheckedSink(t)
	g := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: 2})
	if _, err := loadInto(g, f.snapshot(savedIdentity(), samplePosition(), time.Unix(1_000, 0)).file()); err != nil {
		t.Fatal(err)
	}
	g.connected(true)
	g.history(true)
	if !g.wants() {
		t.Error("no prompts are wanted")
	}
	now := time.Unix(5_000, 0)
	g.tick(now)
	if sink.last().Problem != ProblemMirrorFull {
		t.Errorf("%+v", sink.last())
	}
	sink.begin()
	g.tick(now.Add(fullFor))
	if sink.last().Problem != ProblemNone {
		t.Errorf("%+v", sink.last())
	}
}

// TestRoomLife plays truthful engines to mirrors that are smaller than the engines' caches. At rest nothing is announced that a prompt cannot
// hit, and what prompts find there is mostly announced: the mirror keeps what was used last.
func TestRoomLife(t *testing.T) {
	const steps = 2_500
	for i, kind := range lifeKinds() {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			withdrawn, rests, found, told := 0, 0, 0, 0
			for seed := range uint64(2) {
				rnd := rand.New(rand.NewPCG(seed, uint64(20+i)))
				e := newLifeEngine(kind, rnd)
				sink := newCheckedSink(t)
				sink.parentOf = func(key uint64) (uint64, bool) {
					parent, known := e.tree.parentOf(key)
					if !known {
						t.Fatalf("seed %d: %x is no block of the engine", seed, key)
					}
					return parent, parent == 0
				}
				maxBlocks := len(e.slots)/4 + rnd.IntN(len(e.slots)/2)
				f := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: maxBlocks})
				f.connected(true)
				f.history(rnd.IntN(4) > 0)
				if f.complete {
					f.heal.complete = true
				}
				now := time.Unix(1_000, 0)
				for range steps {
					before := e.held()
					prompt := e.step()
					if prompt != nil {
						known := sink.tiers[Device]
						for _, b := range prompt.blocks {
							if !before[Device][b.key] {
								break
							}
							found++
							if known[b.key] {
								told++
							}
						}
						if e.chain != nil && rnd.IntN(2) == 0 {
							sink.begin()
							f.witness(prompt.Prompt, now)
						}
					}
					if rnd.IntN(4) == 0 {
						now = now.Add(time.Second)
						sink.begin()
						f.tick(now)
					}
					rest := rnd.IntN(4) == 0
					events := e.batch(rest)
					if len(events) == 0 {
						continue
					}
					sink.begin()
					st, err := f.fold(packBatch(events...), now)
					if err != nil {
						t.Fatal(err)
					}
					withdrawn += st.withdrawn
					if st.blocks > maxBlocks {
						t.Fatalf("seed %d: %d blocks of at most %d", seed, st.blocks, maxBlocks)
					}
					if !rest {
						continue
					}
					rests++
					if err := f.mirror.check(); err != nil {
						t.Fatalf("seed %d: %v", seed, err)
					}
					held := e.held()
					for tier := range held {
						if !includes(held[tier], sink.tiers[tier]) {
							t.Fatalf("seed %d: announced in tier %d what is not held", seed, tier)
						}
					}
				}
			}
			t.Logf("%d blocks withdrawn, %d rests; of %d blocks that prompts found %d %% were announced", withdrawn, rests, found, 100*told/max(found, 1))
			if withdrawn < 1000 || rests < 400 {
				t.Error("nothing is tested")
			}
		})
	}
}

// TestRoomFound wants a mirror of half the engine's cache to know what prompts find there, as long as they go on with what was used lately.
func TestRoomFound(t *testing.T) {
	const steps = 6_000
	e := newLifeEngine(lifeKind{hashes: "drawn", exact: true, calm: true}, rand.New(rand.NewPCG(1, 30)))
	e.slots = make([]lifeSlot, 1_500)
	e.begin()
	sink := newCheckedSink(t)
	f := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: len(e.slots) / 2})
	f.connected(true)
	f.history(true)
	withdrawn, found, told := 0, 0, 0
	for step := range steps {
		var before map[uint64]bool
		if counts := step > steps/2; counts {
			before = e.held()[Device]
		}
		if prompt := e.step(); prompt != nil {
			for _, b := range prompt.blocks {
				if !before[b.key] {
					break
				}
				found++
				if sink.tiers[Device][b.key] {
					told++
				}
			}
		}
		if events := e.batch(true); len(events) > 0 {
			sink.begin()
			st, err := f.fold(packBatch(events...), time.Time{})
			if err != nil {
				t.Fatal(err)
			}
			withdrawn += st.withdrawn
		}
	}
	t.Logf("%d blocks withdrawn; of %d blocks that prompts found %.1f %% were announced", withdrawn, found, 100*float64(told)/float64(found))
	if withdrawn < 1000 || told < found*95/100 {
		t.Error("want 95 %")
	}
}
