package blockhash

import (
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/zeebo/xxh3"
)

// hashModel hashes one message built the obvious way.
func hashModel(parts ...[]byte) uint64 {
	var all []byte
	for _, p := range parts {
		all = append(all, p...)
	}
	return xxh3.HashSeed(all, 1337)
}

func le64(n uint64) []byte { return binary.LittleEndian.AppendUint64(nil, n) }

func contentModel(tokens []uint32, extra []byte) uint64 {
	var b []byte
	for _, t := range tokens {
		b = append(b, byte(t), byte(t>>8), byte(t>>16), byte(t>>24))
	}
	return hashModel(b, extra)
}

func TestRootIsHashOfLengthPrefixedFields(t *testing.T) {
	got := Namespace{Pool: "chat", Adapter: "a", BlockSize: 16, Salt: "s1"}.Root()
	want := hashModel(le64(4), []byte("chat"), le64(1), []byte("a"), le64(8), le64(16), le64(2), []byte("s1"))
	if got != want {
		t.Errorf("root = %#x, want %#x", got, want)
	}
}

func TestRootSeparatesNamespaces(t *testing.T) {
	spaces := []Namespace{
		{},
		{Pool: "chat", BlockSize: 16},
		{Pool: "chat", BlockSize: 32},
		{Pool: "chat", BlockSize: 16, Adapter: "x"},
		{Pool: "chat", BlockSize: 16, Salt: "x"},
		{Pool: "chatx", BlockSize: 16},
		{Pool: "cha", BlockSize: 16, Adapter: "t"},
	}
	seen := map[uint64]Namespace{}
	for _, n := range spaces {
		if other, ok := seen[n.Root()]; ok {
			t.Errorf("%+v and %+v have the same root", n, other)
		}
		seen[n.Root()] = n
	}
}

func TestAppendKeys(t *testing.T) {
	root := Namespace{Pool: "chat", BlockSize: 4}.Root()
	tokens := []uint32{1, 2, 3, 4, 5, 6, 7, 8, 151645}
	first := hashModel(le64(root), le64(contentModel(tokens[:4], nil)))
	second := hashModel(le64(first), le64(contentModel(tokens[4:8], nil)))
	tests := []struct {
		name      string
		dst       []uint64
		tokens    []uint32
		blockSize int
		want      []uint64
	}{
		{"partial tail has no key", nil, tokens, 4, []uint64{first, second}},
		{"exact", nil, tokens[:8], 4, []uint64{first, second}},
		{"appends", []uint64{7}, tokens[:4], 4, []uint64{7, first}},
		{"shorter than a block", nil, tokens[:3], 4, nil},
		{"no tokens", nil, nil, 4, nil},
		{"block size zero", nil, tokens, 0, nil},
		{"block size negative", []uint64{7}, tokens, -4, []uint64{7}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := AppendKeys(tt.dst, root, tt.tokens, tt.blockSize)
			if diff := cmp.Diff(tt.want, got); diff != "" {
				t.Errorf("keys (-want +got):\n%s", diff)
			}
		})
	}
}

// The chain is agreed between nodes and routers of different builds, so its values are pinned.
func TestKeysAreStable(t *testing.T) {
	root := Namespace{Pool: "chat", Adapter: "adapter-a", BlockSize: 4, Salt: "tenant-1"}.Root()
	got := AppendKeys([]uint64{root}, root, []uint32{1, 2, 3, 4, 5, 6, 7, 8}, 4)
	extra := AppendDigest(AppendItem(nil, "abc", -3), []byte{1, 2})
	got = append(got, Content([]uint32{1, 2, 3, 4}, extra))
	want := []uint64{12652185159983827591, 2322901671540068816, 11832588807817663821, 11756274617856223926}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("keys (-want +got):\n%s", diff)
	}
}

