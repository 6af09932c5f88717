package subscriber

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// The model of the mirror: a universe of few engine hashes, each with the
// parent and content it usually has, and for each of them what the engine has
// said. What is announced is worked out anew from that after every batch.

const (
	modelGroups = 4 // none, 0, 1, 2
	modelSalts  = 2
)

// The media of the model: two whose copies are counted, two whose copies end by
// time (DISK by the default rule, the other one the host copies that removals
// leave when the engine's offload tier reports nothing), and one that is ignored.
const (
	modelGPU = iota
	modelCPU
	modelCounted
)

const (
	modelDisk = iota
	modelAssumed
	modelTimed
)

type modelHash struct {
	hash    uint64
	above   int // index of the usual parent, −1 for a sequence start
	content uint32
	salt    int // of a sequence start
}

type modelBlock struct {
	present   bool
	ambiguous bool
	above     int
	salt      int
	content   uint32
	copies    [modelCounted][modelGroups]int
	until     [modelTimed][modelGroups]time.Time // zero without a copy
}

// modelGhost is what a removed block was.
type modelGhost struct {
	above, salt int
	content     uint32
	until       time.Time
}

type model struct {
	rnd    *rand.Rand
	hashes []modelHash
	blocks []modelBlock
	groups [modelGroups]bool // full-attention groups seen on the device
	ghosts map[int]modelGhost
	haunts bool // removed blocks become ghosts
	now    time.Time
	demote time.Duration // 0: removals leave nothing
	used   int           // groups in this universe
	clean  bool          // no conflicts, no loops: for bounded mirrors

	roots   [modelSalts]uint64
	parents map[uint64]uint64 // of fingerprints; roots[…] for the first of a chain
}

func newModel(rnd *rand.Rand, clean bool) *model {
	m := &model{
		rnd: rnd, clean: clean, used: 1 + rnd.IntN(modelGroups), parents: map[uint64]uint64{},
		ghosts: map[int]modelGhost{}, now: time.Unix(1_000_000, 0),
	}
	if rnd.IntN(3) == 0 {
		m.demote = time.Duration(1+rnd.IntN(300)) * time.Second
	}
	for salt, text := range []string{"", "tenant"} {
		m.roots[salt] = blockhash.Namespace{Pool: "chat", BlockSize: 2, Salt: text}.Root()
	}
	for i := range 2 + rnd.IntN(18) {
		h := modelHash{hash: rnd.Uint64(), above: rnd.IntN(i+1) - 1, content: rnd.Uint32N(3), salt: rnd.IntN(modelSalts)}
		if i > 0 && rnd.IntN(4) == 0 { // another hash of the same fingerprint
			twin := m.hashes[rnd.IntN(i)]
			h.above, h.content, h.salt = twin.above, twin.content, twin.salt
		}
		if rnd.IntN(3) == 0 { // sequential hashes, for long probe runs
			h.hash = uint64(i)
		}
		m.hashes = append(m.hashes, h)
	}
	m.blocks = make([]modelBlock, len(m.hashes))
	return m
}

func (m *model) tokens(content uint32) []uint32 { return []uint32{content, 7} }

// rooted works out the tiers and the key of a block by walking to its root.
func (m *model) rooted(i int) (anyTier, device bool, key uint64) {
	b := &m.blocks[i]
	if !b.present || b.ambiguous {
		return false, false, 0
	}
	anyTier, device = true, false
	for g := range modelGroups {
		device = device || b.copies[modelGPU][g] > 0
	}
	for g := 1; g < modelGroups; g++ {
		if !m.groups[g] {
			continue
		}
		n := 0
		for _, group := range []int{0, g} {
			for medium := range modelCounted {
				n += b.copies[medium][group]
			}
			for medium := range modelTimed {
				if !b.until[medium][group].IsZero() {
					n++
				}
			}
		}
		anyTier = anyTier && n > 0
		device = device && b.copies[modelGPU][g]+b.copies[modelGPU][0] > 0
	}
	device = device && anyTier
	content := blockhash.Content(m.tokens(b.content), nil)
	if b.above < 0 {
		key = blockhash.Chain(m.roots[b.salt], content)
		m.parents[key] = m.roots[b.salt]
		return anyTier, device, key
	}
	anyAbove, deviceAbove, above := m.rooted(b.above)
	key = blockhash.Chain(above, content)
	if anyTier && anyAbove {
		m.parents[key] = above
	}
	return anyTier && anyAbove, device && deviceAbove, key
}

