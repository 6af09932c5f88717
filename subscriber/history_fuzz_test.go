package subscriber

import (
	"math/rand/v2"
	"testing"
	"time"
)

// FuzzHistory folds histories of batches, one byte for each thing that happens: stores, second copies and removals in a small universe of
// blocks in three media, clears, larger blocks, unreadable batches, prompts, time that passes, resets, and mirrors that are saved and taken
// up by another fold. Whatever comes, no promise of Sink is broken, the mirror's books are right, and its bounds hold; and while nothing is
// inferred, the same history folded twice, once in silence, announces the same.
func FuzzHistory(f *testing.F) {
	for seed := range uint64(12) {
		rnd := rand.New(rand.NewPCG(seed, 1))
		script := make([]byte, 20+rnd.IntN(100))
		for i := range script {
			script[i] = byte(rnd.Uint32())
		}
		f.Add(script, uint8(seed))
	}
	f.Fuzz(func(t *testing.T, script []byte, how uint8) {
		if len(script) > 300 {
			return
		}
		maxBlocks := 8 << (how & 3)
		o := foldOptions{pool: "chat", maxBlocks: maxBlocks}
		if how&4 != 0 {
			o.demote = time.Minute
		}
		h := &histories{t: t, o: o, now: time.Unix(1_000, 0)}
		h.open, h.silent = newCheckedSink(t), newCheckedSink(t)
		h.folds = [2]*fold{h.fold(h.open), h.fold(h.silent)}
		for _, f := range h.folds {
			f.connected(true)
			f.history(how&8 != 0)
		}
		h.folds[1].quiet(true)
		for i := 0; i+1 < len(script); i += 2 {
			h.step(script[i], script[i+1])
		}
		h.open.begin()
		h.silent.begin()
		h.folds[1].quiet(false)
		for tier := range h.open.tiers {
			a, b := h.open.tiers[tier], h.silent.tiers[tier]
			if len(a) != len(b) || !includes(a, b) {
				t.Fatalf("tier %d: %d announced, in silence %d", tier, len(a), len(b))
			}
		}
	})
}

// histories are two folds of one history.
type histories struct {
	t            *testing.T
	o            foldOptions
	open, silent *checkedSink
	folds        [2]*fold
	now          time.Time
}

func (h *histories) fold(s Sink) *fold {
	o := h.o
	o.sink = s
	f := newFold(o)
	f.heal.secret = 7 // of both alike
	return f
}

// universe is a tree of blocks: block i hangs on block i/2, and 1 is a first one.
func universe(i int) (hash uint64, parent any, tokens []uint32) {
	if i > 1 {
		parent = uint64(1000 + i/2)
	}
	return uint64(1000 + i), parent, []uint32{uint32(i), 7}
}

// line is a prompt down to a block.
func line(i int) (tokens []uint32) {
	for ; i > 0; i /= 2 {
		_, _, own := universe(i)
		tokens = append(append([]uint32(nil), own...), tokens...)
	}
	return tokens
}

func (h *histories) step(op, arg byte) {
	i := 1 + int(arg)%31
	hash, parent, tokens := universe(i)
	medium := []string{"GPU", "CPU", "DISK", "EXTERNAL"}[arg>>5&3]
	switch op % 16 {
	case 0, 1, 2, 3:
		e := storedEvent(parent, 2, tokens, hash)
		if op&16 != 0 {
			e = e.with("group_idx", int(op>>5))
		}
		h.event(e)
	case 4: // a run
		below, _, more := universe(2 * i)
		h.event(storedEvent(parent, 2, append(tokens, more...), hash, below))
	case 5: // of another parent
		h.event(storedEvent(uint64(1000+int(op>>4)), 2, tokens, hash))
	case 6, 7, 8:
		h.event(removedEvent(hash).with("medium", medium))
	case 9, 10: // by its hash alone
		h.event(fields{{"type", "BlockStored"}, {"block_hashes", []uint64{hash}}, {"token_ids", []uint32{}}, {"block_size", 0}, {"medium", medium}, {"parent_block_hash", parent}})
	case 11:
		switch {
		case arg < 8:
			h.event(clearedEvent())
		case arg < 16:
			h.event(storedEvent(nil, 4, []uint32{1, 2, 3, 4}, hash))
		case arg < 24:
			h.batch([]byte{0x93, arg})
		}
	case 12: // a prompt
		for n, f := range h.folds {
			h.begin(n)
			f.witness(Prompt{Tokens: line(i)}, h.now)
		}
	case 13:
		h.now = h.now.Add(time.Duration(arg) * 5 * time.Second)
		for n, f := range h.folds {
			h.begin(n)
			f.tick(h.now)
		}
	case 14:
		if arg < 32 {
			for n, f := range h.folds {
				h.begin(n)
				f.reset(CauseGap)
			}
		}
	case 15: // another process takes up the mirror
		if arg > 64 {
			break
		}
		for n, f := range h.folds {
			saved := f.snapshot(savedIdentity(), samplePosition(), h.now).file()
			h.begin(n)
			f.reset(CauseDisconnect)
			sink := []*checkedSink{h.open, h.silent}[n]
			sink.described = nil
			g := h.fold(sink)
			g.quiet(true)
			if _, err := loadInto(g, saved); err != nil {
				h.t.Fatal(err)
			}
			g.connected(true)
			if n == 0 {
				g.quiet(false)
			}
			h.folds[n] = g
		}
	}
	for _, f := range h.folds {
		if err := f.mirror.check(); err != nil {
			h.t.Fatal(err)
		}
		if f.mirror.present > h.o.maxBlocks {
			h.t.Fatalf("%d blocks of at most %d", f.mirror.present, h.o.maxBlocks)
		}
	}
}

func (h *histories) begin(n int) { []*checkedSink{h.open, h.silent}[n].begin() }

// event is a batch made at this time: ends of copies are reckoned from then.
func (h *histories) event(e any) { h.batch(pack([]any{float64(h.now.Unix()), []any{e}, 0})) }

func (h *histories) batch(payload []byte) {
	for n, f := range h.folds {
		h.begin(n)
		if _, err := f.fold(payload, h.now); err != nil {
			f.reset(CauseUnreadable)
		}
	}
}
