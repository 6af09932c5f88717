package kvindex

// AppendKeys appends keys that s holds on a tier to dst, in no order, and says whether these are all of them: there are no more than limit. It is for
// inspection: every block of the index is looked at, shard by shard, and each shard is locked meanwhile. A released slot holds none.
func (x *Index) AppendKeys(dst []uint64, s Slot, t Tier, limit int) (keys []uint64, all bool) {
	if !x.slots.isValid(s) {
		return dst, true
	}
	from := len(dst)
	w := writer{x: x, slot: s.index, tier: t}
	for i := range x.shards {
		if dst, all = x.shards[i].appendKeys(dst, &w, from+limit); !all {
			break
		}
	}
	if !x.slots.isValid(s) {
		return dst[:from], true
	}
	return dst, all
}

func (s *shard) appendKeys(dst []uint64, w *writer, room int) (keys []uint64, all bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	entries := s.table.Load().entries
	for i := range entries {
		word := entries[i].word.Load()
		if word == 0 || !w.x.sets.contains(w.id(word), w.slot) {
			continue
		}
		if len(dst) == room {
			return dst, false
		}
		dst = append(dst, entries[i].key.Load())
	}
	return dst, true
}
