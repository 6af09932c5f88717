package feed

// copy puts the next part of a copy into the queue, if there is one to be made, the queue is low and it is the stream's turn. It reports whether it has put
// anything. It is for the sender's goroutine.
func (st *stream) copy() bool {
	if st.abandoned() {
		st.stopCopy()
	}
	st.mu.Lock()
	low, idle, more := st.queue.bytes <= lowWater, st.copying == nil, len(st.todo) > 0
	st.mu.Unlock()
	if !low {
		return false
	}
	if idle && !more {
		st.turns.give(st)
		return false
	}
	if !st.turns.take(st, st.now()) {
		return false
	}
	if idle && !st.startCopy() {
		return true // look again
	}
	return st.chunk()
}

// abandoned says whether the copy that is under way has become needless.
func (st *stream) abandoned() bool {
	st.mu.Lock()
	defer st.mu.Unlock()
	return st.copying != nil && !st.isCopying(st.copying)
}

func (st *stream) isCopying(s *Source) bool {
	f := st.known[s.number]
	return f != nil && f.source == s && f.phase == phaseCopying
}

// stopCopy gives the cursor back.
func (st *stream) stopCopy() {
	st.mu.Lock()
	s := st.copying
	st.copying = nil
	st.mu.Unlock()
	if s == nil {
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.ledger.leave(&st.cursor)
}

// startCopy begins with the first source that waits. From here on its changes go out.
func (st *stream) startCopy() bool {
	st.mu.Lock()
	var s *Source
	if len(st.todo) > 0 {
		s = st.known[st.todo[0]].source
	}
	st.mu.Unlock()
	if s == nil {
		return false
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	st.mu.Lock()
	defer st.mu.Unlock()
	f := st.known[s.number]
	if len(st.todo) == 0 || st.todo[0] != s.number || f == nil || f.source != s {
		return false
	}
	st.todo = st.todo[1:]
	f.phase = phaseCopying
	st.copying = s
	s.ledger.follow(&st.cursor)
	st.metrics.copies.Inc()
	return true
}

// chunk copies the next part. What it puts into the queue is in order with the source's deltas: what they changed before is in it, and
// what they change later comes after it.
func (st *stream) chunk() bool {
	s := st.copying // written by this goroutine only
	s.mu.Lock()
	defer s.mu.Unlock()
	st.mu.Lock()
	defer st.mu.Unlock()
	if !st.isCopying(s) {
		return true
	}
	m, done := s.chunk(&st.cursor)
	if m.copied > 0 {
		st.put(m)
	}
	if f := st.known[s.number]; done && f.phase == phaseCopying { // no overflow
		f.phase = phaseLive
		st.copying = nil
		s.ledger.leave(&st.cursor)
		st.put(message{data: encodeEnd(s.number)})
	}
	return true
}
