package subscriber

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// blockPool is a truthful engine: vLLM's block pool in small. Blocks are
// found by hash, several can have the same, and the one freed longest ago is
// taken next, with whatever it still caches.
type blockPool struct {
	rnd    *rand.Rand
	hashes []uint64 // by block; 0 = caches nothing
	refs   []int
	free   []int // blocks without references, the next to be taken first

	parents map[uint64]uint64 // of hashes; 0 for the first of a sequence
	keys    map[uint64]uint64 // fingerprints by hash
	above   map[uint64]uint64 // parents of fingerprints; root for the first
	root    uint64
	running [][]int

	events   []any
	repeated int // stores of a second copy in a run that begins a sequence
	second   int // stores of a second copy at all
}

func newBlockPool(rnd *rand.Rand, blocks int) *blockPool {
	p := &blockPool{
		rnd: rnd, hashes: make([]uint64, blocks), refs: make([]int, blocks), parents: map[uint64]uint64{}, keys: map[uint64]uint64{},
		above: map[uint64]uint64{}, root: blockhash.Namespace{Pool: "chat", BlockSize: 1}.Root(),
	}
	for i := range blocks {
		p.free = append(p.free, i)
	}
	return p
}

func (p *blockPool) parentOf(key uint64) (uint64, bool) { return p.above[key], p.above[key] == p.root }

// chain returns the hashes of a prompt's blocks. A block is one token.
func (p *blockPool) chain(prompt []uint32) []uint64 {
	var out []uint64
	var hash uint64
	key := p.root
	for _, token := range prompt {
		next := blockhash.Chain(hash|1, uint64(token))
		p.parents[next] = hash
		above := key
		key = blockhash.Chain(key, blockhash.Content([]uint32{token}, nil))
		p.keys[next], p.above[key] = key, above
		hash = next
		out = append(out, hash)
	}
	return out
}

// request runs a prompt of whole blocks and perhaps a part of one. back is how
// many of the blocks that could be reused are computed anew; full announces
// what is reused again.
func (p *blockPool) request(prompt []uint32, part, full bool, back int) {
	hashes := p.chain(prompt)
	most := len(hashes)
	if !part {
		most-- // an engine computes the last token at least
	}
	var blocks []int
	for _, h := range hashes[:most] {
		at := slices.Index(p.hashes, h)
		if at < 0 {
			break
		}
		blocks = append(blocks, at)
	}
	blocks = blocks[:max(len(blocks)-back, 0)]
	hits := len(blocks)
	for _, b := range blocks {
		p.hold(b)
	}
	if len(p.free) < len(hashes)-hits+1 {
		p.release(blocks)
		return
	}
	blocks = p.grow(blocks, hashes[hits:])
	start := hits
	if full {
		start = 0
	}
	for _, h := range hashes[hits:] {
		if p.count(h) > 1 {
			p.second++
			if start == 0 {
				p.repeated++
			}
		}
	}
	p.store(prompt[start:], hashes, start)
	p.running = append(p.running, blocks)
}

// hold takes a block out of the free ones if need be.
func (p *blockPool) hold(b int) {
	p.refs[b]++
	if i := slices.Index(p.free, b); i >= 0 {
		p.free = slices.Delete(p.free, i, i+1)
	}
}

// grow takes blocks for hashes.
func (p *blockPool) grow(blocks []int, hashes []uint64) []int {
	for _, h := range hashes {
		b := p.free[0]
		p.free = p.free[1:]
		if p.hashes[b] != 0 {
			p.events = append(p.events, removedEvent(p.hashes[b]))
		}
		p.hashes[b], p.refs[b] = h, 1
		blocks = append(blocks, b)
	}
	return blocks
}

func (p *blockPool) store(tokens []uint32, hashes []uint64, start int) {
	if start == len(hashes) {
		return
	}
	var parent any
	if start > 0 {
		parent = hashes[start-1]
	}
	p.events = append(p.events, storedEvent(parent, 1, tokens, hashes[start:]...))
}

// release gives the blocks of a request back, the last first.
func (p *blockPool) release(blocks []int) {
	for _, b := range slices.Backward(blocks) {
		if p.refs[b]--; p.refs[b] == 0 {
			p.free = append(p.free, b)
		}
	}
}

