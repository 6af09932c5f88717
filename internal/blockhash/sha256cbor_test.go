package blockhash

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"os"
	"strconv"
	"testing"

	"github.com/fxamacker/cbor/v2"
	"github.com/google/go-cmp/cmp"
)

type vector struct {
	From      string          `json:"from"`
	Seed      string          `json:"seed"`
	SeedText  string          `json:"seed_text"`
	Parent    string          `json:"parent"`
	Tokens    []uint32        `json:"tokens"`
	ExtraName string          `json:"extra_name"`
	Extra     json.RawMessage `json:"extra_hash_input"`
	Digest    string          `json:"digest"`
	U64       string          `json:"u64"`
	Published string          `json:"published"`
	Preimage  string          `json:"preimage"`
}

type noneHash struct {
	SeedText string `json:"seed_text"`
	NoneHash string `json:"none_hash"`
}

func readVectors(t *testing.T, file string) (vectors []vector, none []noneHash) {
	t.Helper()
	raw, err := os.ReadFile("testdata/" + file)
	if err != nil {
		t.Fatal(err)
	}
	var doc struct {
		NoneHash []noneHash `json:"none_hash"`
		Vectors  []vector   `json:"vectors"`
	}
	if err := json.Unmarshal(raw, &doc); err != nil {
		t.Fatalf("%s: %v", file, err)
	}
	if len(doc.Vectors) == 0 {
		t.Fatalf("%s: no vectors", file)
	}
	return doc.Vectors, doc.NoneHash
}

func digest(t *testing.T, text string) (d Digest) {
	t.Helper()
	if n, err := hex.Decode(d[:], []byte(text)); err != nil || n != len(d) {
		t.Fatalf("digest %q: %d bytes, %v", text, n, err)
	}
	return d
}

// readExtra turns the hash input of a vector into ExtraKeys. A bare string stands for the adapter or the salt.
func readExtra(t *testing.T, v vector) *ExtraKeys {
	t.Helper()
	var keys []any
	if err := json.Unmarshal(v.Extra, &keys); err != nil {
		t.Fatalf("extra keys %s: %v", v.Extra, err)
	}
	if keys == nil {
		return nil
	}
	e := &ExtraKeys{}
	for i, key := range keys {
		switch key := key.(type) {
		case float64:
			e.LoRAID = int64(key)
		case string:
			if i == 0 && v.ExtraName != "old_salt" {
				e.LoRA = key
			} else {
				e.Salt = key
			}
		case []any:
			switch {
			case len(key) == 2 && key[0] == "cache_salt":
				e.Tagged, e.Salt = true, key[1].(string)
			case len(key) == 2 && key[0] == "prompt_embeds":
				raw, err := hex.DecodeString(key[1].(map[string]any)["bin"].(string))
				if err != nil {
					t.Fatal(err)
				}
				e.Tagged, e.Embeds = true, raw
			case len(key) == 3 && key[0] == "lora":
				e.Tagged, e.LoRA, e.LoRAPath = true, key[1].(string), key[2].(string)
			case len(key) == 3 && key[0] == "mm":
				e.Tagged = true
				e.Items = append(e.Items, Item{key[1].(string), int64(key[2].(float64))})
			case len(key) == 2:
				e.Items = append(e.Items, Item{key[0].(string), int64(key[1].(float64))})
			default:
				t.Fatalf("extra key %v is not known", key)
			}
		default:
			t.Fatalf("extra key %v is not known", key)
		}
	}
	return e
}

func TestVectors(t *testing.T) {
	for _, file := range []string{"synthetic.json", "from_events.json"} {
		vectors, none := readVectors(t, file)
		for _, n := range none {
			if got := NoneHash(n.SeedText); got != digest(t, n.NoneHash) {
				t.Errorf("%s: NoneHash(%q) = %x, want %s", file, n.SeedText, got, n.NoneHash)
			}
		}
		var h SHA256CBOR
		for i, v := range vectors {
			got := h.Block(digest(t, v.Parent), v.Tokens, readExtra(t, v))
			if got != digest(t, v.Digest) {
				t.Errorf("%s: vector %d %s %s: digest %x, want %s\nhashed %x\nwant   %s", file, i, v.From, v.ExtraName, got, v.Digest, h.buf, v.Preimage)
			}
			if fold := strconv.FormatUint(got.Uint64(), 10); fold != v.U64 {
				t.Errorf("%s: vector %d: fold %s, want %s", file, i, fold, v.U64)
			}
			if p := v.Published; p != "" && p != v.U64 && p != v.Digest {
				t.Errorf("%s: vector %d: published %s is neither fold nor digest", file, i, p)
			}
		}
	}
}

