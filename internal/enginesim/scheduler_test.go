package enginesim

import (
	"maps"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

func newTestScheduler(blocks int) (*scheduler, *hasher) {
	s := &scheduler{blockSize: 4, maxStepTokens: 32, maxRunning: 6, cache: newCache(blocks, Map)}
	return s, &hasher{blockSize: 4, seed: blockhash.NoneHash("0"), tagged: true}
}

// copies counts the resident blocks of each digest.
func copies(c *cache) map[blockhash.Digest]int {
	m := make(map[blockhash.Digest]int)
	for _, b := range c.blocks {
		if b.cached {
			m[b.digest]++
		}
	}
	return m
}

// foldEvents is what a subscriber knows: how many copies of each block it was told of and not told to forget.
func foldEvents(t *testing.T, m map[blockhash.Digest]int, events []event) {
	t.Helper()
	for _, e := range events {
		switch e.kind {
		case allBlocksCleared:
			clear(m)
		case blockStored:
			if len(e.tokens) != len(e.hashes)*e.blockSize {
				t.Fatalf("%d tokens for %d blocks of %d", len(e.tokens), len(e.hashes), e.blockSize)
			}
			for _, h := range e.hashes {
				m[h]++
			}
		case blockRemoved:
			for _, h := range e.hashes {
				if m[h]--; m[h] < 0 {
					t.Fatalf("removed a block that was not stored")
				}
				if m[h] == 0 {
					delete(m, h)
				}
			}
		}
	}
}

// TestRandomTraffic runs overlapping prompts through a cache that is too small for them, with aborts and resets, and wants
// the folded events to equal the cache's content after every step, and nothing to be held at the end.
func TestRandomTraffic(t *testing.T) {
	rng := rand.New(rand.NewPCG(3, 4))
	s, h := newTestScheduler(24)
	known := make(map[blockhash.Digest]int)
	ended, aborted := 0, 0
	for range 10000 {
		switch op := rng.IntN(100); {
		case op < 15 && len(s.waiting) < 10:
			prompt := make([]uint32, 1+rng.IntN(40))
			for i := range prompt {
				prompt[i] = uint32(i + rng.IntN(8)/7)
			}
			var salt string
			if rng.IntN(4) == 0 {
				salt = "s"
			}
			q := newSequence(h, nil, salt, prompt, 1+rng.IntN(40))
			q.next = func(i int) uint32 { return uint32(i % 3) }
			s.add(q)
		case op < 16:
			if live := slices.Concat(s.running, s.waiting); len(live) > 0 && s.abort(live[rng.IntN(len(live))]) {
				aborted++
			}
		case op < 19:
			s.reset()
		default:
			st := s.schedule()
			foldEvents(t, known, s.cache.takeEvents())
			if got := copies(s.cache); !maps.Equal(got, known) {
				t.Fatalf("cache and events differ:\n%s", cmp.Diff(got, known))
			}
			total := 0
			for _, p := range st.parts {
				total += p.tokens
			}
			if total > s.maxStepTokens || len(s.running) > s.maxRunning {
				t.Fatalf("step of %d tokens, %d running", total, len(s.running))
			}
			if total == 0 && len(s.running)+len(s.waiting) > 0 {
				t.Fatalf("nothing scheduled with %d running, %d waiting", len(s.running), len(s.waiting))
			}
			for _, r := range s.complete(st) {
				if r.finish != "" {
					ended++
				}
			}
		}
	}
	for st := s.schedule(); len(st.parts) > 0; st = s.schedule() {
		s.complete(st)
	}
	if s.cache.free != s.cache.usable() {
		t.Errorf("%d of %d blocks free at the end", s.cache.free, s.cache.usable())
	}
	if ended < 500 || aborted < 50 || s.stats.preempted < 100 {
		t.Errorf("%d ended, %d aborted, %d preempted: the test is too tame", ended, aborted, s.stats.preempted)
	}
}

// TestHits wants the cached tokens of a prompt that is sent after others.
func TestHits(t *testing.T) {
	count := func(n int) []uint32 {
		p := make([]uint32, n)
		for i := range p {
			p[i] = uint32(i)
		}
		return p
	}
	a := &adapter{id: 1, name: "a", path: "p"}
	for name, tc := range map[string]struct {
		first, second *adapter
		salt, salt2   string
		prompt, again []uint32
		answer        int
		want          int
	}{
		"same prompt":                            {prompt: count(10), again: count(10), want: 8},
		"exact multiple computes its last block": {prompt: count(12), again: count(12), want: 8},
		"one token":                              {prompt: count(1), again: count(1), want: 0},
		"below a block":                          {prompt: count(3), again: count(3), want: 0},
		"extended":                               {prompt: count(9), again: count(30), want: 8},
		"shorter":                                {prompt: count(30), again: count(9), want: 8},
		"other start":                            {prompt: count(12), again: append([]uint32{9}, count(12)...), want: 0},
		"same salt":                              {prompt: count(12), again: count(13), salt: "s", salt2: "s", want: 12},
		"other salt":                             {prompt: count(12), again: count(13), salt: "s", salt2: "t", want: 0},
		"salt and none":                          {prompt: count(12), again: count(13), salt: "s", want: 0},
		"same adapter":                           {prompt: count(12), again: count(13), first: a, second: a, want: 12},
		"adapter and none":                       {prompt: count(12), again: count(13), first: a, want: 0},
		"answer fills blocks, its last token not": {prompt: count(4), again: count(13), answer: 8, want: 8},
		"answer of one more token":                {prompt: count(4), again: count(13), answer: 9, want: 12},
	} {
		t.Run(name, func(t *testing.T) {
			s, h := newTestScheduler(64)
			run := func(a *adapter, salt string, prompt []uint32, limit int) *sequence {
				q := newSequence(h, a, salt, prompt, limit)
				q.next = func(i int) uint32 { return uint32(len(prompt) + i) }
				s.add(q)
				for st := s.schedule(); len(st.parts) > 0; st = s.schedule() {
					s.complete(st)
				}
				return q
			}
			run(tc.first, tc.salt, tc.prompt, max(1, tc.answer))
			if q := run(tc.second, tc.salt2, tc.again, 1); q.cached != tc.want {
				t.Errorf("%d cached tokens, want %d", q.cached, tc.want)
			}
		})
	}
}

// TestChunkedPrefill wants a long prompt to share steps with decode and a second prompt to wait for its turn.
func TestChunkedPrefill(t *testing.T) {
	s, h := newTestScheduler(64)
	add := func(n int, first uint32) *sequence {
		p := make([]uint32, n)
		for i := range p {
			p[i] = first + uint32(i)
		}
		q := newSequence(h, nil, "", p, 3)
		q.next = func(int) uint32 { return 7 }
		s.add(q)
		return q
	}
	add(10, 0)
	s.complete(s.schedule())
	add(70, 100)
	add(5, 200)
	var got [][2]int
	for st := s.schedule(); len(st.parts) > 0; st = s.schedule() {
		got = append(got, [2]int{st.prefill, st.decode})
		s.complete(st)
	}
	// 70 = 31 + 31 + 8, the first two beside the first prompt's answer; the third prompt shares the step of the 8.
	want := [][2]int{{31, 1}, {31, 1}, {13, 0}, {0, 2}, {0, 2}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("prefill and decode of the steps:\n%s", d)
	}
}
