package enginesim

import (
	"bufio"
	"fmt"
	"net/http"
	"slices"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// link is one full block of a sequence as its fingerprint needs it. Engine hashes cannot be turned into fingerprints, and a fingerprint depends on a
// pool, which an engine knows nothing of, so the whole chain is kept.
type link struct {
	parent  *link // nil for the root, which stands before the first block
	content uint64
	of      space // of the root
}

// space is what of a fingerprint's namespace the engine knows beside its block size.
type space struct{ adapter, salt string }

// extendLinks brings s.links up to the digests of s.
func (h *hasher) extendLinks(s *sequence) {
	if len(s.links) == len(s.digests) {
		return
	}
	var parent *link
	if n := len(s.links); n > 0 {
		parent = s.links[n-1]
	} else {
		parent = &link{of: space{salt: s.salt}}
		if s.adapter != nil {
			parent.of.adapter = s.adapter.name
		}
	}
	for i := len(s.links); i < len(s.digests); i++ {
		parent = &link{parent: parent, content: blockhash.Content(s.tokens[i*h.blockSize:(i+1)*h.blockSize], nil)}
		s.links = append(s.links, parent)
	}
}

// cachedLinks are what the cached blocks hold.
func (c *cache) cachedLinks() []*link {
	var all []*link
	for i := range c.blocks {
		if b := &c.blocks[i]; b.cached {
			all = append(all, b.link)
		}
	}
	return all
}

// fingerprints are the keys of the blocks that a prompt could hit in a cache, sorted: those that are cached with all their ancestors.
func fingerprints(cached []*link, pool string, blockSize int) []uint64 {
	keys := make(map[*link]uint64)
	keyOf := func(l *link) uint64 {
		var path []*link
		for ; l.parent != nil && keys[l] == 0; l = l.parent {
			path = append(path, l)
		}
		key := keys[l]
		if key == 0 {
			key = blockhash.Namespace{Pool: pool, Adapter: l.of.adapter, BlockSize: blockSize, Salt: l.of.salt}.Root()
			keys[l] = key
		}
		for _, l := range slices.Backward(path) {
			key = blockhash.Chain(key, l.content)
			keys[l] = key
		}
		return key
	}
	resident := make(map[uint64]*link)
	for _, l := range cached {
		resident[keyOf(l)] = l
	}
	rooted := make(map[uint64]bool) // of keys that were looked at
	var held []uint64
	for key, l := range resident {
		var path []uint64
		is, known := rooted[key]
		for ; !known; is, known = rooted[keys[l]] {
			if l.parent == nil || resident[keys[l]] == nil {
				is = l.parent == nil
				break
			}
			path = append(path, keys[l])
			l = l.parent
		}
		for _, k := range path {
			rooted[k] = is
		}
		if is {
			held = append(held, key)
		}
	}
	slices.Sort(held)
	return held
}

// truth serves what the caches hold, which a real engine does not tell: a line for each block, of rank, tier and fingerprint in the pool that the
// query names.
func (e *Engine) truth(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet {
		detail(w, http.StatusMethodNotAllowed)
		return
	}
	pool := r.URL.Query().Get("pool")
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	out := bufio.NewWriter(w)
	defer out.Flush()
	for i, r := range e.ranks {
		for _, key := range fingerprints(r.loop.cachedLinks(), pool, e.opts.BlockSize) {
			fmt.Fprintf(out, "%d device %016x\n", i, key)
		}
	}
}

func (l *loop) cachedLinks() []*link {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sched.cache.cachedLinks()
}