func (m *model) parentOf(key uint64) (uint64, bool) {
	p := m.parents[key]
	return p, slices.Contains(m.roots[:], p)
}

// announced returns how many blocks of each fingerprint are rooted, by tier.
func (m *model) announced() (tiers [2]map[uint64]int) {
	tiers = [2]map[uint64]int{{}, {}}
	for i := range m.blocks {
		anyTier, device, key := m.rooted(i)
		if anyTier {
			tiers[Any][key]++
		}
		if device {
			tiers[Device][key]++
		}
	}
	return tiers
}

// above tells whether i is an ancestor of from, or from itself.
func (m *model) above(i, from int) bool {
	for from >= 0 && from != i && m.blocks[from].present {
		from = m.blocks[from].above
	}
	return from == i
}

// enter makes a block present. It is false when the block would be its own
// ancestor.
func (m *model) enter(i, above, salt int, content uint32) bool {
	b := &m.blocks[i]
	switch {
	case !b.present && above >= 0 && m.above(i, above):
		return false
	case !b.present:
		*b = modelBlock{present: true, above: above, salt: salt, content: content}
	case b.above != above || b.content != content || above < 0 && b.salt != salt:
		b.ambiguous = true
	}
	return true
}

// store is a device store with tokens. One of a run that starts a sequence
// gives a block no second copy.
func (m *model) store(i, above, salt int, content uint32, group int, first bool) {
	if !m.enter(i, above, salt, content) {
		return
	}
	if n := &m.blocks[i].copies[modelGPU][group]; !first || *n == 0 {
		*n++
	} else {
		m.haunts = true
	}
}

// prove gives a parent and its ancestors, as far as they are known and not
// rooted on the device, a copy if they have none.
func (m *model) prove(i, group int) {
	for ; i >= 0 && m.known(i); i = m.blocks[i].above {
		// A bounded mirror may lack what is rooted here.
		if _, device, _ := m.rooted(i); device && !m.clean || m.blocks[i].ambiguous {
			return
		}
		if n := &m.blocks[i].copies[modelGPU][group]; *n == 0 {
			*n++
		}
	}
}

// known makes a block present from its ghost if need be.
func (m *model) known(i int) bool {
	if m.blocks[i].present {
		return true
	}
	g, ok := m.ghosts[i]
	return ok && (m.clean || m.haunts && !m.now.After(g.until)) && m.enter(i, g.above, g.salt, g.content)
}

func (m *model) remove(i, medium, group int) {
	b := &m.blocks[i]
	switch {
	case medium == modelCounted: // the disk
		b.until[modelDisk][group] = time.Time{}
	case b.copies[medium][group] == 0:
		return
	default:
		if medium == modelGPU && m.demote > 0 && b.copies[medium][group] == 1 {
			m.extend(i, modelAssumed, group, m.demote)
		}
		b.copies[medium][group]--
	}
	before := *b
	if m.drop(i) && !before.ambiguous && m.haunts {
		m.ghosts[i] = modelGhost{before.above, before.salt, before.content, m.now.Add(ghostLife)}
	}
}

// drop forgets a block without copies.
func (m *model) drop(i int) bool {
	b := &m.blocks[i]
	if m.clean && b.present { // a bounded mirror can have a ghost where the model still has the block
		m.ghosts[i] = modelGhost{above: b.above, salt: b.salt, content: b.content}
	}
	gone := b.present && b.copies == [modelCounted][modelGroups]int{} && b.until == [modelTimed][modelGroups]time.Time{}
	if gone {
		*b = modelBlock{}
	}
	return gone
}

// extend puts off the end of a copy.
func (m *model) extend(i, medium, group int, by time.Duration) {
	if until := &m.blocks[i].until[medium][group]; until.Before(m.now.Add(by)) {
		*until = m.now.Add(by)
	}
}

// tick ends what has lived its time.
func (m *model) tick() {
	for i := range m.blocks {
		for medium := range modelTimed {
			for group := range modelGroups {
				if until := &m.blocks[i].until[medium][group]; !until.After(m.now) {
					*until = time.Time{}
				}
			}
		}
		m.drop(i)
	}
}

func (m *model) clear() {
	m.groups = [modelGroups]bool{}
	for i := range m.blocks {
		m.drop(i)
	}
	clear(m.blocks)
}

