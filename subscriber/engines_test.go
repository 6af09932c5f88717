package subscriber

import (
	"bytes"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// TestShapes folds what engines other than one of full attention alone send. Blocks hold 4 tokens of their letter.
func TestShapes(t *testing.T) {
	both := func(words string) []string { return []string{"+any " + words, "+dev " + words} }
	gone := func(words string) []string { return []string{"-dev " + words, "-any " + words} }
	join := func(parts ...[]string) (all []string) {
		for _, p := range parts {
			all = append(all, p...)
		}
		return all
	}
	of := func(f fields, group int, kind string) fields {
		return f.with("group_idx", group).with("kv_cache_spec_kind", kind)
	}
	unit := func(parent any, size int, tokens string, hashes ...uint64) fields {
		return storedEvent(parent, size, letterTokens(tokens), hashes...)
	}
	sglang := func(parent any, word string, hashes ...any) []any {
		return []any{"BlockStored", hashes, parent, letterTokens(word), 4, nil, "GPU"}
	}
	for _, c := range []struct {
		name    string
		batches [][]any
		want    []string
		dropped map[drop]int
		problem Problem
	}{
		// A model of five sliding-window layers to one of full attention: six groups, the full one last.
		{
			name: "sliding windows, full attention last", batches: [][]any{
				{of(st("", "abc"), 0, "sliding_window"), of(st("", "abc"), 1, "sliding_window"), of(st("", "abc"), 5, "full_attention")},
				{of(rm("a"), 0, "").without("kv_cache_spec_kind")},
				{rm("c").with("group_idx", 5)},
			}, want: join(both("a ab abc"), gone("abc")), dropped: map[drop]int{dropGroup: 6}, problem: ProblemHybrid,
		},
		// Mamba stores only the last state of a run: fewer hashes than its tokens have blocks, and empty runs.
		{
			name: "mamba", batches: [][]any{
				{
					of(st("", "abc"), 0, "full_attention"),
					of(unit(nil, 4, "abc", 'c'), 1, "mamba"), of(unit(nil, 4, "abc"), 1, "mamba"),
				}, {rm("c").with("group_idx", 1)},
			}, want: both("a ab abc"), dropped: map[drop]int{dropGroup: 1}, problem: ProblemHybrid,
		},
		// Releases with groups and without their kind (0.20.2 to 0.21): all groups are taken for full attention.
		{
			name: "fewer hashes than blocks, of no kind", batches: [][]any{
				{st("", "abc").without("kv_cache_spec_kind"), unit(nil, 4, "abc", 'c').with("group_idx", 1).without("kv_cache_spec_kind")},
			}, want: both("a ab abc"), // the run names c, which is known by group 0, and makes no group of full attention
		},
		// A group of larger blocks names each by the unit hash that ends it: the same hash in both groups.
		{
			name: "a group of larger blocks", batches: [][]any{
				{unit(nil, 4, "abcd", 'a', 'b', 'c', 'd').with("group_idx", 0), unit(nil, 8, "abcd", 'b', 'd').with("group_idx", 1)},
				{rm("d").with("group_idx", 0)},
				{rm("d").with("group_idx", 1)},
			}, want: join([]string{"+any 8:ab 8:abcd", "+dev 8:ab 8:abcd"}, []string{"-dev 8:abcd", "-any 8:abcd"}),
		},
		{
			name: "a group of larger blocks, first", batches: [][]any{
				{unit(nil, 8, "abcd", 'b', 'd').with("group_idx", 1), unit(nil, 4, "abcd", 'a', 'b', 'c', 'd').with("group_idx", 0)},
			}, want: []string{"+any 8:ab 8:abcd", "+dev 8:ab 8:abcd"}, dropped: map[drop]int{dropBlockSize: 4}, problem: ProblemBlockSize,
		},
		// A partial block is an entry of fewer tokens under a hash of its own; later it goes, or the whole one comes in its place.
		{
			name: "partial, then removed", batches: [][]any{
				{st("", "ab"), storedEvent(uint64('b'), 2, []uint32{9, 9}, 'p')},
				{rm("p")},
			}, want: both("a ab"), dropped: map[drop]int{dropBlockSize: 1},
		},
		{
			name: "partial, then promoted under another hash", batches: [][]any{
				{st("", "ab"), storedEvent(uint64('b'), 2, []uint32{9, 9}, 'p')},
				{rm("p"), st("b", "c")},
			}, want: join(both("a ab"), both("abc")), dropped: map[drop]int{dropBlockSize: 1},
		},
		{
			name: "partial, then promoted under its hash", batches: [][]any{
				{st("", "ab"), storedEvent(uint64('b'), 2, []uint32{9, 9}, 'c')},
				{st("b", "c")},
				{rm("c")},
			}, want: join(both("a ab"), both("abc"), gone("abc")), dropped: map[drop]int{dropBlockSize: 1},
		},
		{
			name: "partial before any whole one", batches: [][]any{
				{storedEvent(nil, 2, []uint32{9, 9}, 'p')},
				{st("", "a")},
			}, want: join([]string{"+any ?", "+dev ?", "reset block_size"}, both("a")),
		},

		// SGLang: signed hashes in arrays, one event per node, a removal of many.
		{
			name: "SGLang", batches: [][]any{
				{[]any{"AllBlocksCleared"}, sglang(nil, "ab", int64(-1), int64(5))},
				{sglang(int64(5), "c", int64(-3)), sglang(int64(-1), "d", int64(-4))},
				{[]any{"BlockRemoved", []any{int64(5), int64(-3)}, "GPU"}},
			}, want: join(both("a ab"), both("ad abc"), gone("abc ab")), problem: ProblemNoExtraKeys,
		},
		{
			name: "SGLang, array and map of one hash", batches: [][]any{
				{sglang(nil, "ab", int64(-1), int64(-2))},
				{fields{{"type", "BlockStored"}, {"block_hashes", []any{int64(-3)}}, {"parent_block_hash", uint64(1<<64 - 2)}, {"token_ids", letterTokens("c")}, {"block_size", 4}, {"lora_id", nil}}},
				{fields{{"type", "BlockRemoved"}, {"block_hashes", []any{uint64(1<<64 - 3)}}}},
			}, want: join(both("a ab"), both("abc"), gone("abc")), problem: ProblemNoExtraKeys,
		},
		{
			name: "SGLang with a host tier", batches: [][]any{
				{sglang(nil, "ab", int64(-1), int64(-2))},
				{[]any{"BlockStored", []any{int64(-1), int64(-2)}, nil, letterTokens("ab"), 4, nil, "CPU_PINNED"}},
				{[]any{"BlockRemoved", []any{int64(-1), int64(-2)}, "GPU"}},
				{sglang(nil, "ab", int64(-1), int64(-2))},
				{[]any{"BlockRemoved", []any{int64(-2)}, "CPU_PINNED"}},
			}, want: join(both("a ab"), []string{"-dev ab a", "+dev a ab"}), problem: ProblemNoExtraKeys,
		},
		{
			name: "SGLang, a page of two contents", batches: [][]any{
				{sglang(nil, "ab", int64(-1), int64(-2)), sglang(nil, "c", int64(-3))},
				{sglang(int64(-3), "b", int64(-2))}, // hashes of content alone, until November 2025
			}, want: join(both("a c ab"), gone("ab")), dropped: map[drop]int{dropConflict: 1}, problem: ProblemNoExtraKeys,
		},

		// TensorRT-LLM: vLLM's form, hashes of 63 bits in signed integers.
		{
			name: "TensorRT-LLM", batches: [][]any{
				{st("", "ab").with("block_hashes", []any{int64(1) << 62, int64(7)}).without("group_idx").without("kv_cache_spec_kind")},
				{st("", "c").with("parent_block_hash", int64(7)).without("group_idx").without("kv_cache_spec_kind")},
				{fields{{"type", "BlockRemoved"}, {"block_hashes", []any{'c'}}}},
				{fields{{"type", "BlockRemoved"}, {"block_hashes", []any{int64(1) << 62}}, {"medium", "GPU"}}},
			}, want: join(both("a ab"), both("abc"), gone("abc"), gone("ab a")),
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			sink := newNamedSink()
			key := blockhash.Namespace{Pool: "chat", BlockSize: 8}.Root()
			for _, word := range []string{"ab", "abcd"} {
				key = blockhash.Chain(key, blockhash.Content(letterTokens(word[len(word)-2:]), nil))
				sink.names[key] = "8:" + word
			}
			f := newFold(foldOptions{pool: "chat", sink: sink})
			dropped := foldBatches(t, f, c.batches)
			if d := cmp.Diff(c.want, sink.log); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			if c.dropped == nil {
				c.dropped = map[drop]int{}
			}
			if d := cmp.Diff(c.dropped, dropped); d != "" {
				t.Errorf("dropped (-want +got):\n%s", d)
			}
			if f.described.Problem != c.problem {
				t.Errorf("problem %q, want %q", f.described.Problem, c.problem)
			}
		})
	}
}

