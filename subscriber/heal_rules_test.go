package subscriber

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// bench is a mirror that missed what an engine holds: a prompt of 8 blocks of 16 tokens, of which 6 were there when it was reset.
type bench struct {
	t     *testing.T
	e     *cacheEngine
	f     *fold
	tell  teller
	sink  *checkedSink
	now   time.Time
	p     Prompt
	hash  []uint64
	keys  []uint64
	event fields // stores blocks 6 and 7 under block 5
}

func newBench(t *testing.T, p Prompt) *bench { return newBenchTold(t, p, false) }

// newBenchTold has a mirror that is told of prompts as they are, or hashed elsewhere.
func newBenchTold(t *testing.T, p Prompt, hashed bool) *bench {
	b := &bench{t: t, e: newCacheEngine(chainOf(blockhash.AlgorithmSHA256, nil), true, 16, 1_000), sink: newCheckedSink(t), now: time.Unix(1_000, 0)}
	b.f = newFold(foldOptions{pool: "chat", sink: b.sink})
	b.tell = newTeller(b.f, hashed)
	b.f.connected(true)
	p.Tokens = randomTokens(rand.New(rand.NewPCG(7, 7)), 8*16)
	b.p = p
	b.hash, b.keys = b.e.hashes(p)
	begin := p
	begin.Tokens = p.Tokens[:6*16]
	b.e.run(begin, nil)
	b.e.events = nil
	b.e.run(p, nil)
	b.event = b.e.events[0].(fields)
	return b
}

func (b *bench) fold(events ...any) foldStats {
	b.t.Helper()
	b.sink.begin()
	st, err := b.f.fold(packBatch(events...), b.now)
	if err != nil {
		b.t.Fatal(err)
	}
	b.sink.begin()
	b.tell.rest(b.now)
	return st
}

func (b *bench) witness(p Prompt) foldStats {
	b.sink.begin()
	return b.tell.witness(p, b.now)
}

func (b *bench) tick() foldStats {
	b.sink.begin()
	return b.f.tick(b.now)
}

// matched is how many of the prompt's leading blocks are announced.
func (b *bench) matched() int {
	n := slices.IndexFunc(b.keys, func(k uint64) bool { return !b.sink.tiers[Any][k] })
	if n < 0 {
		return len(b.keys)
	}
	return n
}

