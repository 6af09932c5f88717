package blockhash

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"
)

// TestEngineChainXXHash holds xxhash_cbor to vLLM's own digests, whose XXH3-128 has 16 bytes.
func TestEngineChainXXHash(t *testing.T) {
	vectors, none := readVectors(t, "synthetic_xxhash.json")
	wide := func(text string) (d Digest) {
		if n, err := hex.Decode(d[:], []byte(text)); err != nil || n != 16 {
			t.Fatalf("digest %q: %d bytes, %v", text, n, err)
		}
		return d
	}
	for _, n := range none {
		if got := NewEngineChain(AlgorithmXXHashCBOR, n.SeedText).none; got != wide(n.NoneHash) {
			t.Errorf("NONE_HASH of %q = %x, want %s", n.SeedText, got, n.NoneHash)
		}
	}
	for i, v := range vectors {
		c := NewEngineChain(AlgorithmXXHashCBOR, "")
		c.none = wide(v.Parent) // with nil as parent the salt counts, which some vectors have in a later block
		got := c.Block(nil, v.Tokens, readExtra(t, v))
		if got != wide(v.Digest) {
			t.Errorf("vector %d %s: digest %x, want %s", i, v.ExtraName, got, v.Digest)
		}
		if fold := strconv.FormatUint(c.Uint64(&got), 10); fold != v.U64 {
			t.Errorf("vector %d: fold %s, want %s", i, fold, v.U64)
		}
	}
}