// TestCapturedChains holds chains against digests captured from other vLLM builds, with the untagged extra keys of ≤ 0.30.
func TestCapturedChains(t *testing.T) {
	var h SHA256CBOR
	count := func(from, n uint32) []uint32 {
		tokens := make([]uint32, n)
		for i := range tokens {
			tokens[i] = from + uint32(i)
		}
		return tokens
	}
	strides := make([]uint32, 256)
	for i := range strides {
		strides[i] = uint32((i*7919 + 13) % 152064)
	}
	none128 := h.Block(NoneHash("0"), count(1000, 128), nil)
	tests := []struct {
		name   string
		parent Digest
		tokens []uint32
		extra  *ExtraKeys
		want   string
	}{
		{"default seed", NoneHash(DefaultSeed), strides[:128], nil, "3c922374e6fe67f3c64e75b88a3b8bd6185b538f7019674b72aefbf8dd8754f8"},
		{"second block", h.Block(NoneHash(DefaultSeed), strides[:128], nil), strides[128:], nil, "2e69fa8c8aebe362593b51b8b212f1aeb45f9bb56c4258c0bf2a94f1e384e2a5"},
		{"seed 0", NoneHash("0"), count(1000, 128), nil, "199e2f20e73a6e2cc3e0e6fdf521eff7b636122d5e122320c22c380d95e5863e"},
		{"item", NoneHash("0"), count(1000, 128), &ExtraKeys{Items: []Item{{"0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef", 5}}}, "3597444c4db23e603150784eeb8467b6895e64d29667e2496941709e6bad8adb"},
		{"salt", NoneHash("0"), count(1000, 128), &ExtraKeys{Salt: "my-salt"}, "84611d254438937d076c5739d973f17e1febd6a252387f535357a817319908b0"},
		{"item and salt", NoneHash("0"), count(1000, 128), &ExtraKeys{Items: []Item{{"aaaa", 3}}, Salt: "my-salt"}, "3f56ea40d074550a58b6ddadba236109d86356a3cc0aeca8a0c70c4be0df5cc0"},
		{"item from earlier block", NoneHash("0"), count(1000, 128), &ExtraKeys{Items: []Item{{"aaaa", -3}}}, "c914451f83e397a290b4a1749465eb9a832fc78ef98f8e32dace9514242864f2"},
		{"two items", none128, count(1000, 128), &ExtraKeys{Items: []Item{{"aaaa", 0}, {"bbbb", 64}}}, "2ea9f0275be48f4499ccdd95ca2d8cd26c5a995c2a9b08d7aa4ef2a5902569fc"},
		{"empty extra keys are none", NoneHash("0"), count(1000, 128), &ExtraKeys{Tagged: true}, "199e2f20e73a6e2cc3e0e6fdf521eff7b636122d5e122320c22c380d95e5863e"},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			if got := h.Block(tt.parent, tt.tokens, tt.extra); got != digest(t, tt.want) {
				t.Errorf("digest = %x, want %s", got, tt.want)
			}
		})
	}
}

// input is the hashed value as a Python programmer would write it: nested lists.
func input(parent Digest, tokens []uint32, e *ExtraKeys) any {
	if tokens == nil {
		tokens = []uint32{}
	}
	var keys any
	if e.keys() > 0 {
		var list []any
		key := func(tag string, parts ...any) {
			switch {
			case e.Tagged:
				list = append(list, append([]any{tag}, parts...))
			case len(parts) == 1:
				list = append(list, parts[0])
			default:
				list = append(list, parts)
			}
		}
		switch {
		case e.LoRA != "" && e.Tagged:
			key("lora", e.LoRA, e.LoRAPath)
		case e.LoRA != "":
			key("", e.LoRA)
		case e.LoRAID != 0:
			list = append(list, e.LoRAID)
		}
		for _, item := range e.Items {
			key("mm", item.Identifier, item.Offset)
		}
		if e.Salt != "" {
			key("cache_salt", e.Salt)
		}
		if e.Embeds != nil {
			key("prompt_embeds", e.Embeds)
		}
		keys = list
	}
	return []any{parent[:], tokens, keys}
}

