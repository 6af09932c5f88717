package subscriber

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// TestLapse: copies end by time, in order, and what hangs on them is withdrawn
// with them and comes back with them.
func TestLapse(t *testing.T) {
	start := time.Unix(1_000, 0)
	at := func(seconds int) time.Time { return start.Add(time.Duration(seconds) * time.Second) }
	type steps = func(t *testing.T, f *fold, c copyClass)
	play := func(t *testing.T, f *fold, events ...any) {
		t.Helper()
		if _, err := f.fold(packBatch(events...), start); err != nil {
			t.Fatal(err)
		}
	}
	lend := func(t *testing.T, f *fold, c copyClass, hash byte, until int) {
		t.Helper()
		id := f.mirror.byHash.get(uint64(hash))
		if id == 0 || !f.mirror.lapseAt(id, c, at(until)) {
			t.Fatalf("no copy of block %d", id)
		}
	}
	for _, c := range []struct {
		name   string
		medium Medium
		max    int
		do     steps
		want   []string
		ends   int
	}{
		{
			name: "outlives the device copy", medium: MediumHost, do: func(t *testing.T, f *fold, c copyClass) {
				play(t, f, st("", "ab"))
				lend(t, f, c, 'a', 10)
				lend(t, f, c, 'b', 5)
				play(t, f, rm("ba"))
				f.tick(at(4))
				f.tick(at(5))
				f.tick(at(9))
				f.tick(at(10))
			}, want: []string{"+any a ab", "+dev a ab", "-dev ab a", "-any ab", "-any a"},
		},
		{
			name: "a parent ends before its child", medium: MediumHost, do: func(t *testing.T, f *fold, c copyClass) {
				play(t, f, st("", "ab"))
				lend(t, f, c, 'a', 5)
				lend(t, f, c, 'b', 10)
				play(t, f, rm("ab"))
				f.tick(at(5))
				play(t, f, st("", "a"))
			}, want: []string{"+any a ab", "+dev a ab", "-dev ab a", "-any ab a", "+any a ab", "+dev a"}, ends: 1,
		},
		{
			name: "put off, never brought forward", medium: MediumHost, do: func(t *testing.T, f *fold, c copyClass) {
				play(t, f, st("", "a"))
				lend(t, f, c, 'a', 5)
				lend(t, f, c, 'a', 9)
				lend(t, f, c, 'a', 7)
				play(t, f, rm("a"))
				f.tick(at(8))
				f.tick(at(9))
			}, want: []string{"+any a", "+dev a", "-dev a", "-any a"},
		},
		{
			name: "the end goes with the block", medium: MediumHost, do: func(t *testing.T, f *fold, c copyClass) {
				play(t, f, st("", "a"))
				lend(t, f, c, 'a', 5)
				f.mirror.delete(f.mirror.byHash.get('a'))
				play(t, f, st("", "b")) // takes the id
				f.tick(at(6))
			}, want: []string{"+any a", "+dev a", "-dev a", "-any a", "+any b", "+dev b"},
		},
		{
			name: "the end goes with a clear", medium: MediumHost, do: func(t *testing.T, f *fold, c copyClass) {
				play(t, f, st("", "a"))
				lend(t, f, c, 'a', 5)
				play(t, f, clearedEvent(), st("", "a"))
				f.tick(at(6))
			}, want: []string{"+any a", "+dev a", "reset cleared", "+any a", "+dev a"},
		},
		{
			name: "the first to end makes room", medium: MediumHost, max: 4, do: func(t *testing.T, f *fold, c copyClass) {
				play(t, f, st("", "abc"))
				lend(t, f, c, 'a', 30)
				lend(t, f, c, 'c', 10)
				lend(t, f, c, 'b', 20)
				play(t, f, rm("cb"))
			}, want: []string{"+any a ab abc", "+dev a ab abc", "-dev abc ab", "-any abc"}, ends: 2,
		},
		{
			name: "a whole block of lapsing copies", medium: MediumDevice, do: func(t *testing.T, f *fold, c copyClass) {
				play(t, f, st("", "a"))
				s := storeBlock{hash: 'b', above: 'a', content: blockhash.Content(letterTokens("b"), nil)}
				for range 2 {
					if d := f.mirror.addUntil(s, c, at(5)); d != dropNone {
						t.Fatal(d)
					}
				}
				play(t, f, st("b", "c"))
				f.tick(at(5))
				play(t, f, st("a", "b"))
			}, want: []string{"+any a", "+dev a", "+any ab abc", "+dev ab abc", "-dev abc ab", "-any abc ab", "+any ab abc", "+dev ab abc"},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			sink := newNamedSink()
			f := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: c.max})
			play(t, f, st("", "x"), rm("x")) // the device's class and group
			class, ok := f.mirror.copies.assume(c.medium, 0, false, &f.mirror.groups)
			if !ok {
				t.Fatal("no room for the class")
			}
			c.do(t, f, class)
			if err := f.mirror.check(); err != nil {
				t.Error(err)
			}
			if d := cmp.Diff(c.want, sink.log); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			if got := len(f.mirror.lapses.heap); got != c.ends {
				t.Errorf("%d ends, want %d", got, c.ends)
			}
		})
	}
}

// TestLapses compares with a map of ends.
func TestLapses(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 2))
	l := newLapses(1)
	type copyOf struct {
		block uint32
		class copyClass
	}
	want := map[copyOf]time.Duration{}
	for range 20_000 {
		c := copyOf{rnd.Uint32N(40), copyClass(rnd.UintN(3))}
		switch rnd.IntN(5) {
		case 0:
			l.cancel(c.block, c.class)
			delete(want, c)
		case 1:
			if end, ok := l.first(); ok {
				for _, until := range want {
					if until < end.until {
						t.Fatalf("first ends at %v, another at %v", end.until, until)
					}
				}
				l.cancel(end.block, end.class)
				delete(want, copyOf{end.block, end.class})
			}
		default:
			until := time.Duration(rnd.IntN(1000))
			l.set(c.block, c.class, until)
			want[c] = max(want[c], until)
		}
		if len(l.heap) != len(want) || l.byCopy.n != len(want) {
			t.Fatalf("%d ends, %d indexed, want %d", len(l.heap), l.byCopy.n, len(want))
		}
		for c, until := range want {
			if id := l.byCopy.get(lapseKey(c.block, c.class)); id == 0 || l.ends[id].until != until {
				t.Fatalf("%+v ends at %v, want %v", c, l.ends[id].until, until)
			}
		}
	}
}
