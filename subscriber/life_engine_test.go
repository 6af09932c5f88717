package subscriber

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"sync"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// lifeKind says what an engine is like.
type lifeKind struct {
	name   string
	hashes string // "sha256", "sha256_cbor", or "drawn": nobody can compute them
	bytes  bool   // events carry hashes of 32 bytes, else numbers
	host   int    // blocks of a second tier, 0 for none
	behind bool   // what it says of the second tier comes later than what it says of the device
	keyed  bool   // salts and adapters
	twins  bool   // requests compute again what is there already, so that there are second copies of any block
	full   bool   // some requests ask for kv_cache_report_mode full
	old    bool   // its replies have no topic
	calm   bool   // never empties its cache
	exact  bool   // its events tell all copies apart: what it holds is announced to the last block
}

// lifeEngine is a truthful engine: a device of so many blocks, each with the number of requests that use it, the one freed longest ago taken
// next; and perhaps a second tier, into which finished requests are copied. Hashes can be there several times.
type lifeEngine struct {
	kind  lifeKind
	rnd   *rand.Rand
	chain *blockhash.EngineChain
	size  int
	fresh uint32 // the next token that no prompt has had

	slots  []lifeSlot
	free   []int            // slots without requests, the next to be taken first
	cached map[uint64][]int // slots by hash
	host   []*lifeBlock     // least recently used first
	talks  []*lifeTalk
	system []*lifeTalk
	active []*lifeRequest

	events []any // not published yet
	behind []any // likewise, of the second tier
	tree   *lifeTree
}

type lifeSlot struct {
	block *lifeBlock // nil: caches nothing
	refs  int
}

type lifeBlock struct {
	digest blockhash.Digest
	hash   uint64
	key    uint64 // fingerprint
	parent *lifeBlock
}

// lifeTalk is a conversation so far, with its whole blocks.
type lifeTalk struct {
	Prompt
	blocks []*lifeBlock
}

type lifeRequest struct {
	talk  *lifeTalk
	slots []int
}

// lifeTree knows the parents of fingerprints, for a Sink of another goroutine.
type lifeTree struct {
	mu    sync.Mutex
	above map[uint64]uint64 // 0 for the first of a chain
}

func (l *lifeTree) parentOf(key uint64) (parent uint64, known bool) {
	l.mu.Lock()
	defer l.mu.Unlock()
	parent, known = l.above[key]
	return parent, known
}

func newLifeEngine(kind lifeKind, rnd *rand.Rand) *lifeEngine {
	e := &lifeEngine{kind: kind, rnd: rnd, size: 4, slots: make([]lifeSlot, 48+rnd.IntN(48)), tree: &lifeTree{above: map[uint64]uint64{}}}
	switch kind.hashes {
	case "sha256":
		e.chain = blockhash.NewEngineChain(blockhash.AlgorithmSHA256, blockhash.DefaultSeed)
	case "sha256_cbor":
		e.chain = blockhash.NewEngineChain(blockhash.AlgorithmSHA256CBOR, blockhash.DefaultSeed)
	}
	for range 4 {
		e.system = append(e.system, e.talk(Prompt{}, 5+rnd.IntN(30)))
	}
	if kind.keyed {
		e.system = append(e.system, e.talk(Prompt{Salt: "tenant"}, 21), e.talk(Prompt{Adapter: "sql", AdapterPath: adapterPath("sql")}, 17))
	}
	e.begin()
	return e
}

// begin makes the caches empty, as those of another process are.
func (e *lifeEngine) begin() {
	clear(e.slots)
	e.free, e.cached, e.host, e.active, e.events, e.behind = nil, map[uint64][]int{}, nil, nil, nil, nil
	for i := range e.slots {
		e.free = append(e.free, i)
	}
}

// talk begins a conversation with tokens that no other has.
func (e *lifeEngine) talk(p Prompt, tokens int) *lifeTalk {
	t := &lifeTalk{Prompt: p}
	e.say(t, tokens)
	return t
}

