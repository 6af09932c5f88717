package subscriber

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// TestHasher: what prompts hash to is what fingerprints and engines make of them.
func TestHasher(t *testing.T) {
	rnd := rand.New(rand.NewPCG(1, 1))
	tokens := randomTokens(rnd, 4*16+5)
	sql := Prompt{Adapter: "sql", AdapterPath: adapterPath("sql"), Salt: "s", Tokens: tokens}
	pathless := sql
	pathless.AdapterPath = ""
	f := newFold(foldOptions{pool: "chat", sink: &nullSink{}})
	f.connected(true)
	f.learned.blockSize = 16
	all := f.want(f.wanting())
	known := all
	known.Chains = all.Chains[:1]
	odd := known
	odd.Chains = append(slices.Clone(odd.Chains), Chain{Algorithm: "sha3"}, odd.Chains[0])
	unsized := all
	unsized.BlockSize = 0
	for _, tt := range []struct {
		name   string
		want   Want
		p      Prompt
		chains []ChainHashes // names and forms
		none   bool
	}{
		{name: "plain", want: all, p: Prompt{Tokens: tokens}, chains: []ChainHashes{{Algorithm: "sha256"}, {Algorithm: "sha256_cbor"}, {Algorithm: "sglang"}}},
		{name: "one chain", want: known, p: Prompt{Tokens: tokens}, chains: []ChainHashes{{Algorithm: "sha256"}}},
		{name: "adapter and salt", want: known, p: sql, chains: []ChainHashes{{Algorithm: "sha256"}, {Algorithm: "sha256", Tagged: true}}},
		{name: "adapter without path", want: known, p: pathless, chains: []ChainHashes{{Algorithm: "sha256"}}},
		{name: "no chain", want: Want{Yes: true, BlockSize: 16}, p: Prompt{Tokens: tokens}},
		{name: "a chain that is not known, and one twice", want: odd, p: Prompt{Tokens: tokens}, chains: []ChainHashes{{Algorithm: "sha256"}}},
		{name: "short", want: all, p: Prompt{Tokens: tokens[:15]}, none: true},
		{name: "no block size", want: unsized, p: Prompt{Tokens: tokens}, none: true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, ok := NewHasher("chat", tt.want).Hash(tt.p)
			if ok == tt.none {
				t.Fatalf("hashed: %v", ok)
			}
			if tt.none {
				return
			}
			want := Hashes{
				BlockSize: 16, Root: blockhash.Namespace{Pool: "chat", Adapter: tt.p.Adapter, BlockSize: 16, Salt: tt.p.Salt}.Root(),
				Adapter: tt.p.Adapter != "", Salted: tt.p.Salt != "", Pathless: tt.p.Adapter != "" && tt.p.AdapterPath == "",
			}
			key := want.Root
			keys := blockhash.AppendKeys(nil, want.Root, tokens, 16)
			for i := range 4 {
				want.Contents = append(want.Contents, blockhash.Content(tokens[i*16:(i+1)*16], nil))
				if key = blockhash.Chain(key, want.Contents[i]); key != keys[i] {
					t.Fatalf("block %d has another fingerprint", i)
				}
			}
			for _, c := range tt.chains {
				a, _ := blockhash.ParseAlgorithm(c.Algorithm)
				chain := blockhash.NewEngineChain(a, blockhash.DefaultSeed)
				var extra *blockhash.ExtraKeys
				if tt.p.Adapter != "" {
					extra = &blockhash.ExtraKeys{Tagged: c.Tagged, LoRA: tt.p.Adapter, LoRAPath: tt.p.AdapterPath, Salt: tt.p.Salt}
				}
				var parent *blockhash.Digest
				for i := range 4 {
					d := chain.Block(parent, tokens[i*16:(i+1)*16], extra)
					parent = &d
					c.Hashes = append(c.Hashes, chain.Uint64(&d))
				}
				want.Chains = append(want.Chains, c)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Error(diff)
			}
			if n := 4 * (1 + len(tt.chains)); got.Numbers() != n {
				t.Errorf("%d numbers, want %d", got.Numbers(), n)
			}
		})
	}
	long, _ := NewHasher("chat", all).Hash(Prompt{Tokens: make([]uint32, 16*(MaxHashed+7))})
	if len(long.Contents) != MaxHashed || long.Numbers() > 2*MaxHashed {
		t.Errorf("a long prompt has %d contents, %d numbers", len(long.Contents), long.Numbers())
	}
}

// TestWanted: what a fold asks for follows what it knows of its engine.
func TestWanted(t *testing.T) {
	b := newBench(t, Prompt{})
	var told []Want
	b.f.connected(false)
	b.f.o.wanted = func(w Want) { told = append(told, w) }
	names := func(w Want) (all []string) {
		for _, c := range w.Chains {
			all = append(all, c.Algorithm)
		}
		return all
	}
	step := func(what string, do func(), yes bool, size int, chains ...string) {
		t.Helper()
		told = nil
		do()
		if len(told) != 1 || told[0].Yes != yes || told[0].BlockSize != size || !slices.Equal(names(told[0]), chains) {
			t.Errorf("%s: told %+v", what, told)
		}
	}
	step("connected", func() { b.f.connected(true) }, true, 0, "sha256", "sha256_cbor", "sglang")
	step("an orphan", func() { b.fold(b.event) }, true, 16, "sha256", "sha256_cbor", "sglang")
	step("its prompt", func() { b.witness(b.p) }, true, 16, "sha256")
	told = nil
	b.fold(b.event)
	if len(told) != 0 {
		t.Errorf("told again: %+v", told)
	}
	step("cleared", func() { b.fold(clearedEvent()) }, false, 0)
	step("a gap", func() { b.f.reset(CauseGap) }, true, 0, "sha256", "sha256_cbor", "sglang")
}

