package subscriber

import (
	"bytes"
	"errors"
	"log/slog"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestDescription(t *testing.T) {
	old := []any{"BlockStored", []uint64{1}, nil, []uint32{1, 2, 3, 4}, 4, nil, "GPU"}
	noTokens := st("", "b").with("token_ids", []uint32{}).with("block_size", 0)
	for _, c := range []struct {
		name   string
		events []any
		max    int
		want   Description
	}{
		{name: "plain", events: []any{st("", "a")}, want: Description{BlockSize: 4, ExtraKeys: true}},
		{name: "nothing", events: nil, want: Description{}},
		{name: "unknown events only", events: []any{fields{{"type", "?"}}}, want: Description{}},
		{name: "too old for extra keys", events: []any{old}, want: Description{BlockSize: 4, Problem: ProblemNoExtraKeys}},
		{name: "extra keys later", events: []any{old, st("", "a")}, want: Description{BlockSize: 4, ExtraKeys: true}},
		{name: "salt in slot 7", events: []any{append(old, fields{{"cache_salt", "s"}})}, want: Description{BlockSize: 4, ExtraKeys: true}},
		{name: "no token ids", events: []any{st("", "a"), noTokens}, want: Description{BlockSize: 4, ExtraKeys: true, Problem: ProblemNoTokens}},
		{name: "no token ids in another medium", events: []any{st("", "a"), noTokens.with("medium", "CPU")}, want: Description{BlockSize: 4, ExtraKeys: true, Coldest: MediumHost}},
		{name: "copies on disk", events: []any{st("", "a"), noTokens.with("medium", "cpu_pinned"), noTokens.with("medium", "Disk")}, want: Description{BlockSize: 4, ExtraKeys: true, Coldest: MediumDisk}},
		{name: "copies in a medium that is ignored", events: []any{st("", "a"), noTokens.with("medium", "EXTERNAL")}, want: Description{BlockSize: 4, ExtraKeys: true}},
		{name: "pairs", events: []any{st("", "a").with("token_ids", []any{[]int{1, 2}})}, want: Description{Problem: ProblemBigram}},
		{name: "hashes that look ahead", events: []any{st("", "a").with("lookahead_token_ids", []any{[]int{1}})}, want: Description{Problem: ProblemLookahead}},
		{name: "nothing to look ahead to", events: []any{st("", "ab").with("lookahead_token_ids", []any{[]int{}, nil})}, want: Description{BlockSize: 4, ExtraKeys: true}},
		{name: "no look ahead", events: []any{st("", "ab").with("lookahead_token_ids", nil)}, want: Description{BlockSize: 4, ExtraKeys: true}},
		{name: "look ahead of unknown form", events: []any{st("", "a").with("lookahead_token_ids", "?")}, want: Description{Problem: ProblemLookahead}},
		{name: "look ahead in another medium", events: []any{st("", "a"), st("", "a").with("lookahead_token_ids", []any{[]int{1}}).with("medium", "CPU")}, want: Description{BlockSize: 4, ExtraKeys: true, Coldest: MediumHost}},
		{name: "pages of one token", events: []any{storedEvent(nil, 1, []uint32{1, 2}, 1, 2)}, want: Description{BlockSize: 1, ExtraKeys: true, Problem: ProblemPageSize}},
		{name: "a partial block of one token", events: []any{storedEvent(nil, 1, []uint32{1}, 1)}, want: Description{BlockSize: 1, ExtraKeys: true}},
		{name: "full", events: []any{st("", "abc")}, max: 2, want: Description{BlockSize: 4, ExtraKeys: true, Problem: ProblemMirrorFull}},
		{name: "full, blocks withdrawn", events: []any{st("", "a"), st("", "b"), st("", "c")}, max: 2, want: Description{BlockSize: 4, ExtraKeys: true, Problem: ProblemMirrorFull}},
		{name: "full, then cleared", events: []any{st("", "abc"), clearedEvent()}, max: 2, want: Description{BlockSize: 4, ExtraKeys: true, Problem: ProblemMirrorFull}},
		{
			name: "hybrid", events: []any{st("", "a"), st("", "b").with("kv_cache_spec_kind", "mamba").with("group_idx", 1)},
			want: Description{BlockSize: 4, ExtraKeys: true, Problem: ProblemHybrid},
		},
		{
			name: "partial block of the same group", events: []any{st("", "a"), st("a", "b").with("token_ids", []int{1}).with("block_size", 1)},
			want: Description{BlockSize: 4, ExtraKeys: true},
		},
		{
			name: "groups of two block sizes", events: []any{st("", "a"), st("", "b").with("token_ids", []int{1}).with("block_size", 1).with("group_idx", 1)},
			want: Description{BlockSize: 4, ExtraKeys: true, Problem: ProblemBlockSize},
		},
	} {
		t.Run(c.name, func(t *testing.T) {
			sink := newCheckedSink(t)
			var log bytes.Buffer
			f := newFold(foldOptions{
				pool: "chat", endpoint: "10.0.0.1:8000", sink: sink, maxBlocks: c.max,
				log: slog.New(slog.NewTextHandler(&log, nil)),
			})
			for range 2 { // the second time nothing is said
				sink.begin()
				if _, err := f.fold(packBatch(c.events...), time.Time{}); err != nil {
					t.Fatal(err)
				}
			}
			if got := sink.last(); got != c.want {
				t.Errorf("described as %+v, want %+v", got, c.want)
			}
			want := 0
			if c.want.Problem != ProblemNone {
				want = 1
			}
			if n := strings.Count(log.String(), "problem="+string(c.want.Problem)); n != want {
				t.Errorf("problem logged %d times, want %d:\n%s", n, want, log.String())
			}
			f.connected(true)
			f.connected(true)
			c.want.Connected = true
			if got := sink.last(); got != c.want {
				t.Errorf("connected: described as %+v, want %+v", got, c.want)
			}
			f.reset(CauseDisconnect)
			if got := sink.last(); got != (Description{Connected: true}) {
				t.Errorf("reset: described as %+v", got)
			}
		})
	}
}

// TestUnreadable: the sink hears nothing of a batch that cannot be read to its
// end, and after the reset the fold works on.
func TestUnreadable(t *testing.T) {
	sink := newCheckedSink(t)
	f := newFold(foldOptions{pool: "chat", sink: sink})
	payload := packBatch(st("", "a"), st("a", "b"))
	if _, err := f.fold(payload[:len(payload)-5], time.Time{}); !errors.Is(err, errTruncated) {
		t.Fatalf("error %v", err)
	}
	if sink.calls > 0 || len(sink.described) > 0 {
		t.Errorf("%d calls, described %v", sink.calls, sink.described)
	}
	f.reset(CauseUnreadable)
	if d := cmp.Diff([]Cause{CauseUnreadable}, sink.resets); d != "" {
		t.Error(d)
	}
	stats, err := f.fold(payload, time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if stats.events[eventStored] != 2 || stats.blocks != 2 || stats.orphans != 0 || len(sink.tiers[Device]) != 2 {
		t.Errorf("%+v, %d announced", stats, len(sink.tiers[Device]))
	}
}

// TestMalformedEventBetween: the other events of the batch count.
func TestMalformedEventBetween(t *testing.T) {
	sink := newCheckedSink(t)
	f := newFold(foldOptions{pool: "chat", sink: sink})
	stats, err := f.fold(packBatch(st("", "a"), st("a", "?").with("block_hashes", 5), fields{{"type", "New"}}, st("a", "b")), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	want := [eventKinds]int{eventStored: 2, eventMalformed: 1, eventUnknown: 1}
	if stats.events != want || len(sink.tiers[Device]) != 2 {
		t.Errorf("events %v, want %v; %d announced", stats.events, want, len(sink.tiers[Device]))
	}
}

// TestLongChain: adoption and withdrawal of a chain of 200,000 blocks, which
// recursion would not survive cheaply, in chunks that the sink can hold.
func TestLongChain(t *testing.T) {
	const blocks = 200_000
	sink := &chunkSink{}
	f := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: 2 * blocks})
	var hashes []uint64
	var tokens []uint32
	for i := range blocks {
		hashes = append(hashes, uint64(i)+1)
		tokens = append(tokens, uint32(i))
	}
	fold := func(e ...any) {
		t.Helper()
		if _, err := f.fold(packBatch(e...), time.Time{}); err != nil {
			t.Fatal(err)
		}
	}
	fold(storedEvent(hashes[0], 1, tokens[1:], hashes[1:]...))
	if f.mirror.orphans() != blocks-1 || sink.stored > 0 {
		t.Fatalf("%d orphans, %d stored", f.mirror.orphans(), sink.stored)
	}
	fold(storedEvent(nil, 1, tokens[:1], hashes[0]))
	fold(removedEvent(hashes[0]))
	if sink.stored != 2*blocks || sink.removed != 2*blocks || sink.longest > sinkChunk {
		t.Errorf("%d stored, %d removed, %d in one call", sink.stored, sink.removed, sink.longest)
	}
	if cap(f.mirror.prints.dirty) > keepBuffer || cap(f.dec.ev.tokens) > keepBuffer {
		t.Error("large buffers are kept")
	}
}

type chunkSink struct{ stored, removed, longest int }

func (s *chunkSink) Store(_ Tier, keys []uint64) {
	s.stored += len(keys)
	s.longest = max(s.longest, len(keys))
}

func (s *chunkSink) Remove(_ Tier, keys []uint64) {
	s.removed += len(keys)
	s.longest = max(s.longest, len(keys))
}
func (s *chunkSink) Reset(Cause)          {}
func (s *chunkSink) Describe(Description) {}

// TestFoldAllocates nothing in the steady state of a full cache.
func TestFoldAllocates(t *testing.T) {
	payloads := turnover(16, 64, true, true)
	f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
	i := 0
	fold := func() {
		if _, err := f.fold(payloads[i%len(payloads)], time.Time{}); err != nil {
			t.Fatal(err)
		}
		i++
	}
	for range 64 {
		fold()
	}
	if n := testing.AllocsPerRun(200, fold); n > 0 {
		t.Errorf("%v allocations per batch", n)
	}
}

// TestBatchCost: a batch that makes a long chain come and go again and again
// is given up, and the fold works on after the reset.
func TestBatchCost(t *testing.T) {
	const blocks = 2_000
	var hashes []uint64
	var tokens []uint32
	for i := range blocks {
		hashes = append(hashes, uint64(i)+1)
		tokens = append(tokens, uint32(i))
	}
	chain := storedEvent(nil, 1, tokens, hashes...)
	root, gone := storedEvent(nil, 1, tokens[:1], hashes[0]), removedEvent(hashes[0])
	toggles := []any{chain}
	for range 1_000 {
		toggles = append(toggles, gone, root)
	}
	// Orphans, each with another that waits for the next one of a run: storing
	// the run from its end asks for every block whether it follows itself.
	var climb []any
	for i := range uint64(blocks) {
		climb = append(climb, storedEvent(uint64(1_000_000)+i+1, 1, []uint32{1}, 2_000_000+i))
	}
	for i := range uint64(blocks) {
		climb = append(climb, storedEvent(uint64(1_000_000)+i, 1, []uint32{1}, 1_000_000+i+1))
	}
	for _, c := range []struct {
		name   string
		events []any
	}{{"settle", toggles}, {"descend", climb}} {
		t.Run(c.name, func(t *testing.T) {
			sink := newCheckedSink(t)
			f := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: 5 * blocks})
			if _, err := f.fold(packBatch(c.events...), time.Time{}); !errors.Is(err, errCostly) {
				t.Fatalf("error %v after %d steps", err, f.mirror.work)
			}
			if sink.calls > 0 {
				t.Errorf("%d calls", sink.calls)
			}
			if f.mirror.work > f.mirror.maxWork+2*blocks {
				t.Errorf("%d steps, want at most %d and the last event's", f.mirror.work, f.mirror.maxWork)
			}
			f.reset(CauseUnreadable)
			sink.begin()
			if _, err := f.fold(packBatch(chain), time.Time{}); err != nil {
				t.Fatal(err)
			}
			if len(sink.tiers[Device]) != blocks {
				t.Errorf("%d announced, want %d", len(sink.tiers[Device]), blocks)
			}
		})
	}
}