func TestExtraKeysSeparateContents(t *testing.T) {
	tokens := []uint32{1, 2, 3, 4}
	extras := map[string][]byte{
		"none":           nil,
		"item":           AppendItem(nil, "abc", 0),
		"other item":     AppendItem(nil, "abd", 0),
		"other offset":   AppendItem(nil, "abc", -3),
		"item twice":     AppendItem(AppendItem(nil, "abc", 0), "abc", 0),
		"digest":         AppendDigest(nil, []byte("abc")),
		"empty digest":   AppendDigest(nil, nil),
		"item, digest":   AppendDigest(AppendItem(nil, "abc", 0), []byte("abc")),
		"longer item id": AppendItem(nil, "abc\x00", 0),
	}
	seen := map[uint64]string{}
	for name, extra := range extras {
		got := Content(tokens, extra)
		if want := contentModel(tokens, extra); got != want {
			t.Errorf("%s: content = %#x, want %#x", name, got, want)
		}
		if other, ok := seen[got]; ok {
			t.Errorf("%q and %q have the same content hash", name, other)
		}
		seen[got] = name
	}
}

// FuzzFingerprint holds the chain against one that copies every byte, for every block size and with extra keys.
func FuzzFingerprint(f *testing.F) {
	f.Add([]byte{1, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0}, 2, []byte{})
	f.Add(make([]byte, 3000), 16, []byte("extra"))
	f.Add(make([]byte, 6000), 1100, []byte("extra"))
	f.Fuzz(func(t *testing.T, raw []byte, blockSize int, extra []byte) {
		tokens := make([]uint32, len(raw)/4)
		for i := range tokens {
			tokens[i] = binary.LittleEndian.Uint32(raw[4*i:])
		}
		key := Namespace{Pool: "p", BlockSize: blockSize}.Root()
		keys := AppendKeys(nil, key, tokens, blockSize)
		if blockSize < 1 {
			if len(keys) != 0 {
				t.Fatalf("block size %d gave %d keys", blockSize, len(keys))
			}
			return
		}
		if want := len(tokens) / blockSize; len(keys) != want {
			t.Fatalf("%d keys, want %d", len(keys), want)
		}
		for i, got := range keys {
			block := tokens[i*blockSize : (i+1)*blockSize]
			key = hashModel(le64(key), le64(contentModel(block, nil)))
			if got != key {
				t.Fatalf("key %d = %#x, want %#x", i, got, key)
			}
			if got, want := Content(block, extra), contentModel(block, extra); got != want {
				t.Fatalf("content %d with extra keys = %#x, want %#x", i, got, want)
			}
			if got, want := copiedContent(block, nil), contentModel(block, nil); got != want {
				t.Fatalf("copied content %d = %#x, want %#x", i, got, want)
			}
		}
	})
}

func TestFingerprintDoesNotAllocate(t *testing.T) {
	tokens := make([]uint32, 4096)
	keys := make([]uint64, 0, len(tokens))
	extra := AppendItem(nil, "abc", 4)
	space := Namespace{Pool: "chat", Adapter: "adapter-a", BlockSize: 16, Salt: "tenant-1"}
	sink := uint64(0)
	for _, blockSize := range []int{1, 16, 64, 1024} {
		t.Run(fmt.Sprintf("size=%d", blockSize), func(t *testing.T) {
			n := testing.AllocsPerRun(10, func() {
				keys = AppendKeys(keys[:0], space.Root(), tokens, blockSize)
				sink += Content(tokens[:min(blockSize, 900)], extra)
			})
			if n != 0 {
				t.Errorf("%v allocations, want 0", n)
			}
		})
	}
}

func BenchmarkFingerprint(b *testing.B) {
	for _, blockSize := range []int{16, 64, 256} {
		b.Run(fmt.Sprintf("size=%d", blockSize), func(b *testing.B) {
			tokens := make([]uint32, 65536)
			for i := range tokens {
				tokens[i] = uint32(i * 7919 % 152064)
			}
			keys := make([]uint64, 0, len(tokens)/blockSize)
			b.ReportAllocs()
			for b.Loop() {
				keys = AppendKeys(keys[:0], 1, tokens, blockSize)
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/float64(len(keys)), "ns/block")
		})
	}
}
