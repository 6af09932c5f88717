package subscriber

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// Blocks in these tests have one letter as engine hash and hold 4 tokens of
// that letter, so that a chain reads as a word; a fingerprint is named by the
// word that leads to it.

func letterTokens(word string) []uint32 {
	var out []uint32
	for _, c := range word {
		out = append(out, uint32(c), uint32(c), uint32(c), uint32(c))
	}
	return out
}

func letterHashes(word string) []uint64 {
	var out []uint64
	for _, c := range word {
		out = append(out, uint64(c))
	}
	return out
}

// st stores the blocks of word after the block above, "" for a sequence start.
func st(above, word string) fields {
	var parent any
	if above != "" {
		parent = uint64(above[0])
	}
	return storedEvent(parent, 4, letterTokens(word), letterHashes(word)...)
}

func rm(word string) fields { return removedEvent(letterHashes(word)...) }

func rmFrom(medium string, word string) fields { return rm(word).with("medium", medium) }

// known is a hash-only store in another medium.
func known(medium, word string) fields {
	return st("", word).with("token_ids", []uint32{}).with("block_size", 0).with("medium", medium).without("extra_keys").without("group_idx")
}

func knownRemoved(medium, word string) fields { return rmFrom(medium, word).without("group_idx") }

// namedSink writes what it is told as words: "+any abc" is a store.
type namedSink struct {
	names map[uint64]string
	log   []string
}

func newNamedSink() *namedSink {
	s := &namedSink{names: map[uint64]string{}}
	s.learn(blockhash.Namespace{Pool: "chat", BlockSize: 4}, "")
	return s
}

// learn names all fingerprints of up to three letters in a namespace.
func (s *namedSink) learn(n blockhash.Namespace, prefix string) {
	letters := "abcdxyz"
	var words func(key uint64, word string)
	words = func(key uint64, word string) {
		if word != "" {
			s.names[key] = prefix + word
		}
		if len(word) == 3 {
			return
		}
		for _, c := range letters {
			words(blockhash.Chain(key, blockhash.Content(letterTokens(string(c)), nil)), word+string(c))
		}
	}
	words(n.Root(), "")
}

func (s *namedSink) note(op string, tier Tier, keys []uint64) {
	word := []string{op + map[Tier]string{Device: "dev", Any: "any"}[tier]}
	for _, k := range keys {
		name, ok := s.names[k]
		if !ok {
			name = "?"
		}
		word = append(word, name)
	}
	s.log = append(s.log, strings.Join(word, " "))
}

func (s *namedSink) Store(tier Tier, keys []uint64)  { s.note("+", tier, keys) }
func (s *namedSink) Remove(tier Tier, keys []uint64) { s.note("-", tier, keys) }
func (s *namedSink) Reset(cause Cause)               { s.log = append(s.log, "reset "+string(cause)) }
func (s *namedSink) Describe(Description)            {}