// say adds tokens to a conversation.
func (e *lifeEngine) say(t *lifeTalk, tokens int) {
	t.Tokens = slices.Clip(t.Tokens)
	for range tokens {
		e.fresh++
		t.Tokens = append(t.Tokens, e.fresh)
	}
	var extra *blockhash.ExtraKeys
	if t.Adapter != "" || t.Salt != "" {
		extra = &blockhash.ExtraKeys{Tagged: true, LoRA: t.Adapter, LoRAPath: t.AdapterPath, Salt: t.Salt}
	}
	t.blocks = slices.Clip(t.blocks)
	for i := len(t.blocks); i < len(t.Tokens)/e.size; i++ {
		own := t.Tokens[i*e.size : (i+1)*e.size]
		b := &lifeBlock{}
		above, parent := blockhash.Namespace{Pool: "chat", Adapter: t.Adapter, BlockSize: e.size, Salt: t.Salt}.Root(), (*blockhash.Digest)(nil)
		if i > 0 {
			b.parent = t.blocks[i-1]
			above, parent = b.parent.key, &b.parent.digest
		}
		b.key = blockhash.Chain(above, blockhash.Content(own, nil))
		if e.chain == nil {
			for j := range 4 {
				binary.BigEndian.PutUint64(b.digest[8*j:], e.rnd.Uint64())
			}
			b.hash = binary.BigEndian.Uint64(b.digest[24:])
		} else {
			b.digest = e.chain.Block(parent, own, extra)
			b.hash = e.chain.Uint64(&b.digest)
		}
		t.blocks = append(t.blocks, b)
		e.tree.mu.Lock()
		if b.parent == nil {
			above = 0
		}
		e.tree.above[b.key] = above
		e.tree.mu.Unlock()
	}
}

// step lets something happen, and returns the prompt of a request that began.
func (e *lifeEngine) step() *lifeTalk {
	switch r := e.rnd.IntN(1000); {
	case r < 2 && !e.kind.calm:
		e.clear()
	case r < 300 && len(e.active) > 0:
		e.grow(e.active[e.rnd.IntN(len(e.active))])
	case r < 550 && len(e.active) > 0 || len(e.active) > 6:
		e.finish(e.rnd.IntN(len(e.active)))
	default:
		return e.request(e.next())
	}
	return nil
}

// next returns a prompt: another turn of a conversation, or the first of one.
func (e *lifeEngine) next() *lifeTalk {
	i := e.rnd.IntN(len(e.talks) + 1)
	if i == len(e.talks) {
		if len(e.talks) > 16 {
			e.talks = e.talks[4:]
		}
		of := *e.system[e.rnd.IntN(len(e.system))]
		e.talks = append(e.talks, &of)
		i = len(e.talks) - 1
	}
	t := *e.talks[i]
	if !e.kind.twins || e.rnd.IntN(4) > 0 {
		e.say(&t, 1+e.rnd.IntN(12))
	}
	if e.kind.exact && len(t.Tokens) == e.size {
		e.say(&t, 1)
	}
	if len(t.Tokens) > 30*e.size {
		t = *e.system[0]
	}
	e.talks[i] = &t
	return &t
}

// request runs a prompt, unless there is no room for it.
func (e *lifeEngine) request(t *lifeTalk) *lifeTalk {
	r := &lifeRequest{talk: &lifeTalk{Prompt: t.Prompt, blocks: t.blocks}}
	hits := 0
	for hits < (len(t.Tokens)-1)/e.size && len(e.cached[t.blocks[hits].hash]) > 0 {
		hits++
	}
	if e.kind.twins && e.rnd.IntN(4) == 0 {
		hits -= e.rnd.IntN(hits + 1)
	}
	for _, b := range t.blocks[:hits] {
		s := e.cached[b.hash][0]
		r.slots = append(r.slots, s)
		e.hold(s)
	}
	if len(e.free) < len(t.blocks)-hits+1 {
		e.release(r)
		return nil
	}
	loaded := hits
	for loaded < (len(t.Tokens)-1)/e.size && e.inHost(t.blocks[loaded]) {
		loaded++
	}
	e.store(r, hits, loaded, e.kind.full && e.rnd.IntN(4) == 0)
	e.store(r, loaded, len(t.blocks), e.kind.full && e.rnd.IntN(4) == 0)
	e.active = append(e.active, r)
	return t
}

// grow adds answer tokens to a request.
func (e *lifeEngine) grow(r *lifeRequest) {
	n := 1 + e.rnd.IntN(2*e.size)
	if len(e.free) <= n/e.size+1 {
		return
	}
	before := len(r.talk.blocks)
	e.say(r.talk, n)
	e.store(r, before, len(r.talk.blocks), false)
}

// store takes slots for the blocks from to to and says so, in report mode full from the first block on.
func (e *lifeEngine) store(r *lifeRequest, from, to int, full bool) {
	if from == to {
		return
	}
	for _, b := range r.talk.blocks[from:to] {
		s := e.free[0]
		e.free = e.free[1:]
		if old := e.slots[s].block; old != nil {
			e.cached[old.hash] = slices.DeleteFunc(e.cached[old.hash], func(x int) bool { return x == s })
			e.events = append(e.events, e.withHashes(fields{{"type", "BlockRemoved"}, {"medium", "GPU"}, {"group_idx", 0}}, old))
		}
		e.slots[s] = lifeSlot{b, 1}
		e.cached[b.hash] = append(e.cached[b.hash], s)
		r.slots = append(r.slots, s)
	}
	if full {
		from = 0
	}
	t := r.talk
	extra := make([]any, to-from)
	for i := range extra {
		var keys []any
		if t.Adapter != "" {
			keys = append(keys, t.Adapter)
		}
		if t.Salt != "" && from+i == 0 {
			keys = append(keys, t.Salt)
		}
		if keys != nil {
			extra[i] = keys
		}
	}
	var name any
	if t.Adapter != "" {
		name = t.Adapter
	}
	e.events = append(e.events, e.withHashes(fields{
		{"type", "BlockStored"},
		{"parent_block_hash", e.parent(t.blocks[from])},
		{"token_ids", t.Tokens[from*e.size : to*e.size]},
		{"block_size", e.size},
		{"lora_id", nil},
		{"medium", "GPU"},
		{"lora_name", name},
		{"extra_keys", extra},
		{"group_idx", 0},
		{"kv_cache_spec_kind", "full_attention"},
	}, t.blocks[from:to]...))
}