// TestProxy: prompts wait for the block size, in bounds, and are let go when none are wanted.
func TestProxy(t *testing.T) {
	ready := 0
	p := NewProxy("chat", func() { ready++ })
	some := Prompt{Tokens: make([]uint32, 40)}
	next := func() (n, dropped int) {
		for {
			_, ok, d := p.Next()
			dropped += d
			if !ok {
				return n, dropped
			}
			n++
		}
	}
	check := func(what string, n, dropped, called int) {
		t.Helper()
		gotN, gotDropped := next()
		if gotN != n || gotDropped != dropped || ready != called {
			t.Errorf("%s: %d prompts, %d dropped, called %d times, want %d, %d, %d", what, gotN, gotDropped, ready, n, dropped, called)
		}
		ready = 0
	}
	p.Witness(some)
	check("none are wanted", 0, 0, 0)
	p.Set(Want{Yes: true})
	p.Witness(some)
	check("the block size is not known", 0, 0, 0)
	p.Set(Want{Yes: true, BlockSize: 16})
	check("it is", 1, 0, 1)
	for range waitPrompts + 2 {
		p.Witness(some)
	}
	p.Witness(Prompt{Tokens: make([]uint32, 5)})
	check("too many, and one that is short", waitPrompts-1, 3, waitPrompts+3)
	p.Witness(Prompt{Tokens: make([]uint32, waitTokens+1)})
	check("too long", 0, 1, 1)
	p.Witness(some)
	p.Set(Want{})
	check("not wanted any more", 0, 0, 1)
	if p.Wants() {
		t.Error("prompts are wanted")
	}
}

// FuzzHashes: whatever a witness says that was made elsewhere, the mirror stays in order, and what is announced is prefix-closed.
func FuzzHashes(f *testing.F) {
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7}, []byte{0x10, 0x11, 0x12, 0x13, 0x14, 0x15, 0x16}, uint8(0))
	f.Add([]byte{0, 1, 2, 3, 4, 5, 6, 7}, []byte{5, 5, 5, 5, 6, 0, 7}, uint8(0xff))
	f.Add([]byte{7, 7, 7}, []byte{}, uint8(0x13))
	f.Fuzz(func(t *testing.T, contents, hashes []byte, flags uint8) {
		if len(contents) > 256 || len(hashes) > 256 {
			return
		}
		b := newBench(t, Prompt{})
		bit := func(i int) bool { return flags>>i&1 != 0 }
		real, _ := NewHasher("chat", Want{Yes: true, BlockSize: 16}).Hash(b.p)
		h := Hashes{BlockSize: 16, Root: real.Root, Adapter: bit(0), Salted: bit(1), Pathless: bit(2)}
		number := func(c byte, of []uint64) uint64 { // of the engine's, or made up
			if int(c) < len(of) {
				return of[c]
			}
			return uint64(c &^ 0x10)
		}
		for _, c := range contents {
			h.Contents = append(h.Contents, number(c, real.Contents))
		}
		for _, name := range []string{"sha256", "sha256_cbor", "sha256", "nonsense"} {
			list := ChainHashes{Algorithm: name, Tagged: bit(3)}
			for i, c := range hashes {
				list.Hashes = append(list.Hashes, number(c+byte(i)*(flags>>7), b.hash))
			}
			h.Chains = append(h.Chains, list)
		}
		tell := func() {
			b.sink.begin()
			b.f.hashed(&h, b.now)
		}
		if bit(4) {
			b.e.chain = nil
			b.fold(storedEvent(nil, 16, make([]uint32, 16), 99)) // fits no chain
		}
		if bit(5) {
			tell()
		}
		b.fold(b.event)
		tell()
		if bit(6) {
			b.fold(removedEvent(b.hash[2]), removedEvent(b.hash[5]))
		}
		tell()
		b.now = b.now.Add(time.Minute)
		b.tick()
		if err := b.f.mirror.check(); err != nil {
			t.Fatal(err)
		}
	})
}

// TestProxyKeepsTokens: where each token is a block its hash is as good as the token, and none leaves, also of prompts that waited for the block size.
func TestProxyKeepsTokens(t *testing.T) {
	for _, size := range []int{1, 2} {
		p := NewProxy("chat", func() {})
		p.Set(Want{Yes: true})
		p.Witness(Prompt{Tokens: []uint32{1, 2, 3, 4}})
		p.Set(Want{Yes: true, BlockSize: size})
		p.Witness(Prompt{Tokens: []uint32{5, 6, 7, 8}})
		_, ok, _ := p.Next()
		if want := size > 1; ok != want || p.Wants() != want {
			t.Errorf("blocks of %d tokens: prompts are wanted %v and hashed %v, want %v", size, p.Wants(), ok, want)
		}
	}
}
