package feed

import (
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// source returns what a number stands for, nil when nobody wants to hear of it.
func (r *inbox) source(number uint32) (*heldSource, error) {
	s, ok := r.numbers[number]
	if !ok && !r.former[number] {
		return nil, malformed("source %d is not announced", number)
	}
	return s, nil
}

func (r *inbox) state(m *feedpb.State) error {
	s, err := r.source(m.GetSource())
	if err != nil || s == nil {
		return err
	}
	about, err := described(m)
	if err != nil {
		return err
	}
	s.about, s.heard = about, true
	s.describe()
	return nil
}

func (r *inbox) beginCopy(m *feedpb.Begin, now time.Time) error {
	s, err := r.source(m.GetSource())
	if err == nil {
		r.begun[m.GetSource()] = true
	}
	if err != nil || s == nil {
		return err
	}
	if m.GetBlocks() > uint64(r.maxBlocks) {
		return malformed("source %d has %d blocks, more than %d", m.GetSource(), m.GetBlocks(), r.maxBlocks)
	}
	s.begun, s.copying, s.opened, s.forgotten = true, true, now, false
	s.blocks, s.copied, s.gone = int64(m.GetBlocks()), 0, 0
	if s.unfollowed.IsZero() {
		s.unfollowed = now
	}
	if s.sink != nil {
		s.sink.Begin()
	}
	return nil
}

func (r *inbox) blocks(m *feedpb.Blocks) error {
	s, err := r.source(m.GetSource())
	if err != nil {
		return err
	}
	n, err := countKeys("blocks", m.GetKeys(), m.GetTiers(), true)
	if err != nil {
		return malformed("%v", err)
	}
	if s == nil {
		return nil
	}
	if !s.copying {
		return malformed("blocks of source %d outside of a copy", m.GetSource())
	}
	if s.copied += int64(n); s.copied > 2*r.maxBlocks {
		return malformed("a copy of source %d has more than %d blocks", m.GetSource(), 2*r.maxBlocks)
	}
	r.metrics.received(kindCopy, n)
	if s.sink != nil {
		r.store(s.sink, m.GetKeys(), m.GetTiers())
	}
	return nil
}

func (r *inbox) endCopy(m *feedpb.End, now time.Time) error {
	s, err := r.source(m.GetSource())
	if err != nil || s == nil {
		return err
	}
	if !s.copying {
		return malformed("end of a copy of source %d that has not begun", m.GetSource())
	}
	s.copying = false
	s.blocks = max(0, s.copied-s.gone) // what was added meanwhile has come again
	r.metrics.copied(now.Sub(s.opened))
	if s.sink != nil {
		s.sink.End()
	}
	r.followed(s)
	return nil
}

// described is the description in a message. A problem or a cause that this release does not know has no name here: names become labels.
func described(m *feedpb.State) (subscriber.Description, error) {
	d, err := describedBy(m)
	if err != nil {
		return d, malformed("%v", err)
	}
	switch d.Problem {
	case subscriber.ProblemNone, subscriber.ProblemNoTokens, subscriber.ProblemBigram, subscriber.ProblemLookahead, subscriber.ProblemMirrorFull,
		subscriber.ProblemBlockSize, subscriber.ProblemPageSize, subscriber.ProblemHybrid, subscriber.ProblemNoExtraKeys:
	default:
		d.Problem = ProblemOther
	}
	return d, nil
}

// countAny counts the keys of a list that it says to be in, or to leave, any tier.
func countAny(keys, tiers []byte) int64 {
	n := int64(len(keys) / keySize)
	for _, t := range tiers {
		if t&tierAny == 0 {
			n--
		}
	}
	return n
}

func causeOf(text string) subscriber.Cause {
	switch c := subscriber.Cause(text); c {
	case subscriber.CauseDisconnect, subscriber.CauseGap, subscriber.CauseLost, subscriber.CauseBackwards, subscriber.CauseCleared,
		subscriber.CauseUnreadable, subscriber.CauseBlockSize:
		return c
	}
	return causeOther
}

// delta applies the changes of a window. Whatever a node says, no block stays on the device that has left all tiers, and none comes to the device alone.
func (r *inbox) delta(m *feedpb.Delta) error {
	s, err := r.source(m.GetSource())
	if err != nil {
		return err
	}
	removed, err := countKeys("removed blocks", m.GetRemoved(), m.GetRemovedTiers(), false)
	if err != nil {
		return malformed("%v", err)
	}
	added, err := countKeys("added blocks", m.GetAdded(), m.GetAddedTiers(), false)
	if err != nil {
		return malformed("%v", err)
	}
	if s == nil {
		return nil
	}
	if !s.begun {
		return malformed("changes of source %d before its first copy", m.GetSource())
	}
	gone := countAny(m.GetRemoved(), m.GetRemovedTiers())
	blocks := max(0, s.blocks+countAny(m.GetAdded(), m.GetAddedTiers())-gone)
	if blocks > r.maxBlocks {
		return malformed("source %d has %d blocks, more than %d", m.GetSource(), blocks, r.maxBlocks)
	}
	s.blocks, s.gone = blocks, s.gone+gone
	r.metrics.received(kindDelta, removed+added)
	if s.sink == nil {
		return nil
	}
	if len(m.GetRemoved()) > 0 {
		all, any := r.split(m.GetRemoved(), m.GetRemovedTiers(), tierAny)
		s.sink.Remove(subscriber.Device, all)
		if len(any) > 0 {
			s.sink.Remove(subscriber.Any, any)
		}
	}
	r.store(s.sink, m.GetAdded(), m.GetAddedTiers())
	return nil
}

func (r *inbox) store(sink Sink, keys, tiers []byte) {
	if len(keys) == 0 {
		return
	}
	all, device := r.split(keys, tiers, tierDevice)
	sink.Store(subscriber.Any, all)
	if len(device) > 0 {
		sink.Store(subscriber.Device, device)
	}
}

// split decodes keys, and those of them that have a tier. Both slices are valid until the next call.
func (r *inbox) split(keys, tiers []byte, tier byte) (all, some []uint64) {
	r.keys = r.keys[:0]
	for i := range len(keys) / keySize {
		r.keys = append(r.keys, keyAt(keys, i))
	}
	if len(tiers) == 0 {
		return r.keys, r.keys
	}
	r.device = r.device[:0]
	for i, key := range r.keys {
		if tiers[i]&tier != 0 {
			r.device = append(r.device, key)
		}
	}
	return r.keys, r.device
}

// reset empties a source. A copy that is under way goes on: it has lost what had come.
func (r *inbox) reset(m *feedpb.Reset) error {
	s, err := r.source(m.GetSource())
	if err != nil || s == nil {
		return err
	}
	r.begun[m.GetSource()] = true
	s.begun, s.blocks, s.copied, s.gone = true, 0, 0, 0
	if s.sink != nil {
		s.sink.Reset(causeOf(m.GetCause()))
		if s.copying {
			s.sink.Begin()
		}
	}
	if !s.copying {
		r.followed(s)
	}
	return nil
}
