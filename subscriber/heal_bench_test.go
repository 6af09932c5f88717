package subscriber

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// BenchmarkWitness is the cost of one prompt of 4,096 tokens in blocks of 16, on the goroutine that applies events.
func BenchmarkWitness(b *testing.B) {
	const tokens, size = 4096, 16
	rnd := rand.New(rand.NewPCG(1, 1))
	now := time.Unix(1_000, 0)
	start := func() (*fold, *cacheEngine) {
		e := newCacheEngine(chainOf(blockhash.AlgorithmSHA256, nil), true, size, 100_000)
		f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
		f.connected(true)
		e.run(Prompt{Tokens: randomTokens(rnd, 40)}, nil)
		if _, err := f.fold(e.batch(), now); err != nil {
			b.Fatal(err)
		}
		return f, e
	}
	prompts := make([]Prompt, 64)
	shared := randomTokens(rnd, tokens/2)
	for _, kind := range []string{"ever new", "half shared", "the same", "announced"} {
		f, e := start()
		for i := range prompts {
			prompts[i].Tokens = randomTokens(rnd, tokens)
			if kind == "half shared" {
				copy(prompts[i].Tokens, shared)
			}
		}
		if kind == "announced" {
			e.run(prompts[0], nil)
			if _, err := f.fold(e.batch(), now); err != nil {
				b.Fatal(err)
			}
		}
		b.Run("prompt="+kind, func(b *testing.B) {
			b.ReportAllocs()
			n := 0
			for b.Loop() {
				if kind == "ever new" || kind == "half shared" {
					n++
					p := prompts[n%len(prompts)].Tokens
					p[len(p)/2] = uint32(n)
					if kind == "ever new" {
						p[0] = uint32(n)
					}
				}
				f.witness(prompts[n%len(prompts)], now)
			}
		})
	}
}

// BenchmarkOrphan is the cost of an event of 8 blocks whose parent is not known, whether there is nothing to heal any more, the parent is in no prompt, or its
// 256 blocks of 16 tokens are in one.
func BenchmarkOrphan(b *testing.B) {
	const size = 16
	rnd := rand.New(rand.NewPCG(1, 1))
	now := time.Unix(1_000, 0)
	for _, kind := range []string{"complete", "no prompt", "prompt"} {
		b.Run("history="+kind, func(b *testing.B) {
			e := newCacheEngine(chainOf(blockhash.AlgorithmSHA256, nil), true, size, 100_000)
			p := Prompt{Tokens: randomTokens(rnd, 256*size)}
			e.run(p, nil)
			e.events = nil
			longer := p
			longer.Tokens = append(p.Tokens[:len(p.Tokens):len(p.Tokens)], randomTokens(rnd, 8*size)...)
			e.run(longer, nil)
			batch := e.batch()
			f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
			f.connected(true)
			healed, n := 0, 0
			b.ReportAllocs()
			for b.Loop() {
				b.StopTimer()
				f.mirror.clear()
				f.heal.restart()
				f.learned.blockSize = size
				switch kind {
				case "complete":
					f.heal.complete = true
				case "prompt":
					f.witness(longer, now)
				}
				b.StartTimer()
				st, err := f.fold(batch, now)
				if err != nil {
					b.Fatal(err)
				}
				healed += st.healed[healedByHash]
				n++
			}
			b.ReportMetric(float64(healed)/float64(n), "healed/op")
			if (healed > 0) != (kind == "prompt") {
				b.Fatal(fmt.Sprint(healed, " healed"))
			}
		})
	}
}

// BenchmarkHashes is the cost of one prompt of 4,096 tokens in blocks of 16 where it is routed, and of what it hashes to where events are applied.
func BenchmarkHashes(b *testing.B) {
	rnd := rand.New(rand.NewPCG(1, 1))
	p := Prompt{Tokens: randomTokens(rnd, 4096)}
	now := time.Unix(1_000, 0)
	for _, settled := range []bool{false, true} {
		e := newCacheEngine(chainOf(blockhash.AlgorithmSHA256, nil), true, 16, 100_000)
		f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
		f.connected(true)
		first := Prompt{Tokens: randomTokens(rnd, 40)}
		if !settled { // an orphan, which tells no more than the block size
			e.run(first, nil)
			e.events = nil
			first.Tokens = append(first.Tokens, randomTokens(rnd, 40)...)
		}
		e.run(first, nil)
		if _, err := f.fold(e.batch(), now); err != nil {
			b.Fatal(err)
		}
		want := f.want(f.wanting())
		hasher := NewHasher("chat", want)
		h, _ := hasher.Hash(p)
		name := fmt.Sprintf("chains=%d", len(want.Chains))
		b.Run("hash/"+name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				hasher.Hash(p)
			}
			b.ReportMetric(float64(8*h.Numbers()), "bytes/op-sent")
		})
		b.Run("hear/"+name, func(b *testing.B) {
			b.ReportAllocs()
			n := uint64(0)
			for b.Loop() { // ever new
				n++
				h.Root = n
				f.hashed(&h, now)
			}
		})
	}
}