// TestCopiesAreBounded: what tells copies apart comes from the peer, in any
// length and number.
func TestCopiesAreBounded(t *testing.T) {
	long := strings.Repeat("x", maxPlace+1)
	for _, key := range []string{"medium", "locality", "ownership"} {
		f := newFold(foldOptions{pool: "chat", sink: newCheckedSink(t)})
		stats, err := f.fold(packBatch(st("", "a"), known("CPU", "a").with(key, long)), time.Time{})
		if err != nil {
			t.Fatal(err)
		}
		want := dropCopies
		if key == "medium" { // no rule has a name as long
			want = dropMedium
		}
		if stats.dropped[want] != 1 || len(f.mirror.copies.classes) != 1 {
			t.Errorf("%s: %d dropped, %d classes", key, stats.dropped[want], len(f.mirror.copies.classes))
		}
	}

	const maxBlocks = 2
	sink := newCheckedSink(t)
	f := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: maxBlocks})
	stores, removals := []any{st("", "ab")}, []any{rm("ba")}
	for i := range 20 {
		owner := strings.Repeat("o", i+1)
		stores = append(stores, known("CPU", "ab").with("ownership", owner))
		removals = append(removals, knownRemoved("CPU", "ba").with("ownership", owner))
	}
	stats, err := f.fold(packBatch(stores...), time.Time{})
	if err != nil {
		t.Fatal(err)
	}
	if want := 2*20 - maxBlocks*copiesPerBlock; stats.dropped[dropCopies] != want {
		t.Errorf("%d copies dropped, want %d", stats.dropped[dropCopies], want)
	}
	if n := len(f.mirror.copies.more); n > 1+maxBlocks*copiesPerBlock {
		t.Errorf("%d nodes", n)
	}
	sink.begin()
	if _, err := f.fold(packBatch(removals...), time.Time{}); err != nil {
		t.Fatal(err)
	}
	if err := f.mirror.check(); err != nil {
		t.Error(err)
	}
	if len(sink.tiers[Any]) != 0 || f.mirror.present != 0 {
		t.Errorf("%d announced, %d present", len(sink.tiers[Any]), f.mirror.present)
	}
}
