package subscriber

import (
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

func randomTokens(rnd *rand.Rand, n int) []uint32 {
	t := make([]uint32, n)
	for i := range t {
		t[i] = rnd.Uint32N(150_000)
	}
	return t
}

// engineKinds are the ways of hashing that can be recomputed.
func engineKinds() []struct {
	name      string
	algorithm blockhash.Algorithm
	seed      *string
	tagged    bool
} {
	zero := "0"
	return []struct {
		name      string
		algorithm blockhash.Algorithm
		seed      *string
		tagged    bool
	}{
		{"sha256", blockhash.AlgorithmSHA256, nil, true},
		{"sha256 untagged with a seed", blockhash.AlgorithmSHA256, &zero, false},
		{"sha256_cbor", blockhash.AlgorithmSHA256CBOR, nil, true},
		{"sha256_cbor untagged", blockhash.AlgorithmSHA256CBOR, nil, false},
		{"xxhash_cbor with a seed", blockhash.AlgorithmXXHashCBOR, &zero, true},
	}
}

// teller tells a fold of prompts: as they are, or hashed elsewhere.
type teller struct {
	f     *fold
	proxy *Proxy // nil: as they are
}

// newTeller is to be made before the fold is connected.
func newTeller(f *fold, hashed bool) teller {
	x := teller{f: f}
	if hashed {
		x.proxy = NewProxy(f.o.pool, func() {})
		f.o.wanted = x.proxy.Set
	}
	return x
}

func (x teller) witness(p Prompt, now time.Time) foldStats {
	if x.proxy == nil {
		return x.f.witness(p, now)
	}
	x.proxy.Witness(p)
	return x.rest(now)
}

// rest tells what has waited for the block size.
func (x teller) rest(now time.Time) (all foldStats) {
	if x.proxy == nil {
		return all
	}
	for {
		h, ok, _ := x.proxy.Next()
		if !ok {
			return all
		}
		st := x.f.hashed(&h, now)
		for m, n := range st.healed {
			all.healed[m] += n
		}
	}
}

// ways has a test run for prompts that are told as they are, and for those that are hashed elsewhere.
func ways(t *testing.T, test func(t *testing.T, hashed bool)) {
	t.Helper()
	t.Run("prompts", func(t *testing.T) { test(t, false) })
	t.Run("hashes", func(t *testing.T) { test(t, true) })
}

func chainOf(a blockhash.Algorithm, seed *string) *blockhash.EngineChain {
	if seed == nil {
		return blockhash.NewEngineChain(a, blockhash.DefaultSeed)
	}
	return blockhash.NewEngineChain(a, *seed)
}

// TestHealNeverOverCredits plays random requests on truthful engines. Now and then batches are lost, which resets the mirror;
// witnesses come early, late or never. Whenever all published batches are applied, nothing is announced that the engine does not hold.
func TestHealNeverOverCredits(t *testing.T) {
	for _, kind := range engineKinds() {
		t.Run(kind.name, func(t *testing.T) {
			t.Parallel()
			ways(t, func(t *testing.T, hashed bool) {
				healed, announced := 0, 0
				for seed := range uint64(10) {
					h, a := playHealing(t, seed, newCacheEngine(chainOf(kind.algorithm, kind.seed), kind.tagged, 4, 0), kind.seed, hashed)
					healed, announced = healed+h, announced+a
				}
				if healed < 1000 || announced < 10_000 {
					t.Errorf("%d healed, %d announced over all rests: nothing is tested", healed, announced)
				}
			})
		})
	}
}

func playHealing(t *testing.T, seed uint64, e *cacheEngine, hashSeed *string, hashed bool) (healed, announced int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 5))
	*e = *newCacheEngine(e.chain, e.tagged, e.size, 16+rnd.IntN(120))
	sink := newCheckedSink(t)
	f := newFold(foldOptions{pool: "chat", sink: sink, hashSeed: hashSeed})
	tell := newTeller(f, hashed)
	if rnd.IntN(2) == 0 { // as little memory as tells on evidence that is older than it
		f.heal.gone.size, f.heal.proven.size = 1+rnd.IntN(16), 1+rnd.IntN(16)
	}
	now := time.Unix(1_000, 0)
	f.connected(true)

	system := []Prompt{
		{Tokens: randomTokens(rnd, 4*rnd.IntN(12)+rnd.IntN(4))},
		{Tokens: randomTokens(rnd, 20), Salt: "tenant"},
		{Tokens: randomTokens(rnd, 20), Adapter: "tenant", AdapterPath: adapterPath("tenant")},
	}
	if !e.tagged { // the path is hashed, and not known to us, in the tagged form
		system = append(system, Prompt{Tokens: randomTokens(rnd, 20), Adapter: "b"})
	}
	var talks []Prompt
	var batches [][]byte
	var witnesses []witness
	apply := func() {
		batch := batches[0]
		batches = batches[1:]
		sink.begin()
		st, err := f.fold(batch, now)
		if err != nil {
			t.Fatal(err)
		}
		healed += st.healed[healedByHash]
	}
	testify := func() {
		i := rnd.IntN(len(witnesses))
		sink.begin()
		w := witnesses[i]
		if w.hashes != nil {
			healed += f.hashed(w.hashes, now).healed[healedByHash]
		} else {
			healed += f.witness(w.Prompt, now).healed[healedByHash]
		}
		witnesses = append(witnesses[:i], witnesses[i+1:]...)
	}
	for range 400 {
		now = now.Add(time.Duration(rnd.IntN(3000)) * time.Millisecond)
		switch r := rnd.IntN(100); {
		case r < 2:
			e.clear()
		case r < 3: // what was published is lost with the engine
			e.restart()
			e.events, batches = nil, nil
			sink.begin()
			f.reset(CauseBackwards)
		case r < 6: // a gap: some batches are lost, the rest is applied after a reset
			if e.events != nil {
				batches = append(batches, e.batch())
			}
			batches = batches[rnd.IntN(len(batches)+1):]
			sink.begin()
			f.reset(CauseGap)
		default:
			talk := rnd.IntN(len(talks) + 1)
			if talk == len(talks) {
				if len(talks) > 12 {
					talks = talks[1:]
					talk--
				}
				talks = append(talks, system[rnd.IntN(len(system))])
			}
			p := talks[talk]
			p.Tokens = append(append([]uint32(nil), p.Tokens...), randomTokens(rnd, rnd.IntN(20))...)
			if len(p.Tokens) == 0 {
				continue
			}
			if rnd.IntN(5) > 0 {
				if hashed { // by what is wanted at this time, or once that is known
					tell.proxy.Witness(p)
				} else {
					witnesses = append(witnesses, witness{Prompt: p})
				}
			}
			if rnd.IntN(10) > 0 { // else it ran elsewhere
				answer := randomTokens(rnd, rnd.IntN(12))
				e.run(p, answer)
				p.Tokens = append(p.Tokens, answer...)
			}
			talks[talk] = p
			if e.events != nil {
				batches = append(batches, e.batch())
			}
		}
		for hashed {
			h, ok, _ := tell.proxy.Next()
			if !ok {
				break
			}
			witnesses = append(witnesses, witness{hashes: &h})
		}
		for len(witnesses) > 0 && rnd.IntN(3) > 0 {
			testify()
		}
		for len(batches) > 0 && rnd.IntN(3) > 0 {
			apply()
		}
		if rnd.IntN(4) > 0 {
			continue
		}
		if e.events != nil {
			batches = append(batches, e.batch())
		}
		for len(batches) > 0 {
			apply()
		}
		sink.begin()
		f.tick(now)
		held := e.held()
		for key := range sink.tiers[Any] {
			if !held[key] {
				t.Fatalf("seed %d: %x is announced and not held", seed, key)
			}
		}
		announced += len(sink.tiers[Any])
		if err := f.mirror.check(); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
	return healed, announced
}