func TestEngineChainSGLang(t *testing.T) {
	raw, err := os.ReadFile("testdata/sglang.json")
	if err != nil {
		t.Fatal(err)
	}
	type page struct {
		Tokens []uint32
		Digest string
		Int64  int64
		Salt   string `json:"cache_salt"`
	}
	var doc struct {
		Long   []page `json:"plain_chain_page16"`
		Short  []page `json:"pages_of_4"`
		Salted page   `json:"salted_page"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatal(err)
	}
	pages := 0
	for _, chain := range [][]page{doc.Long, doc.Short, {doc.Salted}} {
		c := NewEngineChain(AlgorithmSGLang, "ignored")
		var parent *Digest
		for i, p := range chain {
			got := c.Block(parent, p.Tokens, &ExtraKeys{Salt: p.Salt})
			if got != digest(t, p.Digest) || int64(c.Uint64(&got)) != p.Int64 {
				t.Errorf("page %d of %d: %x, %d, want %s, %d", i, len(chain), got, int64(c.Uint64(&got)), p.Digest, p.Int64)
			}
			parent = &got
			pages++
		}
	}
	if pages != 7 {
		t.Errorf("%d pages, want 7", pages)
	}
}

// TestEngineChainRecordings recomputes every block that engines published, by the chain that each of them uses: the salt is given for
// all blocks of a prompt and must count in the first alone.
func TestEngineChainRecordings(t *testing.T) {
	for _, tt := range []struct {
		file      string
		algorithm Algorithm
		seed      string
		blocks    int
	}{
		{"default_unset_int.json", AlgorithmSHA256, DefaultSeed, 4},
		{"default_seed0_bytes.json", AlgorithmSHA256, "0", 4},
		{"sha256_cbor_seed0_int.json", AlgorithmSHA256CBOR, "0", 4},
		{"sha256_cbor_unset_bytes_lora.json", AlgorithmSHA256CBOR, DefaultSeed, 8},
		{"xxhash_cbor_seed0_bytes.json", AlgorithmXXHashCBOR, "0", 4},
	} {
		t.Run(tt.file, func(t *testing.T) {
			raw, err := os.ReadFile("testdata/" + tt.file)
			if err != nil {
				t.Fatal(err)
			}
			var rec struct {
				Requests []struct {
					Body struct {
						Model  string
						Prompt []uint32
						Salt   string `json:"cache_salt"`
					}
				}
				Decoded []struct{ Batch []json.RawMessage }
			}
			if err := json.Unmarshal(raw, &rec); err != nil {
				t.Fatal(err)
			}
			c := NewEngineChain(tt.algorithm, tt.seed)
			want := map[string]bool{}
			for _, r := range rec.Requests {
				keys := &ExtraKeys{Tagged: true, Salt: r.Body.Salt}
				if r.Body.Model != "tiny" {
					keys.LoRA, keys.LoRAPath = r.Body.Model, "tiny/lora/adapter-a"
				}
				var parent *Digest
				for tokens := r.Body.Prompt; len(tokens) >= 32; tokens = tokens[32:] {
					d := c.Block(parent, tokens[:32], keys)
					want[strconv.FormatUint(c.Uint64(&d), 10)] = true
					parent = &d
				}
			}
			seen := 0
			for _, m := range rec.Decoded {
				var events []struct {
					Hashes []json.RawMessage `json:"block_hashes"`
				}
				if err := json.Unmarshal(m.Batch[1], &events); err != nil {
					t.Fatal(err)
				}
				for _, e := range events {
					for _, h := range e.Hashes {
						if !want[published(t, h)] {
							t.Errorf("block %s is not recomputed", h)
						}
						seen++
					}
				}
			}
			if seen != tt.blocks || len(want) != tt.blocks {
				t.Errorf("%d blocks published, %d recomputed, want %d", seen, len(want), tt.blocks)
			}
		})
	}
}

// published is a hash of a recording as a decimal: of bytes the last 8.
func published(t *testing.T, raw json.RawMessage) string {
	t.Helper()
	var wide struct{ Bin string }
	if raw[0] != '{' {
		return string(raw)
	}
	if err := json.Unmarshal(raw, &wide); err != nil || len(wide.Bin) < 16 {
		t.Fatalf("hash %s: %v", raw, err)
	}
	n, err := strconv.ParseUint(wide.Bin[len(wide.Bin)-16:], 16, 64)
	if err != nil {
		t.Fatal(err)
	}
	return strconv.FormatUint(n, 10)
}

func TestAlgorithms(t *testing.T) {
	for a := range algorithms {
		if want := a.String() == "xxhash" || a.String() == "xxhash_cbor"; a.NeedsSeed() != want {
			t.Errorf("%v needs a seed: %v, want %v", a, a.NeedsSeed(), want)
		}
		one, other := NewEngineChain(a, "0"), NewEngineChain(a, "1")
		tokens := []uint32{1, 2, 3, 4}
		d, e := one.Block(nil, tokens, nil), other.Block(nil, tokens, nil)
		if (d == e) != (a == AlgorithmSGLang) {
			t.Errorf("%v: seeds 0 and 1 give %x and %x", a, d, e)
		}
		if one.Uint64(&d) == 0 {
			t.Errorf("%v: fold of %x is 0", a, d)
		}
	}
	if got := algorithms.String(); got != "Algorithm(5)" {
		t.Errorf("unknown algorithm is called %q", got)
	}
}

func TestEngineChainDoesNotAllocate(t *testing.T) {
	tokens := make([]uint32, 64)
	keys := &ExtraKeys{Tagged: true, LoRA: "a", LoRAPath: "/l/a", Salt: "s"}
	for a := range algorithms {
		c := NewEngineChain(a, DefaultSeed)
		d := c.Block(nil, tokens, keys)
		if n := testing.AllocsPerRun(10, func() { d = c.Block(&d, tokens, keys) }); n != 0 {
			t.Errorf("%v: %v allocations, want 0", a, n)
		}
	}
}

func BenchmarkEngineChain(b *testing.B) {
	tokens := make([]uint32, 16)
	for i := range tokens {
		tokens[i] = uint32(i * 7919 % 152064)
	}
	for a := range algorithms {
		b.Run("algorithm="+a.String(), func(b *testing.B) {
			c := NewEngineChain(a, DefaultSeed)
			d := c.Block(nil, tokens, nil)
			b.ReportAllocs()
			for b.Loop() {
				d = c.Block(&d, tokens, nil)
			}
		})
	}
}
