package enginesim

import (
	"context"
	"sync"
	"time"
)

// maxWaiting bounds the sequences that wait; requests beyond it are refused.
const maxWaiting = 1 << 14

// loop runs the scheduler in real time. Requests come from any goroutine; run is called once.
type loop struct {
	timing  Timing
	publish func(at time.Time, events []event)
	metrics latencies
	wake    chan struct{} // holds a value after sequences were added

	mu    sync.Mutex
	sched scheduler
}

func newLoop(sched scheduler, t Timing, m latencies, publish func(time.Time, []event)) *loop {
	return &loop{timing: t, publish: publish, metrics: m, wake: make(chan struct{}, 1), sched: sched}
}

// run computes steps until ctx ends. What a step has stored and removed is published before its tokens are delivered, so
// that a client that has seen an answer finds its blocks announced, but for the way over the network.
func (l *loop) run(ctx context.Context) {
	timer := time.NewTimer(0)
	defer timer.Stop()
	for ctx.Err() == nil {
		l.mu.Lock()
		st := l.sched.schedule()
		var events []event
		if len(st.parts) > 0 {
			events = l.sched.cache.takeEvents()
		}
		l.mu.Unlock()

		if len(st.parts) == 0 {
			select {
			case <-ctx.Done():
			case <-l.wake:
			}
			continue
		}
		if d := l.timing.step(st); d > 0 {
			timer.Reset(d)
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
			}
		}
		now := time.Now()
		if len(events) > 0 {
			l.publish(now, events)
		}
		l.deliver(st, now)
	}
}

// deliver ends a step and hands its tokens to the handlers.
func (l *loop) deliver(st step, now time.Time) {
	l.mu.Lock()
	results := l.sched.complete(st)
	l.mu.Unlock()
	for _, r := range results {
		if r.first {
			l.metrics.firstToken.Observe(now.Sub(r.seq.arrived).Seconds())
		}
		if r.finish != "" {
			l.metrics.latency.Observe(now.Sub(r.seq.arrived).Seconds())
		}
		r.seq.out.put(r.seq.cached, r.finish, r.token)
	}
}

// submit adds sequences to the queue, all of them or, when it is full, none.
func (l *loop) submit(seqs []*sequence) bool {
	now := time.Now()
	l.mu.Lock()
	if len(l.sched.waiting)+len(seqs) > maxWaiting {
		l.mu.Unlock()
		return false
	}
	for _, q := range seqs {
		q.arrived = now
		l.sched.add(q)
	}
	l.mu.Unlock()
	select {
	case l.wake <- struct{}{}:
	default:
	}
	return true
}

// abort ends the sequences that are not done, whose client went away.
func (l *loop) abort(seqs []*sequence) {
	l.mu.Lock()
	defer l.mu.Unlock()
	for _, q := range seqs {
		if l.sched.abort(q) {
			q.out.put(q.cached, finishAbort)
		}
	}
}

// reset empties the cache, and is refused while requests run. An idle engine publishes the AllBlocksCleared with the events
// of its next step.
func (l *loop) reset() bool {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.sched.reset()
}

// load is the state that /metrics and /load report.
type load struct {
	stats
	running, waiting int
	usage            float64 // share of blocks held by running sequences
}

func (l *loop) load() load {
	l.mu.Lock()
	defer l.mu.Unlock()
	c := l.sched.cache
	return load{
		stats: l.sched.stats, running: len(l.sched.running), waiting: len(l.sched.waiting),
		usage: 1 - float64(c.free)/float64(c.usable()),
	}
}

// step is how long a step takes: its prefill, and one token's time for all that decode.
func (t Timing) step(st step) time.Duration {
	var s float64
	if t.PrefillRate > 0 {
		s += float64(st.prefill) / t.PrefillRate
	}
	if t.DecodeRate > 0 && st.decode > 0 {
		s += (1 + t.Slowdown*float64(st.decode-1)) / t.DecodeRate
	}
	return time.Duration(s * float64(time.Second))
}
