package blockhash

import (
	"encoding/hex"
	"encoding/json"
	"os"
	"path/filepath"
	"strconv"
	"testing"
)

func TestPickleVectors(t *testing.T) {
	for _, file := range []string{"synthetic_pickle.json", "cpython_pickle.json"} {
		vectors, none := readVectors(t, file)
		for _, n := range none {
			if got := NoneHashPickle(n.SeedText); got != digest(t, n.NoneHash) {
				t.Errorf("%s: NoneHashPickle(%q) = %x, want %s", file, n.SeedText, got, n.NoneHash)
			}
		}
		var h SHA256Pickle
		for i, v := range vectors {
			got := h.Block(digest(t, v.Parent), v.Tokens, readExtra(t, v))
			if v.Preimage != "" && hex.EncodeToString(h.p.buf) != v.Preimage {
				t.Errorf("%s: vector %d %s: hashed %x\nwant %s", file, i, v.ExtraName, h.p.buf, v.Preimage)
			}
			if got != digest(t, v.Digest) {
				t.Errorf("%s: vector %d %s: digest %x, want %s", file, i, v.ExtraName, got, v.Digest)
			}
			if fold := strconv.FormatUint(got.Uint64(), 10); fold != v.U64 {
				t.Errorf("%s: vector %d: fold %s, want %s", file, i, fold, v.U64)
			}
		}
	}
}

// TestDefaultAlgorithm recomputes every block that engines without hash settings published.
func TestDefaultAlgorithm(t *testing.T) {
	seeds := map[string]string{"default_unset_int.json": DefaultSeed, "default_seed0_bytes.json": "0"}
	files, err := filepath.Glob("testdata/default_*.json")
	if err != nil || len(files) != len(seeds) {
		t.Fatalf("%d recordings, %v, want %d", len(files), err, len(seeds))
	}
	for _, file := range files {
		raw, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		var rec struct {
			Decoded []struct{ Batch []json.RawMessage }
		}
		if err := json.Unmarshal(raw, &rec); err != nil {
			t.Fatal(err)
		}
		var h SHA256Pickle
		seen := 0
		for _, m := range rec.Decoded {
			var events []struct {
				Hashes []json.RawMessage `json:"block_hashes"`
				Tokens []uint32          `json:"token_ids"`
				Size   int               `json:"block_size"`
				Extra  [][]string        `json:"extra_keys"`
			}
			if err := json.Unmarshal(m.Batch[1], &events); err != nil {
				t.Fatal(err)
			}
			for _, e := range events {
				parent := NoneHashPickle(seeds[filepath.Base(file)])
				for i, published := range e.Hashes {
					extra := &ExtraKeys{Tagged: true}
					if len(e.Extra[i]) > 0 {
						extra.Salt = e.Extra[i][0]
					}
					parent = h.Block(parent, e.Tokens[i*e.Size:(i+1)*e.Size], extra)
					want := strconv.FormatUint(parent.Uint64(), 10)
					if published[0] == '{' {
						want = `{"bin": "` + hex.EncodeToString(parent[:]) + `"}`
					}
					if string(published) != want {
						t.Errorf("%s: block %d: %s, want %s", file, i, want, published)
					}
					seen++
				}
			}
		}
		if seen != 4 {
			t.Errorf("%s: %d blocks, want 4", file, seen)
		}
	}
}

func TestSHA256PickleDoesNotAllocate(t *testing.T) {
	tokens := make([]uint32, 64)
	extra := &ExtraKeys{Tagged: true, LoRA: "a", LoRAPath: "/l/a", Items: []Item{{"abc", -1}}, Salt: "s", Embeds: []byte{1}}
	var h SHA256Pickle
	parent := h.Block(NoneHashPickle(DefaultSeed), tokens, extra)
	n := testing.AllocsPerRun(10, func() {
		parent = h.Block(parent, tokens, nil)
		parent = h.Block(parent, tokens, extra)
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}
