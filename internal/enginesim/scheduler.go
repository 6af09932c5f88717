package enginesim

import "slices"

// scheduler is the engine without time: it decides what each step computes, as vLLM's V1 scheduler does. A step is one call
// of schedule, the time it takes, and one call of complete. Decode comes before prefill; prompts enter in order of arrival
// and are computed in chunks when a step has no room for all of them; when the cache is full, the youngest running sequence
// gives its blocks up and starts again later.
type scheduler struct {
	blockSize     int
	maxStepTokens int
	maxRunning    int

	cache   *cache
	waiting []*sequence
	running []*sequence
	stats   stats
}

// stats are counters since the start.
type stats struct {
	queries, hits      uint64 // prompt tokens looked up in the cache, and found
	prompt, cached     uint64 // prompt tokens done, and those of them that came from the cache
	generated          uint64
	preempted          uint64
	length, stop, gone uint64 // sequences ended, by reason
}

// step is the work of one engine step.
type step struct {
	parts   []part
	prefill int // prompt tokens, and recomputed ones
	decode  int // sequences that get their next token
}

// part is the work on one sequence.
type part struct {
	seq    *sequence
	tokens int
	sample bool // the step computes the last token, so that a new one comes out
}

// result is what one sequence got from a step.
type result struct {
	seq    *sequence
	token  uint32
	first  bool
	finish finish // "" while it goes on
}

func (s *scheduler) add(q *sequence) { s.waiting = append(s.waiting, q) }

// abort ends a sequence and gives up its blocks, whose content stays cached.
func (s *scheduler) abort(q *sequence) bool {
	if q.ended {
		return false
	}
	isQ := func(o *sequence) bool { return o == q }
	s.running = slices.DeleteFunc(s.running, isQ)
	s.waiting = slices.DeleteFunc(s.waiting, isQ)
	s.end(q, finishAbort)
	return true
}

// schedule plans a step and allocates its blocks; the events of that are the cache's. A step without parts means that there
// is nothing to do.
func (s *scheduler) schedule() step {
	var st step
	budget := s.maxStepTokens
	preempted := false
	for i := 0; i < len(s.running) && budget > 0; i++ {
		q := s.running[i]
		n := min(len(q.tokens)-q.computed, budget)
		for !s.allocate(q, nil, n) {
			preempted = true
			last := s.running[len(s.running)-1]
			s.preempt(last)
			if last == q {
				n = 0
				break
			}
		}
		if n == 0 {
			break
		}
		budget -= n
		s.plan(&st, q, n)
	}
	for !preempted && budget > 0 && len(s.waiting) > 0 && len(s.running) < s.maxRunning {
		q := s.waiting[0]
		hits := s.lookup(q)
		q.computed = len(hits) * s.blockSize
		n := min(len(q.tokens)-q.computed, budget)
		if !s.allocate(q, hits, n) {
			q.computed = 0
			break
		}
		if q.cached < 0 {
			q.cached = q.computed
			s.stats.queries += uint64(q.prompt)
			s.stats.hits += uint64(q.cached)
		}
		s.waiting = slices.Delete(s.waiting, 0, 1)
		s.running = append(s.running, q)
		budget -= n
		s.plan(&st, q, n)
	}
	return st
}

// complete ends a step: it samples the next token of each sequence that has all its tokens computed.
func (s *scheduler) complete(st step) []result {
	results := make([]result, 0, len(st.parts))
	for _, p := range st.parts {
		q := p.seq
		if !p.sample || q.ended {
			continue
		}
		r := result{seq: q, token: q.next(q.generated()), first: q.generated() == 0}
		q.tokens = append(q.tokens, r.token)
		q.hasher.extend(q)
		s.stats.generated++
		if r.first {
			s.stats.prompt += uint64(q.prompt)
			s.stats.cached += uint64(q.cached)
		}
		switch n := q.generated(); {
		case n == q.stop:
			r.finish = finishStop
		case n >= q.limit:
			r.finish = finishLength
		}
		if r.finish != "" {
			s.running = slices.DeleteFunc(s.running, func(o *sequence) bool { return o == q })
			s.end(q, r.finish)
		}
		results = append(results, r)
	}
	return results
}

// reset empties the cache; it fails while sequences hold blocks.
func (s *scheduler) reset() bool { return s.cache.clear() }

// lookup returns the cached blocks that q can start from. The last token is always computed, since its output is the first
// token of the answer.
func (s *scheduler) lookup(q *sequence) []int32 {
	n := (len(q.tokens) - 1) / s.blockSize
	return s.cache.lookup(nil, q.digests[:n])
}

// allocate takes the hits and gets q blocks for n more tokens; of these, the full ones are stored. It does nothing and
// returns false when the cache has no room.
func (s *scheduler) allocate(q *sequence, hits []int32, n int) bool {
	total := q.computed + n
	need := (total+s.blockSize-1)/s.blockSize - len(hits) - len(q.blocks)
	if !s.cache.room(hits, need) {
		return false
	}
	if len(hits) > 0 {
		s.cache.take(hits)
		q.blocks, q.stored = append(q.blocks, hits...), len(hits)
	}
	for range need {
		q.blocks = append(q.blocks, s.cache.alloc())
	}
	if full := total / s.blockSize; full > q.stored {
		for i := q.stored; i < full; i++ {
			s.cache.store(q.blocks[i], q.digests[i])
			s.cache.blocks[q.blocks[i]].link = q.links[i]
		}
		s.cache.events = append(s.cache.events, q.event(q.stored, full, s.blockSize))
		q.stored = full
	}
	return true
}

// plan adds n tokens of q to the step. They count as computed from here on, as sequences that enter later in the same step
// may already hit them.
func (s *scheduler) plan(st *step, q *sequence, n int) {
	decode := n == 1 && q.computed == len(q.tokens)-1 && q.generated() > 0
	q.computed += n
	st.parts = append(st.parts, part{seq: q, tokens: n, sample: q.computed == len(q.tokens)})
	if decode {
		st.decode++
	} else {
		st.prefill += n
	}
}

// preempt takes the blocks of the last running sequence and puts it before all that wait.
func (s *scheduler) preempt(q *sequence) {
	s.running = s.running[:len(s.running)-1]
	s.free(q)
	q.computed = 0
	s.waiting = slices.Insert(s.waiting, 0, q)
	s.stats.preempted++
}

func (s *scheduler) end(q *sequence, f finish) {
	s.free(q)
	q.ended = true
	switch f {
	case finishLength:
		s.stats.length++
	case finishStop:
		s.stats.stop++
	default:
		s.stats.gone++
	}
}

func (s *scheduler) free(q *sequence) {
	s.cache.release(q.blocks)
	q.blocks, q.stored = nil, 0
}