// FuzzSHA256CBOR holds the hashed bytes against fxamacker/cbor's canonical encoding of the same value.
func FuzzSHA256CBOR(f *testing.F) {
	mode, err := cbor.CanonicalEncOptions().EncMode()
	if err != nil {
		f.Fatal(err)
	}
	f.Add([]byte{0, 23, 24, 255}, true, "a", "/l/a", int64(0), "abc", int64(-300), 2, "s1", []byte{1})
	f.Add([]byte{}, false, "", "", int64(1), "", int64(1<<40), 1, "", []byte(nil))
	f.Add(make([]byte, 1200), false, "a", "", int64(-5), "id", int64(0), 0, "münchen", []byte(nil))
	f.Fuzz(func(t *testing.T, raw []byte, tagged bool, lora, path string, id int64, item string, offset int64, items int, salt string, embeds []byte) {
		var tokens []uint32
		for i := 0; i+3 <= len(raw); i += 3 { // widths from one to four bytes
			tokens = append(tokens, (uint32(raw[i])<<16|uint32(raw[i+1])<<8|uint32(raw[i+2]))>>(raw[i]%24)<<(raw[i+2]%9))
		}
		e := &ExtraKeys{Tagged: tagged, LoRA: lora, LoRAPath: path, LoRAID: id, Salt: salt, Embeds: embeds}
		for i := range min(max(items, 0), 30) {
			e.Items = append(e.Items, Item{item, offset + int64(i)})
		}
		parent := NoneHash(salt)
		seed, err := mode.Marshal(salt)
		if err != nil {
			t.Fatal(err)
		}
		if want := Digest(sha256.Sum256(seed)); parent != want {
			t.Fatalf("NoneHash(%q) = %x, want %x", salt, parent, want)
		}
		want, err := mode.Marshal(input(parent, tokens, e))
		if err != nil {
			t.Fatal(err)
		}
		var h SHA256CBOR
		got := h.Block(parent, tokens, e)
		if diff := cmp.Diff(want, h.buf); diff != "" {
			t.Fatalf("hashed bytes (-want +got):\n%s", diff)
		}
		if got != Digest(sha256.Sum256(want)) {
			t.Fatalf("digest %x is not of the hashed bytes", got)
		}
	})
}

func TestSHA256CBORDoesNotAllocate(t *testing.T) {
	tokens := make([]uint32, 64)
	extra := &ExtraKeys{Tagged: true, LoRA: "a", LoRAPath: "/l/a", Items: []Item{{"abc", -1}}, Salt: "s", Embeds: []byte{1}}
	var h SHA256CBOR
	parent := h.Block(NoneHash(DefaultSeed), tokens, extra)
	n := testing.AllocsPerRun(10, func() {
		parent = h.Block(parent, tokens, nil)
		parent = h.Block(parent, tokens, extra)
	})
	if n != 0 {
		t.Errorf("%v allocations, want 0", n)
	}
}

func BenchmarkSHA256CBOR(b *testing.B) {
	tokens := make([]uint32, 16)
	for i := range tokens {
		tokens[i] = uint32(i * 7919 % 152064)
	}
	for _, bb := range []struct {
		name  string
		extra *ExtraKeys
	}{{"extra=none", nil}, {"extra=lora", &ExtraKeys{Tagged: true, LoRA: "adapter-a", LoRAPath: "/l/a"}}} {
		b.Run(bb.name, func(b *testing.B) {
			var h SHA256CBOR
			d := NoneHash(DefaultSeed)
			b.ReportAllocs()
			for b.Loop() {
				d = h.Block(d, tokens, bb.extra)
			}
		})
	}
}
