package enginesim

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// TestTruth has an engine compute prompts and wants the keys that a router computes for them, while they are in its cache.
func TestTruth(t *testing.T) {
	const blockSize = 4
	prompt := func(n, from int) (ids []uint32, text string) {
		var words []string
		for i := range n {
			ids = append(ids, uint32(from+i))
			words = append(words, fmt.Sprint(from+i))
		}
		return ids, "[" + strings.Join(words, ",") + "]"
	}
	long, longText := prompt(23, 100)
	salted, saltedText := prompt(9, 100)
	e := start(t, Options{BlockSize: blockSize, Blocks: 64, Adapters: []Adapter{{Name: "lora"}}, Models: []string{"base"}})
	c := newClient(t)
	truth := func() []string {
		t.Helper()
		status, text := getBody(t, c, e, "/sim/blocks?pool=chat")
		if status != 200 {
			t.Fatalf("status %d", status)
		}
		return strings.FieldsFunc(text, func(r rune) bool { return r == '\n' })
	}
	if got := truth(); len(got) != 0 {
		t.Errorf("an empty cache holds %q", got)
	}
	ask := func(model, text, more string) {
		t.Helper()
		if status, body := postJSON(t, c, e, "/v1/completions", fmt.Sprintf(`{"model":%q,"prompt":%s,"max_tokens":1%s}`, model, text, more)); status != 200 {
			t.Fatalf("status %d %s", status, body)
		}
	}
	ask("base", longText, "")
	ask("base", longText, "")
	ask("base", saltedText, `,"cache_salt":"s"`)
	ask("lora", saltedText, "")
	var keys []uint64
	keys = blockhash.AppendKeys(keys, blockhash.Namespace{Pool: "chat", BlockSize: blockSize}.Root(), long, blockSize)
	keys = blockhash.AppendKeys(keys, blockhash.Namespace{Pool: "chat", BlockSize: blockSize, Salt: "s"}.Root(), salted, blockSize)
	keys = blockhash.AppendKeys(keys, blockhash.Namespace{Pool: "chat", BlockSize: blockSize, Adapter: "lora"}.Root(), salted, blockSize)
	slices.Sort(keys)
	var want []string
	for _, k := range keys {
		want = append(want, fmt.Sprintf("0 device %016x", k))
	}
	if diff := cmp.Diff(want, truth()); diff != "" {
		t.Errorf("blocks (-want +got):\n%s", diff)
	}
	if status, _ := postJSON(t, c, e, "/sim/blocks?pool=chat", "{}"); status != 405 {
		t.Errorf("POST: status %d, want 405", status)
	}
	if status, _ := postJSON(t, c, e, "/reset_prefix_cache", ""); status != 200 {
		t.Errorf("reset: status %d", status)
	}
	if got := truth(); len(got) != 0 {
		t.Errorf("after a reset it holds %q", got)
	}
}

// TestFingerprints compares which blocks count as held with a walk from each block to its root.
func TestFingerprints(t *testing.T) {
	rng := rand.New(rand.NewPCG(5, 5))
	for range 200 {
		all := []*link{{of: space{salt: fmt.Sprint(rng.IntN(2))}}, {of: space{adapter: "a"}}}
		roots := len(all)
		for range 40 {
			all = append(all, &link{parent: all[rng.IntN(len(all))], content: rng.Uint64N(6)})
		}
		var cached []*link
		for _, l := range all[roots:] {
			if rng.IntN(3) > 0 {
				cached = append(cached, l)
			}
		}
		var key func(l *link) uint64
		key = func(l *link) uint64 {
			if l.parent == nil {
				return blockhash.Namespace{Pool: "p", Adapter: l.of.adapter, BlockSize: 16, Salt: l.of.salt}.Root()
			}
			return blockhash.Chain(key(l.parent), l.content)
		}
		resident := map[uint64]bool{}
		for _, l := range cached {
			resident[key(l)] = true
		}
		held := map[uint64]bool{}
		for _, l := range cached {
			whole := true
			for a := l; a.parent != nil; a = a.parent {
				whole = whole && resident[key(a)]
			}
			if whole {
				held[key(l)] = true
			}
		}
		var want []uint64
		for k := range held {
			want = append(want, k)
		}
		slices.Sort(want)
		if diff := cmp.Diff(want, fingerprints(cached, "p", 16)); diff != "" {
			t.Fatalf("held (-want +got):\n%s", diff)
		}
	}
}