func (p *blockPool) count(hash uint64) int {
	n := 0
	for _, h := range p.hashes {
		if h == hash {
			n++
		}
	}
	return n
}

// resident returns the fingerprints that a prompt can hit.
func (p *blockPool) resident() map[uint64]bool {
	out := map[uint64]bool{}
	for _, h := range p.hashes {
		whole := h != 0
		for up := h; whole && up != 0; up = p.parents[up] {
			whole = p.count(up) > 0
		}
		if whole {
			out[p.keys[h]] = true
		}
	}
	return out
}

// step lets a request begin or end.
func (p *blockPool) step(h history) {
	p.events = nil
	if len(p.running) > 0 && p.rnd.IntN(3) == 0 {
		i := p.rnd.IntN(len(p.running))
		p.release(p.running[i])
		p.running = slices.Delete(p.running, i, i+1)
		return
	}
	prompt := make([]uint32, 1+p.rnd.IntN(6))
	for i := range prompt {
		prompt[i] = p.rnd.Uint32N(2)
	}
	back := 0
	if p.rnd.IntN(4) == 0 {
		back = h.back
	}
	part := p.rnd.IntN(2) == 0 || h.parted && len(prompt) == 1
	p.request(prompt, part, h.full && p.rnd.IntN(3) == 0, back)
}

// history says what an engine's requests are like.
type history struct {
	name   string
	full   bool // some ask for kv_cache_report_mode full
	parted bool // none is one block exactly
	back   int  // blocks that speculation, or a twin computed at the same time, has some of them compute anew
	late   bool // the beginning is not heard
	missed int  // percent at most of the blocks that can be hit and are not announced; 0 = the mirror has all at any time
}

// TestDuplicates folds random histories of a truthful engine with real
// duplicates. Never is a block announced that a prompt cannot hit. All of
// those that can be hit are, as long as the events tell all duplicates apart.
func TestDuplicates(t *testing.T) {
	for _, h := range []history{
		{name: "parted", parted: true},
		{name: "block multiples", missed: 7},
		{name: "speculation", parted: true, back: 1, missed: 8},
		{name: "twins", back: 9, missed: 20},
		{name: "report mode full", full: true, missed: 10},
		{name: "all of it", full: true, back: 9, missed: 22},
		{name: "joined late", parted: true, late: true, missed: 100}, // nothing is known of what is never announced again
		{name: "joined late, all of it", full: true, back: 9, late: true, missed: 100},
	} {
		t.Run(h.name, func(t *testing.T) {
			seconds, repeated, missed, all := 0, 0, 0, 0
			for seed := range uint64(60) {
				p := newBlockPool(rand.New(rand.NewPCG(seed, 4)), 8+int(seed%24))
				sink := newCheckedSink(t)
				sink.parentOf = p.parentOf
				f := newFold(foldOptions{pool: "chat", sink: sink})
				for n := range 400 {
					p.step(h)
					if h.late && n < 100 {
						continue
					}
					sink.begin()
					if _, err := f.fold(packBatch(p.events...), time.Time{}); err != nil {
						t.Fatal(err)
					}
					want := p.resident()
					for key := range sink.tiers[Device] {
						if !want[key] {
							t.Fatalf("seed %d, step %d: %x is announced and cannot be hit", seed, n, key)
						}
					}
					all += len(want)
					missed += len(want) - len(sink.tiers[Device])
					if h.missed == 0 && len(want) != len(sink.tiers[Device]) {
						t.Fatalf("seed %d, step %d: %d of %d announced", seed, n, len(sink.tiers[Device]), len(want))
					}
				}
				seconds, repeated = seconds+p.second, repeated+p.repeated
			}
			if seconds < 100 {
				t.Errorf("%d second copies only", seconds)
			}
			if missed*100 > all*h.missed {
				t.Errorf("%d of %d blocks missed, want at most %d %%", missed, all, h.missed)
			}
			t.Logf("%d second copies, %d of them in a run from the start; %d of %d blocks missed", seconds, repeated, missed, all)
		})
	}
}