// matched is how many of a prompt's leading tokens are announced.
func matched(sink *checkedSink, e *cacheEngine, p Prompt) (tokens int) {
	_, keys := e.hashes(p)
	for i := 0; i < (len(p.Tokens)-1)/e.size && sink.tiers[Any][keys[i]]; i++ {
		tokens += e.size
	}
	return tokens
}

// TestHealAfterReset: an engine runs hot with a system prompt that is never evicted and 50 conversations on it when the mirror is
// reset. The system prompt is matched again after one request, and what the engine has cached after one more turn of each.
func TestHealAfterReset(t *testing.T) {
	for _, kind := range engineKinds() {
		t.Run(kind.name, func(t *testing.T) {
			ways(t, func(t *testing.T, hashed bool) {
				rnd := rand.New(rand.NewPCG(1, 2))
				e := newCacheEngine(chainOf(kind.algorithm, kind.seed), kind.tagged, 16, 4_000)
				sink := newCheckedSink(t)
				f := newFold(foldOptions{pool: "chat", sink: sink, hashSeed: kind.seed})
				now := time.Unix(1_000, 0)
				tell := newTeller(f, hashed)
				f.connected(true)
				x := newTurns(t, e, tell, sink, rnd, 50)
				for range 3 {
					x.round(now, false)
				}
				x.turn(0, now, true)
				if got := matched(sink, e, Prompt{Tokens: append(x.system[:len(x.system):len(x.system)], 1)}); got != 992 {
					t.Errorf("%d tokens of the system prompt are matched after one request, want 992", got)
				}
				for i := 1; i < len(x.all); i++ {
					x.turn(i, now, true)
				}
				cached, credited := x.round(now, true)
				if credited*100 < 95*cached || cached < 50_000 || credited > cached {
					t.Errorf("%d of %d cached tokens are matched, want 95 %%", credited, cached)
				}
				t.Logf("%d of %d cached tokens are matched", credited, cached)
			})
		})
	}
}