// withHashes adds the hashes of blocks to an event.
func (e *lifeEngine) withHashes(f fields, blocks ...*lifeBlock) fields {
	hashes := make([]any, len(blocks))
	for i, b := range blocks {
		hashes[i] = e.hash(b)
	}
	return append(f, kv{"block_hashes", hashes})
}

func (e *lifeEngine) hash(b *lifeBlock) any {
	if e.kind.bytes {
		return b.digest[:]
	}
	return b.hash
}

func (e *lifeEngine) parent(b *lifeBlock) any {
	if b.parent == nil {
		return nil
	}
	return e.hash(b.parent)
}

func (e *lifeEngine) hold(slot int) {
	e.slots[slot].refs++
	if i := slices.Index(e.free, slot); i >= 0 {
		e.free = slices.Delete(e.free, i, i+1)
	}
}

// release gives the slots of a request back, the last block first.
func (e *lifeEngine) release(r *lifeRequest) {
	for _, s := range slices.Backward(r.slots) {
		if e.slots[s].refs--; e.slots[s].refs == 0 {
			e.free = append(e.free, s)
		}
	}
}

// finish ends a request and copies some of its blocks to the second tier.
func (e *lifeEngine) finish(i int) {
	r := e.active[i]
	e.active = slices.Delete(e.active, i, i+1)
	if e.kind.host > 0 && e.rnd.IntN(3) > 0 {
		for _, b := range r.talk.blocks[:e.rnd.IntN(len(r.talk.blocks)+1)] {
			e.offload(b)
		}
	}
	e.release(r)
}

func (e *lifeEngine) inHost(b *lifeBlock) bool {
	i := slices.IndexFunc(e.host, func(x *lifeBlock) bool { return x.hash == b.hash })
	if i < 0 {
		return false
	}
	x := e.host[i]
	e.host = append(slices.Delete(e.host, i, i+1), x)
	return true
}

func (e *lifeEngine) offload(b *lifeBlock) {
	if e.inHost(b) {
		return
	}
	if len(e.host) == e.kind.host {
		e.behind = append(e.behind, e.withHashes(fields{{"type", "BlockRemoved"}, {"medium", "CPU"}}, e.host[0]))
		e.host = e.host[1:]
	}
	e.host = append(e.host, b)
	e.behind = append(e.behind, e.withHashes(fields{
		{"type", "BlockStored"}, {"parent_block_hash", e.parent(b)}, {"token_ids", []uint32{}}, {"block_size", 0}, {"lora_id", nil}, {"medium", "CPU"},
	}, b))
}

// clear empties all tiers, when the requests under way have ended.
func (e *lifeEngine) clear() {
	events := append(e.events, e.behind...)
	e.begin()
	e.events = append(events, clearedEvent())
}

// batch takes the events that were not published yet, all of them or as many as an engine's step would.
func (e *lifeEngine) batch(all bool) []any {
	if all || !e.kind.behind || e.rnd.IntN(8) == 0 {
		e.events = append(e.events, e.behind...)
		e.behind = nil
	}
	events := e.events
	e.events = nil
	return events
}

// held returns the fingerprints that a prompt can hit, by tier.
func (e *lifeEngine) held() (tiers [2]map[uint64]bool) {
	blocks := [2]map[*lifeBlock]bool{{}, {}}
	for _, s := range e.slots {
		if s.block != nil {
			blocks[Device][s.block] = true
			blocks[Any][s.block] = true
		}
	}
	for _, b := range e.host {
		blocks[Any][b] = true
	}
	for tier, in := range blocks {
		keys := make(map[uint64]bool, len(in))
		for b := range in {
			keys[b.key] = true
		}
		tiers[tier] = map[uint64]bool{}
		for b := range in {
			whole := true
			for up := b.parent; whole && up != nil; up = up.parent {
				whole = keys[up.key]
			}
			if whole {
				tiers[tier][b.key] = true
			}
		}
	}
	return tiers
}