// TestAdapters: an engine that sends only lora_id has the names from the configuration. An id without one is dropped, counted, and said once.
func TestAdapters(t *testing.T) {
	var log bytes.Buffer
	sink := newNamedSink()
	sink.learn(blockhash.Namespace{Pool: "chat", BlockSize: 4, Adapter: "sql"}, "sql/")
	sink.learn(blockhash.Namespace{Pool: "chat", BlockSize: 4, Adapter: "own"}, "own/")
	f := newFold(foldOptions{pool: "chat", sink: sink, adapters: map[int64]string{1: "sql"}, log: slog.New(slog.NewTextHandler(&log, nil))})
	byID := func(above, word string, id any) fields {
		return st(above, word).with("lora_id", id).without("lora_name").without("extra_keys")
	}
	dropped := 0
	fold := func(events ...any) {
		t.Helper()
		stats, err := f.fold(packBatch(events...), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		dropped += stats.dropped[dropAdapter]
	}
	fold(byID("", "a", 1), byID("a", "b", 1))
	fold(byID("", "c", 1).with("lora_name", "own"))
	for range 3 {
		fold(byID("", "x", 2), byID("", "y", 3), byID("", "z", "a text"))
	}
	want := []string{"+any sql/a sql/ab", "+dev sql/a sql/ab", "+any own/c", "+dev own/c"}
	if d := cmp.Diff(want, sink.log); d != "" {
		t.Errorf("told (-want +got):\n%s", d)
	}
	if dropped != 9 {
		t.Errorf("%d dropped, want 9", dropped)
	}
	for _, id := range []string{"lora_id=2 ", "lora_id=3 ", "lora_id=0 "} {
		if n := strings.Count(log.String(), id); n != 1 {
			t.Errorf("%s said %d times:\n%s", id, n, log.String())
		}
	}
	for id := range 200 {
		fold(byID("", "x", 1_000+id))
	}
	if len(f.nameless) != maxNameless || strings.Count(log.String(), "lora_id=") != maxNameless {
		t.Errorf("%d ids remembered, %d said, want %d", len(f.nameless), strings.Count(log.String(), "lora_id="), maxNameless)
	}
}