func TestMirror(t *testing.T) {
	type batches = [][]any
	both := func(words string) []string { return []string{"+any " + words, "+dev " + words} }
	gone := func(words string) []string { return []string{"-dev " + words, "-any " + words} }
	join := func(parts ...[]string) []string { return slices.Concat(parts...) }

	tests := []struct {
		name    string
		batches batches
		want    []string
		orphans int
		dropped map[drop]int
		max     int
	}{
		{name: "a run", batches: batches{{st("", "abc")}}, want: both("a ab abc")},
		{name: "a run in two events", batches: batches{{st("", "ab")}, {st("b", "c")}}, want: join(both("a ab"), both("abc"))},
		{name: "removal, children first in one event", batches: batches{{st("", "abc")}, {rm("cb")}}, want: join(both("a ab abc"), gone("abc ab"))},
		{name: "removal, parents first in one event", batches: batches{{st("", "abc")}, {rm("bc")}}, want: join(both("a ab abc"), gone("abc ab"))},
		{name: "two copies", batches: batches{{st("", "ab"), st("a", "b")}, {rm("b")}, {rm("b")}}, want: join(both("a ab"), gone("ab"))},
		{name: "announced again from the start", batches: batches{{st("", "ab"), st("a", "b")}, {st("", "abc")}, {rm("cb")}, {rm("b")}, {rm("a")}}, want: join(both("a ab"), both("abc"), gone("abc"), gone("ab"), gone("a"))},
		{name: "announced again from the start, without token ids", batches: batches{{st("", "a")}, {st("", "a").with("token_ids", []uint32{}).with("block_size", 0)}, {rm("a")}}, want: join(both("a"), gone("a"))},
		{name: "announced again from the start, loaded back", batches: batches{{st("", "ab"), known("CPU", "ab")}, {rm("b")}, {st("", "ab")}, {rm("b")}}, want: join(both("a ab"), []string{"-dev ab"}, []string{"+dev ab"}, []string{"-dev ab"})},
		{name: "what cancels is not sent", batches: batches{{st("", "a"), rm("a")}, {st("", "b")}, {rm("b"), st("", "b")}}, want: both("b")},
		{name: "evicted and stored in one batch", batches: batches{{st("", "ab")}, {rm("b"), st("a", "c")}}, want: join(both("a ab"), gone("ab"), both("ac"))},
		{name: "unknown removal", batches: batches{{rm("a")}, {st("", "a")}, {rm("b"), rmFrom("CPU", "a")}}, want: both("a")},

		{name: "orphans are held", batches: batches{{st("a", "bc")}}, orphans: 2},
		{name: "orphans are adopted", batches: batches{{st("a", "b"), st("b", "c"), st("a", "d")}, {st("", "a")}}, want: both("a ad ab abc")},
		{name: "an orphan goes", batches: batches{{st("a", "b"), st("b", "c")}, {rm("b")}, {st("", "a")}, {st("a", "b")}}, want: join(both("a"), both("ab abc"))},
		{name: "an ancestor goes and returns", batches: batches{{st("", "abc")}, {rm("a")}, {st("", "a")}}, want: join(both("a ab abc"), gone("abc ab a"), both("a ab abc"))},
		{name: "an ancestor goes, then a descendant", batches: batches{{st("", "abc")}, {rm("a")}, {rm("c")}, {st("", "a")}}, want: join(both("a ab abc"), gone("abc ab a"), both("a ab"))},

		{name: "its own parent", batches: batches{{st("a", "a"), st("a", "b")}}, orphans: 1, dropped: map[drop]int{dropLoop: 1}},
		{name: "twice in an event", batches: batches{{st("", "aba")}, {st("", "a")}}, want: both("a"), dropped: map[drop]int{dropLoop: 3}},
		{name: "parent again in the event", batches: batches{{st("a", "ba")}}, dropped: map[drop]int{dropLoop: 2}},
		{name: "a descendant as parent", batches: batches{{st("a", "b"), st("b", "c")}, {st("c", "a")}, {st("", "a")}}, want: both("a ab abc"), dropped: map[drop]int{dropLoop: 1}},
		{name: "a descendant as parent, after a removal", batches: batches{{st("", "abc")}, {rm("a"), st("c", "a")}}, want: join(both("a ab abc"), gone("abc ab a")), orphans: 2, dropped: map[drop]int{dropLoop: 1}},
		{name: "two parents", batches: batches{{st("", "ab"), st("", "x")}, {st("x", "b")}, {rm("bb"), st("a", "b")}}, want: join(both("a x ab"), gone("ab"), both("ab")), dropped: map[drop]int{dropConflict: 1}},
		{name: "two contents", batches: batches{{st("", "ab")}, {st("a", "b").with("token_ids", letterTokens("c"))}}, want: join(both("a ab"), gone("ab")), orphans: 1, dropped: map[drop]int{dropConflict: 1}},

		{name: "another medium, hash-only", batches: batches{{st("", "ab")}, {known("CPU", "ab")}, {rm("ba")}, {knownRemoved("cpu", "a")}}, want: join(both("a ab"), []string{"-dev ab a"}, []string{"-any ab a"}), orphans: 1},
		{name: "another medium of an unknown block", batches: batches{{known("CPU", "a")}, {st("", "b").with("medium", "DISK")}}, dropped: map[drop]int{dropOffDevice: 2}},
		{name: "demoted and loaded back", batches: batches{{st("", "a"), known("CPU_PINNED", "a")}, {rm("a")}, {st("", "a")}}, want: join(both("a"), []string{"-dev a"}, []string{"+dev a"})},
		{name: "medium in any case", batches: batches{{st("", "a").with("medium", "gpu")}, {rm("a")}}, want: join(both("a"), gone("a"))},
		{name: "medium nil", batches: batches{{st("", "a").with("medium", nil)}, {rmFrom("GPU", "a")}}, want: join(both("a"), gone("a"))},
		{name: "device child of a demoted block", batches: batches{{st("", "a"), known("CPU", "a")}, {rm("a")}, {st("a", "b")}}, want: join(both("a"), []string{"-dev a"}, []string{"+any ab", "+dev a ab"})},
		{name: "remote copy", batches: batches{{st("", "a")}, {known("STORAGE", "a").with("locality", "REMOTE")}, {rm("a")}}, want: join(both("a"), gone("a")), dropped: map[drop]int{dropRemote: 1}},
		{name: "owners are told apart", batches: batches{{st("", "a")}, {known("CPU", "a").with("ownership", "x")}, {rm("a"), knownRemoved("CPU", "a")}, {knownRemoved("CPU", "a").with("ownership", "x")}}, want: join(both("a"), []string{"-dev a", "-any a"})},

		{name: "no full attention", batches: batches{{st("", "a").with("kv_cache_spec_kind", "sliding_window").with("group_idx", 1)}}, dropped: map[drop]int{dropGroup: 1}},
		{name: "latent attention", batches: batches{{st("", "a").with("kv_cache_spec_kind", "mla_attention")}}, want: both("a")},
		{name: "two groups in one batch", batches: batches{{st("", "a"), st("", "a").with("group_idx", 5)}, {rm("a").with("group_idx", 5)}, {st("", "a").with("group_idx", 5)}}, want: join(both("a"), gone("a"), both("a"))},
		{name: "a second group turns up", batches: batches{{st("", "ab")}, {st("", "a").with("group_idx", 5)}}, want: join(both("a ab"), gone("ab")), orphans: 1},

		{name: "no tokens", batches: batches{{st("", "a").with("token_ids", []uint32{}).with("block_size", 0)}}, dropped: map[drop]int{dropNoTokens: 1}},
		{name: "no tokens, known", batches: batches{{st("", "ab")}, {st("a", "b").with("token_ids", []uint32{}).with("block_size", 0)}, {rm("b")}}, want: both("a ab")},
		{name: "tokens that do not divide", batches: batches{{st("", "ab").with("block_size", 3)}, {st("", "ab").with("block_size", 1<<62)}}, dropped: map[drop]int{dropSlice: 4}},
		{name: "pairs", batches: batches{{st("", "a").with("token_ids", []any{[]int{1, 2}})}}, dropped: map[drop]int{dropBigram: 1}},
		{name: "bad token id", batches: batches{{st("", "a").with("token_ids", []int{-1, 2, 3, 4})}}, dropped: map[drop]int{dropTokens: 1}},
		{name: "adapter without name", batches: batches{{st("", "a").with("lora_id", 1)}, {st("a", "b")}}, orphans: 1, dropped: map[drop]int{dropAdapter: 1}},
		{name: "extra keys of unknown form", batches: batches{{st("", "abc").with("extra_keys", []any{nil, []any{"?"}, nil})}}, want: both("a"), orphans: 1, dropped: map[drop]int{dropExtraKeys: 1}},
		{name: "extra keys of other length", batches: batches{{st("", "abc").with("extra_keys", []any{nil})}}, dropped: map[drop]int{dropExtraKeys: 3}},
		{name: "two salts", batches: batches{{st("", "a").with("extra_keys", []any{[]any{"s"}}).with("cache_salt", "t")}}, dropped: map[drop]int{dropExtraKeys: 1}},
		{name: "empty run", batches: batches{{st("", "")}}},

		{name: "salt", batches: batches{{st("", "ab").with("extra_keys", []any{[]any{"s"}, nil})}}, want: both("s/a s/ab")},
		{name: "salt as a field", batches: batches{{st("", "a").with("cache_salt", "s").without("extra_keys"), st("a", "b").with("cache_salt", "s")}}, want: both("s/a s/ab")},
		{name: "adapter", batches: batches{{st("", "ab").with("lora_id", 1).with("lora_name", "l").with("extra_keys", []any{[]any{"l"}, []any{"l"}})}}, want: both("l/a l/ab")},
		{name: "adapter and salt", batches: batches{{st("", "a").with("lora_name", "l").with("extra_keys", []any{[]any{"l", "s"}})}}, want: both("l+s/a")},
		{name: "multimodal item", batches: batches{{st("", "a").with("extra_keys", []any{[]any{[]any{"image", 2}}})}}, want: both("image@2/a")},

		{name: "smaller blocks", batches: batches{{st("", "ab")}, {st("b", "c").with("block_size", 2).with("token_ids", []int{1, 2})}}, want: both("a ab"), dropped: map[drop]int{dropBlockSize: 1}},
		{name: "larger blocks", batches: batches{{st("", "x").with("block_size", 2).with("token_ids", []int{1, 2})}, {st("", "a")}}, want: join([]string{"+any ?", "+dev ?", "reset block_size"}, both("a"))},

		{name: "clear", batches: batches{{st("", "ab")}, {clearedEvent(), st("", "a")}, {rm("b")}}, want: join(both("a ab"), []string{"reset cleared"}, both("a"))},
		{name: "clear of nothing", batches: batches{{clearedEvent(), clearedEvent()}, {st("a", "b")}, {clearedEvent()}}},
		{name: "clear after a store", batches: batches{{st("", "a"), clearedEvent()}}},

		{name: "full", max: 2, batches: batches{{st("", "abc")}, {rm("b")}, {st("a", "x")}}, want: join(both("a ab"), gone("ab"), both("ax")), dropped: map[drop]int{dropFull: 1}},
		{name: "full, room made among cold leaves", max: 3, batches: batches{{st("", "abc"), known("CPU", "abc")}, {rm("cb")}, {st("a", "d")}}, want: join(both("a ab abc"), []string{"-dev abc ab"}, []string{"-any abc", "+any ad", "+dev ad"})},
		{
			name: "full, the coldest is no leaf", max: 3,
			batches: batches{{st("", "ab"), st("", "x"), known("CPU", "ax")}, {rm("a")}, {rm("x")}, {st("", "c")}},
			want:    join(both("a x ab"), []string{"-dev ab a"}, []string{"-dev x"}, []string{"-any x", "+any c", "+dev c"}),
		},
		{name: "full, the new block's parent is the cold leaf", max: 1, batches: batches{{st("", "a"), known("CPU", "a")}, {rm("a")}, {st("a", "b")}}, want: join(both("a"), []string{"-dev a"}, []string{"+dev a"}), dropped: map[drop]int{dropFull: 1}},
		{name: "too many orphans", max: 4, batches: batches{{st("x", "bcd")}, {st("", "a")}}, want: both("a"), orphans: 2, dropped: map[drop]int{dropOrphanFull: 1}},
	}
	for _, c := range tests {
		t.Run(c.name, func(t *testing.T) {
			sink := newNamedSink()
			sink.learn(blockhash.Namespace{Pool: "chat", BlockSize: 4, Salt: "s"}, "s/")
			sink.learn(blockhash.Namespace{Pool: "chat", BlockSize: 4, Adapter: "l"}, "l/")
			sink.learn(blockhash.Namespace{Pool: "chat", BlockSize: 4, Adapter: "l", Salt: "s"}, "l+s/")
			image := blockhash.Content(letterTokens("a"), blockhash.AppendItem(nil, "image", 2))
			sink.names[blockhash.Chain(blockhash.Namespace{Pool: "chat", BlockSize: 4}.Root(), image)] = "image@2/a"
			f := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: c.max})
			dropped := foldBatches(t, f, c.batches)
			if d := cmp.Diff(c.want, sink.log); d != "" && len(c.want)+len(sink.log) > 0 {
				t.Errorf("told (-want +got):\n%s", d)
			}
			if c.dropped == nil {
				c.dropped = map[drop]int{}
			}
			if d := cmp.Diff(c.dropped, dropped); d != "" {
				t.Errorf("dropped (-want +got):\n%s", d)
			}
			if got := f.mirror.orphans(); got != c.orphans {
				t.Errorf("%d orphans, want %d", got, c.orphans)
			}
		})
	}
}

// foldBatches folds batches of well-formed events, holds the mirror to its invariants after each, and returns what was dropped.
func foldBatches(t *testing.T, f *fold, batches [][]any) map[drop]int {
	t.Helper()
	dropped := map[drop]int{}
	for i, events := range batches {
		stats, err := f.fold(packBatch(events...), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		if stats.events[eventMalformed]+stats.events[eventUnknown] > 0 {
			t.Fatalf("batch %d: %+v", i, stats)
		}
		for d, n := range stats.dropped {
			if n > 0 {
				dropped[drop(d)] += n
			}
		}
		if err := f.mirror.check(); err != nil {
			t.Fatalf("batch %d: %v", i, err)
		}
	}
	return dropped
}
