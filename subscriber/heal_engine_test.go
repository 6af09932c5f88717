package subscriber

import (
	"slices"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// cacheEngine is a truthful engine: a prefix cache of so many blocks, least recently used ones evicted, that publishes what vLLM
// would. A block may be there in several copies; each is announced and removed on its own.
type cacheEngine struct {
	chain  *blockhash.EngineChain // nil: draws hashes that nobody can compute
	random uint64
	tagged bool
	size   int
	group  any

	slots  []cacheSlot
	order  []int            // slots, least recently used first
	cached map[uint64][]int // slots by hash

	events []any
	drawn  map[uint64]uint64 // hash by fingerprint, without a chain
}

type cacheSlot struct {
	hash uint64 // 0: empty
	key  uint64 // fingerprint
}

func newCacheEngine(chain *blockhash.EngineChain, tagged bool, size, blocks int) *cacheEngine {
	e := &cacheEngine{chain: chain, tagged: tagged, size: size, group: 0, slots: make([]cacheSlot, blocks), cached: map[uint64][]int{}, drawn: map[uint64]uint64{}}
	for i := range e.slots {
		e.order = append(e.order, i)
	}
	return e
}

// adapterPath is where every adapter of a cacheEngine lies.
func adapterPath(adapter string) string {
	if adapter == "" {
		return ""
	}
	return "/lora/" + adapter
}

// hashes are the engine's hashes of a prompt's whole blocks, and our fingerprints of them.
func (e *cacheEngine) hashes(p Prompt) (hashes, keys []uint64) {
	root := blockhash.Namespace{Pool: "chat", Adapter: p.Adapter, BlockSize: e.size, Salt: p.Salt}.Root()
	keys = blockhash.AppendKeys(nil, root, p.Tokens, e.size)
	if e.chain == nil {
		for _, k := range keys {
			if e.drawn[k] == 0 {
				e.random = e.random*6364136223846793005 + 1442695040888963407
				e.drawn[k] = e.random
			}
			hashes = append(hashes, e.drawn[k])
		}
		return hashes, keys
	}
	var extra *blockhash.ExtraKeys
	if p.Adapter != "" || p.Salt != "" {
		extra = &blockhash.ExtraKeys{Tagged: e.tagged, LoRA: p.Adapter, LoRAPath: adapterPath(p.Adapter), Salt: p.Salt}
	}
	var parent *blockhash.Digest
	for i := range keys {
		d := e.chain.Block(parent, p.Tokens[i*e.size:(i+1)*e.size], extra)
		hashes = append(hashes, e.chain.Uint64(&d))
		parent = &d
	}
	return hashes, keys
}

// run serves a prompt and its answer, and returns how many prompt tokens were cached. Answers extend the prompt's chain.
func (e *cacheEngine) run(p Prompt, answer []uint32) (hit int) {
	prompt := len(p.Tokens)
	all := p
	all.Tokens = append(slices.Clone(p.Tokens), answer...)
	hashes, keys := e.hashes(all)
	if len(hashes) > len(e.slots) {
		return 0 // refused
	}
	var used []int
	for hit < min((prompt-1)/e.size, len(hashes)) {
		slots := e.cached[hashes[hit]]
		if len(slots) == 0 {
			break
		}
		used = append(used, slots[0])
		hit++
	}
	e.touch(used)
	e.allocate(p, all.Tokens, hashes, keys, &used, hit, prompt/e.size)
	e.allocate(p, all.Tokens, hashes, keys, &used, max(hit, prompt/e.size), len(hashes))
	slices.Reverse(used) // freed last block first
	e.touch(used)
	return hit * e.size
}

// touch moves slots to the end of the order.
func (e *cacheEngine) touch(slots []int) {
	e.order = slices.DeleteFunc(e.order, func(s int) bool { return slices.Contains(slots, s) })
	e.order = append(e.order, slots...)
}

func (e *cacheEngine) allocate(p Prompt, tokens []uint32, hashes, keys []uint64, used *[]int, from, to int) {
	if from >= to {
		return
	}
	for i := from; i < to; i++ {
		at := slices.IndexFunc(e.order, func(s int) bool { return !slices.Contains(*used, s) })
		slot := e.order[at]
		if old := e.slots[slot].hash; old != 0 {
			e.drop(slot)
			e.events = append(e.events, removedEvent(old).with("group_idx", e.group))
		}
		e.slots[slot] = cacheSlot{hashes[i], keys[i]}
		e.cached[hashes[i]] = append(e.cached[hashes[i]], slot)
		*used = append(*used, slot)
	}
	extra := make([]any, to-from)
	for i := range extra {
		var keys []any
		if p.Adapter != "" {
			keys = append(keys, p.Adapter)
		}
		if p.Salt != "" && from+i == 0 {
			keys = append(keys, p.Salt)
		}
		if keys != nil {
			extra[i] = keys
		}
	}
	var parent, name any
	if from > 0 {
		parent = hashes[from-1]
	}
	if p.Adapter != "" {
		name = p.Adapter
	}
	e.events = append(e.events, storedEvent(parent, e.size, tokens[from*e.size:to*e.size], hashes[from:to]...).
		with("lora_name", name).with("extra_keys", extra).with("group_idx", e.group))
}

func (e *cacheEngine) drop(slot int) {
	h := e.slots[slot].hash
	e.cached[h] = slices.DeleteFunc(e.cached[h], func(s int) bool { return s == slot })
	e.slots[slot] = cacheSlot{}
}

// clear empties the cache and says so.
func (e *cacheEngine) clear() {
	e.restart()
	e.events = append(e.events, clearedEvent())
}

// restart empties the cache silently.
func (e *cacheEngine) restart() {
	clear(e.slots)
	clear(e.cached)
}

// batch takes what was published since the last one.
func (e *cacheEngine) batch() []byte {
	b := packBatch(e.events...)
	e.events = nil
	return b
}

// held are the fingerprints that the engine can use: of blocks whose ancestors it has too.
func (e *cacheEngine) held() map[uint64]bool {
	held := map[uint64]bool{}
	for _, s := range e.slots {
		if s.hash != 0 {
			held[s.key] = true
		}
	}
	return held
}
