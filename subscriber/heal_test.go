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
			healed, announced := 0, 0
			for seed := range uint64(20) {
				h, a := playHealing(t, seed, newCacheEngine(chainOf(kind.algorithm, kind.seed), kind.tagged, 4, 0), kind.seed)
				healed, announced = healed+h, announced+a
			}
			if healed < 1000 || announced < 10_000 {
				t.Errorf("%d healed, %d announced over all rests: nothing is tested", healed, announced)
			}
		})
	}
}

func playHealing(t *testing.T, seed uint64, e *cacheEngine, hashSeed *string) (healed, announced int) {
	t.Helper()
	rnd := rand.New(rand.NewPCG(seed, 5))
	*e = *newCacheEngine(e.chain, e.tagged, e.size, 16+rnd.IntN(120))
	sink := newCheckedSink(t)
	f := newFold(foldOptions{pool: "chat", sink: sink, hashSeed: hashSeed})
	if rnd.IntN(2) == 0 { // as little memory as tells on evidence that is older than it
		f.heal.gone.size, f.heal.proven.size = 1+rnd.IntN(16), 1+rnd.IntN(16)
	}
	now := time.Unix(1_000, 0)
	f.connected(true)

	system := []Prompt{
		{Tokens: randomTokens(rnd, 4*rnd.IntN(12)+rnd.IntN(4))},
		{Tokens: randomTokens(rnd, 20), Salt: "tenant"},
		{Tokens: randomTokens(rnd, 20), Adapter: "tenant", AdapterPath: adapterPath("tenant")},
		{Tokens: randomTokens(rnd, 20), Adapter: "b"}, // path not known to us
	}
	var talks []Prompt
	var batches [][]byte
	var witnesses []Prompt
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
		healed += f.witness(witnesses[i], now).healed[healedByHash]
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
				witnesses = append(witnesses, p)
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
			rnd := rand.New(rand.NewPCG(1, 2))
			e := newCacheEngine(chainOf(kind.algorithm, kind.seed), kind.tagged, 16, 4_000)
			sink := newCheckedSink(t)
			f := newFold(foldOptions{pool: "chat", sink: sink, hashSeed: kind.seed})
			now := time.Unix(1_000, 0)
			f.connected(true)
			system := randomTokens(rnd, 1_000)
			talks := make([]Prompt, 50)
			for i := range talks {
				talks[i].Tokens = system
			}
			turn := func(i int, heard bool) (cached, credited int) {
				p := &talks[i]
				p.Tokens = append(append([]uint32(nil), p.Tokens...), randomTokens(rnd, 40)...)
				if heard {
					credited = matched(sink, e, *p)
					sink.begin()
					f.witness(*p, now)
				}
				answer := randomTokens(rnd, 60)
				cached = e.run(*p, answer)
				p.Tokens = append(p.Tokens, answer...)
				batch := e.batch()
				if heard {
					sink.begin()
					if _, err := f.fold(batch, now); err != nil {
						t.Fatal(err)
					}
				}
				return cached, credited
			}
			for range 3 {
				for i := range talks {
					turn(i, false)
				}
			}
			turn(0, true)
			if got := matched(sink, e, Prompt{Tokens: append(system[:len(system):len(system)], 1)}); got != 992 {
				t.Errorf("%d tokens of the system prompt are matched after one request, want 992", got)
			}
			for i := 1; i < len(talks); i++ {
				turn(i, true)
			}
			cached, credited := 0, 0
			for i := range talks {
				c, m := turn(i, true)
				if m > c {
					t.Errorf("conversation %d: %d tokens are matched, %d were cached", i, m, c)
				}
				cached, credited = cached+c, credited+m
			}
			if credited*100 < 95*cached || cached < 50_000 {
				t.Errorf("%d of %d cached tokens are matched, want 95 %%", credited, cached)
			}
			t.Logf("%d of %d cached tokens are matched", credited, cached)
		})
	}
}