func TestHealingRules(t *testing.T) {
	plain, sql := Prompt{}, Prompt{Adapter: "sql", AdapterPath: adapterPath("sql")}
	unknowable := storedEvent(nil, 16, make([]uint32, 16), 99)
	other := func(b *bench, from int) Prompt { // another prompt of the same tokens from a block on
		p := b.p
		p.Tokens = slices.Clone(p.Tokens)
		for i := range from * 16 {
			p.Tokens[i]++
		}
		return p
	}
	for _, tt := range []struct {
		name    string
		p       Prompt
		do      func(b *bench)
		matched int
		deaf    bool // prompts are not wanted at the end
	}{
		{name: "prompt, then event", p: plain, do: func(b *bench) { b.witness(b.p); b.fold(b.event) }, matched: 8},
		{name: "event, then prompt", p: plain, do: func(b *bench) { b.fold(b.event); b.witness(b.p) }, matched: 8},
		{name: "adapter", p: sql, do: func(b *bench) { b.fold(b.event); b.witness(b.p) }, matched: 8},
		{name: "salt", p: Prompt{Salt: "s"}, do: func(b *bench) { b.fold(b.event); b.witness(b.p) }, matched: 8},
		{name: "prompt alone", p: plain, do: func(b *bench) { b.fold(unknowable); b.witness(b.p) }},
		{name: "another prompt", p: plain, do: func(b *bench) { b.fold(b.event); b.witness(other(b, 1)) }},
		{name: "another salt", p: Prompt{Salt: "s"}, do: func(b *bench) { b.fold(b.event); b.p.Salt = "t"; b.witness(b.p) }},
		{name: "another path of the adapter", p: sql, do: func(b *bench) { b.fold(b.event); b.p.AdapterPath = "x"; b.witness(b.p) }},
		{name: "only the part before the orphan", p: plain, do: func(b *bench) { b.fold(b.event); b.p.Tokens = b.p.Tokens[:6*16]; b.witness(b.p) }, matched: 8},
		{name: "not all of that part", p: plain, do: func(b *bench) { b.fold(b.event); b.p.Tokens = b.p.Tokens[:6*16-1]; b.witness(b.p) }},
		{name: "a removal after the event", p: plain, do: func(b *bench) { b.fold(b.event, removedEvent(b.hash[2])); b.witness(b.p) }, matched: 2},
		{name: "a removal before the event", p: plain, do: func(b *bench) { b.fold(removedEvent(b.hash[2]), b.event); b.witness(b.p) }, matched: 8},
		{name: "a removal after the healing", p: plain, do: func(b *bench) {
			b.witness(b.p)
			b.fold(b.event)
			b.fold(removedEvent(b.hash[2]))
		}, matched: 2},
		{name: "a removal in another group", p: plain, do: func(b *bench) {
			b.witness(b.p)
			b.fold(b.event)
			b.fold(removedEvent(b.hash[2]).with("group_idx", 5))
		}, matched: 2},
		{name: "a removal elsewhere", p: plain, do: func(b *bench) {
			b.witness(b.p)
			b.fold(b.event)
			b.fold(removedEvent(b.hash[2]).with("medium", "CPU"))
		}, matched: 8},
		{name: "a copy is added after the healing, and one is removed", p: plain, do: func(b *bench) {
			b.witness(b.p)
			b.fold(b.event)
			b.fold(b.event.with("parent_block_hash", b.hash[4]).with("block_hashes", b.hash[5:6]).with("token_ids", b.p.Tokens[5*16:6*16]).with("extra_keys", []any{nil}))
			b.fold(removedEvent(b.hash[5]))
		}, matched: 8},
		{name: "two groups of full attention", p: plain, do: func(b *bench) {
			b.witness(b.p)
			b.fold(b.event, b.event.with("group_idx", 1))
		}},
		{name: "the removal is forgotten", p: plain, do: func(b *bench) {
			b.f.heal.gone.size = 4
			b.fold(b.event, removedEvent(b.hash[2]))
			for i := range uint64(9) {
				b.fold(removedEvent(i))
			}
			b.witness(b.p)
		}},
		{name: "cleared", p: plain, do: func(b *bench) { b.witness(b.p); b.fold(clearedEvent(), b.event) }, deaf: true},
		{name: "cleared after the event", p: plain, do: func(b *bench) { b.fold(b.event, clearedEvent()); b.witness(b.p) }, deaf: true},
		{name: "reset after the event", p: plain, do: func(b *bench) { b.fold(b.event); b.sink.begin(); b.f.reset(CauseGap); b.witness(b.p) }},
		{name: "reset, and another event", p: plain, do: func(b *bench) {
			b.witness(b.p)
			b.f.reset(CauseGap)
			b.fold(b.event)
			b.witness(b.p)
		}, matched: 8},
		{name: "replayed from the first batch", p: plain, do: func(b *bench) { b.f.history(true); b.fold(b.event); b.witness(b.p) }, deaf: true},
		{name: "replayed, then batches are lost before any was applied", p: plain, do: func(b *bench) {
			b.f.history(true)
			b.f.history(false)
			b.fold(b.event)
			b.witness(b.p)
		}, matched: 8},
		{name: "not connected", p: plain, do: func(b *bench) { b.f.connected(false) }, deaf: true},
		{name: "a larger block size", p: plain, do: func(b *bench) {
			b.fold(b.event)
			b.fold(storedEvent(nil, 32, make([]uint32, 32), 7))
			b.witness(b.p)
		}},
		{name: "the prompt is too old", p: plain, do: func(b *bench) {
			b.fold(unknowable.with("block_hashes", []uint64{b.hash[0] + 1}).with("parent_block_hash", 1))
			b.witness(b.p)
			b.now = b.now.Add(shelfAge)
			b.tick()
			b.now = b.now.Add(shelfAge)
			b.tick()
			b.fold(b.event)
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ways(t, func(t *testing.T, hashed bool) {
				b := newBenchTold(t, tt.p, hashed)
				wanted := b.f.asked.yes
				b.f.o.wanted = func(w Want) {
					wanted = w.Yes
					if hashed {
						b.tell.proxy.Set(w)
					}
				}
				b.f.connected(true)
				tt.do(b)
				if got := b.matched(); got != tt.matched {
					t.Errorf("%d blocks are announced, want %d", got, tt.matched)
				}
				if wanted == tt.deaf {
					t.Errorf("prompts are wanted: %v", wanted)
				}
				if err := b.f.mirror.check(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestRunRules: what is assumed where hashes cannot be computed.
func TestRunRules(t *testing.T) {
	plain := Prompt{}
	foreign := func(b *bench) { b.e.chain = nil } // an engine whose hashes nobody can compute
	for _, tt := range []struct {
		name    string
		do      func(b *bench)
		matched int
	}{
		{"prompt, then event", func(b *bench) { b.witness(b.p); b.fold(b.event) }, 8},
		{"event, then prompt", func(b *bench) { b.fold(b.event); b.witness(b.p) }, 8},
		{"event long before the prompt", func(b *bench) { b.fold(b.event); b.now = b.now.Add(assumedFor); b.witness(b.p) }, 0},
		{"the parent is removed", func(b *bench) { b.witness(b.p); b.fold(b.event); b.fold(removedEvent(b.hash[5])) }, 5},
		{"the parent is removed before the prompt", func(b *bench) { b.fold(b.event); b.fold(removedEvent(b.hash[5])); b.witness(b.p) }, 0},
		{"another ancestor is removed: not seen", func(b *bench) { b.witness(b.p); b.fold(b.event); b.fold(removedEvent(b.hash[2])) }, 8},
		{"the parent is computed again", func(b *bench) {
			b.witness(b.p)
			b.fold(b.event)
			b.fold(storedEvent(b.hash[4], 16, b.p.Tokens[5*16:6*16], b.hash[5]))
		}, 8},
		{"the parent is computed again, and its copies are removed", func(b *bench) {
			b.witness(b.p)
			b.fold(b.event)
			b.fold(storedEvent(b.hash[4], 16, b.p.Tokens[5*16:6*16], b.hash[5]))
			b.fold(removedEvent(b.hash[5]), removedEvent(b.hash[5]))
		}, 5},
		{"the parent is computed again, and its parent is removed", func(b *bench) {
			b.witness(b.p)
			b.fold(b.event)
			b.fold(storedEvent(b.hash[4], 16, b.p.Tokens[5*16:6*16], b.hash[5]))
			b.fold(removedEvent(b.hash[4]))
		}, 4},
		{"more than the parent is computed again", func(b *bench) {
			b.witness(b.p)
			b.fold(b.event)
			b.fold(storedEvent(b.hash[3], 16, b.p.Tokens[4*16:6*16], b.hash[4:6]...))
		}, 8},
		{"after its time", func(b *bench) {
			b.witness(b.p)
			b.fold(b.event)
			b.now = b.now.Add(assumedFor)
			b.tick()
		}, 0},
		{"a salt in an event", func(b *bench) {
			b.fold(storedEvent(nil, 16, make([]uint32, 16), 98).with("extra_keys", []any{[]any{"s"}}))
			b.witness(b.p)
			b.fold(b.event)
		}, 0},
		{"a salt in a prompt", func(b *bench) {
			salted := b.p
			salted.Salt = "s"
			b.witness(salted)
			b.witness(b.p)
			b.fold(b.event)
		}, 0},
		{"too short a run", func(b *bench) {
			b.witness(b.p)
			b.fold(b.event.with("block_hashes", b.hash[6:7]).with("token_ids", b.p.Tokens[6*16:7*16]).with("extra_keys", []any{nil}))
		}, 0},
		{"a run in two events", func(b *bench) {
			b.witness(b.p)
			one := b.event.with("extra_keys", []any{nil})
			b.fold(one.with("block_hashes", b.hash[6:7]).with("token_ids", b.p.Tokens[6*16:7*16]))
			b.fold(one.with("block_hashes", b.hash[7:8]).with("token_ids", b.p.Tokens[7*16:8*16]).with("parent_block_hash", b.hash[6]))
		}, 8},
		{"two positions", func(b *bench) {
			again := b.p
			again.Tokens = append(slices.Clone(b.p.Tokens), b.p.Tokens[6*16:]...)
			b.witness(again)
			b.fold(b.event)
		}, 0},
		{"two prompts", func(b *bench) {
			b.witness(b.p)
			other := b.p
			other.Tokens = slices.Clone(b.p.Tokens)
			other.Tokens[0]++
			b.witness(other)
			b.fold(b.event)
		}, 0},
		{"two orphans", func(b *bench) {
			b.fold(b.event.with("parent_block_hash", 5).with("block_hashes", []uint64{6, 7}))
			b.witness(b.p)
			b.fold(b.event)
		}, 8}, // the first one, wrongly for a while; the second is not assumed
		{"another adapter", func(b *bench) {
			b.witness(b.p)
			b.fold(b.event.with("lora_name", "sql").with("extra_keys", []any{[]any{"sql"}, []any{"sql"}}))
		}, 0},
		{"the beginning of a prompt", func(b *bench) {
			later := b.p
			later.Tokens = b.p.Tokens[6*16:]
			b.witness(later)
			b.fold(b.event)
		}, 0},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ways(t, func(t *testing.T, hashed bool) {
				b := newBenchTold(t, plain, hashed)
				foreign(b)
				b.hash, b.keys = b.e.hashes(b.p)
				b.event = storedEvent(b.hash[5], 16, b.p.Tokens[6*16:], b.hash[6:]...)
				b.fold(storedEvent(nil, 16, make([]uint32, 16), 99)) // fits no chain
				if !b.f.heal.hashing.hopeless() {
					t.Fatal("there is hope")
				}
				tt.do(b)
				if got := b.matched(); got != tt.matched {
					t.Errorf("%d blocks are announced, want %d", got, tt.matched)
				}
				if err := b.f.mirror.check(); err != nil {
					t.Error(err)
				}
			})
		})
	}
}

// TestTrialsAreBounded: prompts beyond what attempts may cost in a second wait, and are tried later.
func TestTrialsAreBounded(t *testing.T) {
	b := newBench(t, Prompt{})
	b.fold(storedEvent(1, 16, make([]uint32, 16), 2)) // the block size
	rnd := rand.New(rand.NewPCG(3, 3))
	kept, n := 0, 0
	for kept < n+1 && n < 200 {
		st := b.witness(Prompt{Tokens: randomTokens(rnd, 16*1024)}) // 1024 blocks under three chains
		n++
		kept += st.witnesses[witnessKept]
	}
	if want := trialSecond / (3 * 1024); kept != want {
		t.Errorf("%d of %d prompts are tried in a second, want %d", kept, n, want)
	}
	if got := len(b.f.heal.waiting.prompts); got != waitTokens/(16*1024) {
		t.Errorf("%d prompts wait, want %d", got, waitTokens/(16*1024))
	}
	b.now = b.now.Add(time.Second)
	if st := b.tick(); st.witnesses[witnessKept] != waitTokens/(16*1024) || len(b.f.heal.waiting.prompts) != 0 {
		t.Errorf("a second later %v; %d wait", st.witnesses, len(b.f.heal.waiting.prompts))
	}
	b.now = b.now.Add(time.Second)
	if st := b.witness(Prompt{Tokens: randomTokens(rnd, 16*(trialPrompt+1))}); st.witnesses[witnessKept] != 1 || b.f.heal.hashing.spent > trialPrompt {
		t.Errorf("a long prompt: %v, %d blocks tried", st.witnesses, b.f.heal.hashing.spent)
	}
}

// TestShelvesAreBounded: many long prompts keep no more than two shelves hold, and an odd one is cut.
func TestShelvesAreBounded(t *testing.T) {
	b := newBench(t, Prompt{})
	rnd := rand.New(rand.NewPCG(3, 3))
	b.e.run(Prompt{Tokens: randomTokens(rnd, 20)}, nil)
	b.sink.begin()
	if _, err := b.f.fold(b.e.batch(), b.now); err != nil {
		t.Fatal(err)
	}
	for i := range 40 {
		b.witness(Prompt{Tokens: randomTokens(rnd, 16*(1000+i*500))})
		for _, s := range b.f.heal.shelves {
			if s != nil && s.len() > shelfBlocks {
				t.Fatalf("%d blocks on a shelf", s.len())
			}
		}
	}
	if s := b.f.heal.shelves; s[0] == nil || s[1] == nil {
		t.Error("one shelf: nothing is tested")
	}
}

func TestAges(t *testing.T) {
	a := ages[int]{size: 2}
	turned := 0
	for i := range uint64(7) {
		if a.put(i, int(i)) {
			turned++
		}
	}
	if a.put(6, 60) {
		t.Error("a key that is there begins a generation")
	}
	var have []uint64
	for i := range uint64(8) {
		if _, ok := a.get(i); ok {
			have = append(have, i)
		}
	}
	if v, _ := a.get(6); v != 60 || turned != 3 || !slices.Equal(have, []uint64{4, 5, 6}) {
		t.Errorf("value %d, %d generations, keys %v", v, turned, have)
	}
	a.clear()
	if _, ok := a.get(6); ok {
		t.Error("a cleared one has a key")
	}
}