// event draws an event, applies it to the model and returns it encoded.
func (m *model) event() any {
	r := m.rnd.IntN(1000)
	group := m.rnd.IntN(m.used)
	if m.used > 1 && m.rnd.IntN(8) > 0 { // mostly a group, not none
		group = 1 + m.rnd.IntN(m.used-1)
	}
	switch {
	case r < 5:
		m.clear()
		return clearedEvent()
	case r < 15:
		return fields{{"type", "BlockStored"}, {"block_hashes", "?"}}
	case r < 25:
		return []any{"Unknown", 1}
	case r < 100:
		return m.storeKnown(group)
	case r < 480:
		return m.removal(group)
	}
	return m.storeRun(group)
}

func (m *model) head(kind string, indices []int, medium, group int) fields {
	hashes := make([]uint64, len(indices))
	for i, x := range indices {
		hashes[i] = m.hashes[x].hash
	}
	f := fields{{"type", kind}, {"block_hashes", hashes}, {"medium", []string{"GPU", "CPU", "DISK", "EXTERNAL"}[medium]}}
	if group > 0 {
		f = append(f, kv{"group_idx", group * 3})
	}
	return f
}

// storeKnown is a hash-only store.
func (m *model) storeKnown(group int) any {
	i, medium := m.rnd.IntN(len(m.hashes)), m.rnd.IntN(4)
	first := m.rnd.IntN(2) == 0
	m.haunts = m.haunts || medium == modelCPU || medium == modelCounted
	if medium <= modelCounted && m.known(i) {
		n := &m.blocks[i].copies
		switch {
		case medium == modelCounted:
			m.extend(i, modelDisk, group, 10*time.Minute)
		case medium == modelCPU || !first || n[modelGPU][group] == 0:
			n[medium][group]++
		default:
			m.haunts = true
		}
	}
	f := append(m.head("BlockStored", []int{i}, medium, group), kv{"token_ids", []uint32{}}, kv{"block_size", 0})
	if !first {
		f = append(f, kv{"parent_block_hash", uint64(0xffff_ffff_ffff)})
	}
	return f
}

func (m *model) removal(group int) any {
	var indices []int
	medium := max(m.rnd.IntN(7)-3, 0)
	for range 1 + m.rnd.IntN(3) {
		i := m.rnd.IntN(len(m.hashes))
		indices = append(indices, i)
		if medium <= modelCounted {
			m.remove(i, medium, group)
		}
	}
	return m.head("BlockRemoved", indices, medium, group)
}

// storeRun is a device store of a run down the tree, sometimes a broken one.
func (m *model) storeRun(group int) any {
	run := []int{m.rnd.IntN(len(m.hashes))}
	for range m.rnd.IntN(4) {
		last := run[len(run)-1]
		for i := range m.hashes {
			if m.hashes[i].above == last && m.rnd.IntN(2) == 0 {
				run = append(run, i)
				break
			}
		}
	}
	first := m.hashes[run[0]]
	above, contents := first.above, []uint32(nil)
	for _, i := range run {
		contents = append(contents, m.hashes[i].content)
	}
	if !m.clean {
		switch m.rnd.IntN(40) {
		case 0:
			above = m.rnd.IntN(len(m.hashes)) // another parent, or itself
		case 1:
			contents[0]++
		case 2:
			run = append(run, run[0])
			contents = append(contents, contents[0])
		}
	}
	extra := make([]any, len(run))
	var tokens []uint32
	for _, c := range contents {
		tokens = append(tokens, m.tokens(c)...)
	}
	f := m.head("BlockStored", run, 0, group)
	if above >= 0 {
		f = append(f, kv{"parent_block_hash", m.hashes[above].hash})
	} else if first.salt > 0 {
		extra[0] = []any{"tenant"}
	}
	f = append(f, kv{"token_ids", tokens}, kv{"block_size", 2}, kv{"extra_keys", extra})
	if m.rnd.IntN(50) == 0 {
		return append(f, kv{"kv_cache_spec_kind", "sliding_window"})
	}
	start, seen := above, map[int]bool{above: true}
	for _, i := range run {
		if seen[i] {
			return f
		}
		seen[i] = true
	}
	if group > 0 {
		m.groups[group] = true
	}
	if above >= 0 && m.haunts {
		m.prove(above, group)
	}
	for n, i := range run {
		m.store(i, above, first.salt, contents[n], group, start < 0)
		above = i
	}
	return f
}

