package subscriber

import (
	"encoding/hex"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// encodedFile is one file of testdata/encodings: what the event classes of some releases give for fixed events.
type encodedFile struct {
	Fields map[string][]string
	Cases  []struct {
		Case    string
		Payload string
	}
}

// has tells whether these releases send a field of BlockStored.
func (f encodedFile) has(field string) bool { return slices.Contains(f.Fields["BlockStored"], field) }

// The fingerprints of the encoded events' blocks of four tokens.
func encodedKey(n blockhash.Namespace, items []byte, blocks ...[]uint32) uint64 {
	n.Pool, n.BlockSize = "chat", 4
	key := n.Root()
	for i, tokens := range blocks {
		var extra []byte
		if i == len(blocks)-1 {
			extra = items
		}
		key = blockhash.Chain(key, blockhash.Content(tokens, extra))
	}
	return key
}

// meaning is what has to be known after some cases were folded.
type meaning struct {
	after       []string // cases folded before
	device, any []uint64
	orphans     int
	dropped     map[drop]int
	reset       bool
}

// meaningOf says what a case means in the releases of a file.
func meaningOf(t *testing.T, f encodedFile, name string) meaning {
	t.Helper()
	first, second, third := []uint32{1, 2, 3, 4}, []uint32{5, 6, 7, 8}, []uint32{300, 70000, 151645, 128}
	root := encodedKey(blockhash.Namespace{}, nil, first)
	child := encodedKey(blockhash.Namespace{}, nil, first, second)
	both := func(m meaning, keys ...uint64) meaning { m.device, m.any = keys, keys; return m }
	media, extras, kinds := f.has("medium"), f.has("extra_keys"), f.has("kv_cache_spec_kind")

	switch name {
	case "stored_root", "stored_medium_nil", "stored_medium_absent":
		return both(meaning{}, root)
	case "stored_child":
		return both(meaning{after: []string{"stored_root"}}, root, child)
	case "stored_child_two_blocks":
		return both(meaning{after: []string{"stored_root"}}, root, child, encodedKey(blockhash.Namespace{}, nil, first, second, third))
	case "stored_lora_salt": // releases that send the id alone have its name from the configuration
		n := blockhash.Namespace{Adapter: "adapter-a"}
		if extras {
			n.Salt = "tenant-1"
		}
		return both(meaning{}, encodedKey(n, nil, first))
	case "stored_lora":
		return both(meaning{}, encodedKey(blockhash.Namespace{Adapter: "adapter-a"}, nil, first))
	case "stored_salt", "stored_salt_metadata_slot":
		return both(meaning{}, encodedKey(blockhash.Namespace{Salt: "tenant-a"}, nil, first))
	case "stored_mm":
		var items []byte
		if extras {
			items = blockhash.AppendItem(blockhash.AppendItem(nil, "aaaa", -3), "bbbb", 2)
		}
		return both(meaning{after: []string{"stored_root"}}, root, encodedKey(blockhash.Namespace{}, items, first, []uint32{9, 9, 9, 9}))
	case "stored_sliding_window":
		if kinds {
			return both(meaning{after: []string{"stored_root"}, dropped: map[drop]int{dropGroup: 1}}, root)
		}
		return both(meaning{after: []string{"stored_root"}}, root, encodedKey(blockhash.Namespace{}, nil, first, []uint32{9, 9, 9, 9}))
	case "stored_hash_only_cpu":
		if media {
			return meaning{after: []string{"stored_root", "stored_hash_only_cpu", "removed_one"}, any: []uint64{root}, dropped: map[drop]int{dropOffDevice: 2}}
		}
		return both(meaning{after: []string{"stored_root"}, dropped: map[drop]int{dropNoTokens: 1}}, root)
	case "stored_cpu": // SGLang, with token ids
		if media {
			return meaning{after: []string{"stored_root", "stored_child", "stored_cpu", "removed"}, any: []uint64{root, child}}
		}
		return both(meaning{}, root, child)
	case "stored_locality": // in storage, which is ignored
		return both(meaning{after: []string{"stored_root"}, dropped: map[drop]int{dropMedium: 1}}, root)
	case "removed_locality":
		return both(meaning{after: []string{"stored_root"}}, root)
	case "stored_lookahead":
		return meaning{dropped: map[drop]int{dropLookahead: 2}}
	case "removed_one", "removed_medium_absent":
		return meaning{after: []string{"stored_root"}}
	case "removed":
		return meaning{after: []string{"stored_root", "stored_child"}}
	case "removed_many_cpu":
		if !media {
			return meaning{after: []string{"stored_root", "stored_child_two_blocks"}}
		}
		return both(meaning{after: []string{"stored_root", "stored_hash_only_cpu"}, dropped: map[drop]int{dropOffDevice: 1}}, root)
	case "cleared":
		return meaning{after: []string{"stored_root"}, reset: true}
	case "mixed":
		return meaning{reset: false}
	case "bytes_hash": // the same block by its whole digest, announced again and removed
		return meaning{after: []string{"stored_root"}}
	}
	t.Fatalf("no meaning for the case %q", name)
	return meaning{}
}

// TestEncodingsMean folds every case of every release, with and without a rank, and compares what is announced, held and dropped.
func TestEncodingsMean(t *testing.T) {
	for _, file := range append(goldenFiles(t, "testdata/encodings/*.json"), furtherFiles(t, "encodings/*.json")...) {
		var f encodedFile
		readJSON(t, file, &f)
		payloads := map[string][]byte{}
		for _, c := range f.Cases {
			payload, err := hex.DecodeString(c.Payload)
			if err != nil {
				t.Fatal(err)
			}
			payloads[c.Case] = payload
		}
		for _, c := range f.Cases {
			want := meaningOf(t, f, c.Case)
			sink := newCheckedSink(t)
			fold := newFold(foldOptions{pool: "chat", sink: sink, adapters: map[int64]string{1: "adapter-a"}})
			last, err := hex.DecodeString(c.Payload)
			if err != nil {
				t.Fatal(err)
			}
			dropped := map[drop]int{}
			play := func(payload []byte) {
				t.Helper()
				sink.begin()
				stats, err := fold.fold(payload, time.Time{})
				if err != nil {
					t.Fatalf("%s: %s: %v", file, c.Case, err)
				}
				for d, n := range stats.dropped {
					if n > 0 {
						dropped[drop(d)] += n
					}
				}
			}
			for _, name := range want.after {
				if payloads[name] == nil {
					t.Fatalf("%s has no case %q", file, name)
				}
				play(payloads[name])
			}
			play(last)
			name := filepath.Base(file) + ": " + c.Case
			for tier, keys := range [2][]uint64{Device: want.device, Any: want.any} {
				set := map[uint64]bool{}
				for _, k := range keys {
					set[k] = true
				}
				if d := cmp.Diff(set, sink.tiers[tier]); d != "" {
					t.Errorf("%s: tier %d (-want +got):\n%s", name, tier, d)
				}
			}
			if want.dropped == nil {
				want.dropped = map[drop]int{}
			}
			if d := cmp.Diff(want.dropped, dropped); d != "" {
				t.Errorf("%s: dropped (-want +got):\n%s", name, d)
			}
			if fold.mirror.orphans() != want.orphans || (len(sink.resets) > 0) != want.reset {
				t.Errorf("%s: %d orphans, resets %v", name, fold.mirror.orphans(), sink.resets)
			}
		}
	}
}