// TestHealByContent: as TestHealAfterReset, where nobody can compute the engine's hashes. What is taken for resident is withdrawn after a time without
// events that show it again.
func TestHealByContent(t *testing.T) {
	zero := "0"
	for _, tt := range []struct {
		name    string
		chain   *blockhash.EngineChain
		seed    *string
		adapter string
		first   bool // a plain first block shows that the hashes cannot be computed
	}{
		{name: "drawn hashes", first: true},
		{name: "drawn hashes, no first block"},
		{name: "another seed", chain: chainOf(blockhash.AlgorithmSHA256, &zero), first: true},
		{name: "adapter whose path is not known", chain: chainOf(blockhash.AlgorithmSHA256, nil), adapter: "sql"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			ways(t, func(t *testing.T, hashed bool) {
				rnd := rand.New(rand.NewPCG(1, 2))
				e := newCacheEngine(tt.chain, true, 16, 4_000)
				sink := newCheckedSink(t)
				f := newFold(foldOptions{pool: "chat", sink: sink, hashSeed: tt.seed})
				now := time.Unix(1_000, 0)
				tell := newTeller(f, hashed)
				f.connected(true)
				talks := newTurns(t, e, tell, sink, rnd, 50)
				for i := range talks.all {
					talks.all[i].Adapter = tt.adapter
				}
				for range 2 {
					talks.round(now, false)
				}
				if tt.first {
					e.run(Prompt{Tokens: randomTokens(rnd, 40)}, nil)
					talks.apply(now)
				}
				talks.turn(0, now, true)
				if !tt.first && tt.adapter == "" { // some that the runs find but the hashes do not
					most := misfitsMost
					if hashed {
						most++ // the first one waits for the block size, and so comes after its event
					}
					for i := 1; i < most; i++ {
						talks.turn(i, now, true)
					}
				}
				if got := matched(sink, e, Prompt{Adapter: tt.adapter, Tokens: append(talks.system[:len(talks.system):len(talks.system)], 1)}); got != 992 {
					t.Errorf("%d tokens of the system prompt are matched after one request, want 992", got)
				}
				talks.round(now, true)
				cached, credited := talks.round(now, true)
				if credited*100 < 95*cached || cached < 50_000 || credited > cached {
					t.Errorf("%d of %d cached tokens are matched, want 95 %%", credited, cached)
				}
				t.Logf("%d of %d cached tokens are matched", credited, cached)

				announced := len(sink.tiers[Any])
				for range 3 { // one conversation goes on
					now = now.Add(assumedFor / 2)
					talks.turn(3, now, true)
					sink.begin()
					f.tick(now)
				}
				if got := matched(sink, e, talks.all[3]); got < len(talks.all[3].Tokens)*9/10 {
					t.Errorf("%d of %d tokens of the one that goes on are matched", got, len(talks.all[3].Tokens))
				}
				if got := matched(sink, e, talks.all[5]); got > 1_000 {
					t.Errorf("%d tokens of one that rests are matched after %v", got, 3*assumedFor/2)
				}
				if n := len(sink.tiers[Any]); n > announced/2 {
					t.Errorf("%d of %d blocks are still announced", n, announced)
				}
				now = now.Add(2 * assumedFor)
				sink.begin()
				f.tick(now)
				if n := len(f.mirror.lapses.heap); n != 0 {
					t.Errorf("%d copies are assumed after %v", n, 2*assumedFor)
				}
				if err := f.mirror.check(); err != nil {
					t.Fatal(err)
				}
			})
		})
	}
}

// turns are conversations on one system prompt.
type turns struct {
	t      *testing.T
	e      *cacheEngine
	tell   teller
	sink   *checkedSink
	rnd    *rand.Rand
	system []uint32
	all    []Prompt
}

func newTurns(t *testing.T, e *cacheEngine, tell teller, sink *checkedSink, rnd *rand.Rand, n int) *turns {
	x := &turns{t: t, e: e, tell: tell, sink: sink, rnd: rnd, system: randomTokens(rnd, 1_000), all: make([]Prompt, n)}
	for i := range x.all {
		x.all[i].Tokens = x.system
	}
	return x
}

// turn is one turn of a conversation; when heard, the mirror learns of it. It returns the prompt tokens that were cached, and those that were announced.
func (x *turns) turn(i int, now time.Time, heard bool) (cached, credited int) {
	x.t.Helper()
	p := &x.all[i]
	p.Tokens = append(append([]uint32(nil), p.Tokens...), randomTokens(x.rnd, 80)...)
	if heard {
		credited = matched(x.sink, x.e, *p)
		x.sink.begin()
		x.tell.witness(*p, now)
	}
	answer := randomTokens(x.rnd, 60)
	cached = x.e.run(*p, answer)
	p.Tokens = append(p.Tokens, answer...)
	if heard {
		x.apply(now)
	} else {
		x.e.events = nil
	}
	return cached, credited
}

func (x *turns) apply(now time.Time) {
	x.t.Helper()
	x.sink.begin()
	if _, err := x.tell.f.fold(x.e.batch(), now); err != nil {
		x.t.Fatal(err)
	}
	x.sink.begin()
	x.tell.rest(now)
}

// round is one turn of each.
func (x *turns) round(now time.Time, heard bool) (cached, credited int) {
	x.t.Helper()
	for i := range x.all {
		c, m := x.turn(i, now, heard)
		cached, credited = cached+c, credited+m
	}
	return cached, credited
}