// TestModel compares with the model after every batch of 10^6 random events:
// the announced set of each tier is the model's, and at no call in between does
// it break a promise of Sink (checkedSink). The events come in parts, which run
// beside each other: the race detector makes all of them half a minute's work.
func TestModel(t *testing.T) {
	const (
		events      = 1_000_000
		parts       = 8
		perUniverse = 5_000
		perPart     = events / perUniverse / parts // universes
	)
	for part := range parts {
		t.Run(fmt.Sprintf("part=%d", part), func(t *testing.T) {
			t.Parallel()
			announced, played := 0, 0
			for seed := part * perPart; seed < (part+1)*perPart; seed++ {
				n, sent := playUniverse(t, uint64(seed), perUniverse)
				played, announced = played+n, announced+sent
			}
			if played < events/parts {
				t.Errorf("%d events, want %d", played, events/parts)
			}
			if announced < played/20 {
				t.Errorf("%d announced over all batches: the events are too destructive to test anything", announced)
			}
		})
	}
}

// playUniverse folds events of one universe, at least as many as asked for. It
// returns how many they were, and how many blocks were announced after each
// batch, all batches together.
func playUniverse(t *testing.T, seed uint64, events int) (n, announced int) {
	t.Helper()
	m := newModel(rand.New(rand.NewPCG(seed, 2)), false)
	sink := newCheckedSink(t)
	sink.parentOf = m.parentOf
	f := newFold(foldOptions{pool: "chat", sink: sink, demote: m.demote})
	for n < events {
		var want [2]map[uint64]int
		if m.rnd.IntN(4) == 0 {
			want = tickModel(m, f, sink)
		} else {
			_, want = foldModel(t, m, f, sink, &n)
		}
		for tier, set := range want {
			for key := range set {
				if !sink.tiers[tier][key] {
					t.Fatalf("seed %d, event %d: tier %d lacks %x", seed, n, tier, key)
				}
			}
			if len(set) != len(sink.tiers[tier]) {
				t.Fatalf("seed %d, event %d: tier %d has %d, want %d", seed, n, tier, len(sink.tiers[tier]), len(set))
			}
			announced += len(set)
		}
		if n%500 < 16 {
			if err := f.mirror.check(); err != nil {
				t.Fatalf("seed %d, event %d: %v", seed, n, err)
			}
		}
	}
	return n, announced
}

// TestModelBounded: a full mirror announces part of what the model does, never
// more, and stays within its bound.
func TestModelBounded(t *testing.T) {
	const perUniverse = 2_000
	full, evicted := 0, 0
	for seed := range uint64(60) {
		m := newModel(rand.New(rand.NewPCG(seed, 3)), true)
		m.haunts = true // as soon as the mirror was full
		sink := newCheckedSink(t)
		sink.parentOf = m.parentOf
		maxBlocks := 1 + m.rnd.IntN(8)
		f := newFold(foldOptions{pool: "chat", sink: sink, maxBlocks: maxBlocks, demote: m.demote})
		for n := 0; n < perUniverse; {
			if m.rnd.IntN(4) == 0 {
				tickModel(m, f, sink)
			}
			stats, want := foldModel(t, m, f, sink, &n)
			full += stats.dropped[dropFull]
			if stats.blocks == maxBlocks && f.mirror.room[roomCold].head != 0 {
				evicted++
			}
			if stats.blocks > maxBlocks || stats.orphans > stats.blocks {
				t.Fatalf("seed %d: %d blocks, %d orphans of at most %d", seed, stats.blocks, stats.orphans, maxBlocks)
			}
			for tier := range sink.tiers {
				for key := range sink.tiers[tier] {
					if want[tier][key] == 0 {
						t.Fatalf("seed %d, event %d: tier %d has %x", seed, n, tier, key)
					}
				}
			}
			if err := f.mirror.check(); err != nil {
				t.Fatalf("seed %d, event %d: %v", seed, n, err)
			}
		}
	}
	if full == 0 || evicted == 0 {
		t.Errorf("full %d times, %d times with cold blocks: nothing tested", full, evicted)
	}
}

// foldModel draws a batch, folds it and returns what the model announces then.
func foldModel(t *testing.T, m *model, f *fold, sink *checkedSink, n *int) (foldStats, [2]map[uint64]int) {
	t.Helper()
	var events []any
	for range 1 + m.rnd.IntN(16) {
		events = append(events, m.event())
	}
	*n += len(events)
	want := m.announced() // first, as it names the parents of what is stored
	sink.begin()
	stats, err := f.fold(packBatch(events...), m.now)
	if err != nil {
		t.Fatal(err)
	}
	return stats, want
}

// tickModel lets time pass in both.
func tickModel(m *model, f *fold, sink *checkedSink) [2]map[uint64]int {
	m.now = m.now.Add(time.Duration(m.rnd.IntN(200)) * time.Second)
	m.tick()
	sink.begin()
	f.tick(m.now)
	return m.announced()
}
