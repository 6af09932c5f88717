package router

import (
	"math"
	"time"
)

const (
	queueWindow  = 10 * time.Second // over which the prefill queue is averaged
	inFlightHalf = 5 * time.Second  // half-life of a prompt's share of memory while nothing tells when its answer ends
	recentHalf   = 30 * time.Second // half-life of what was lately computed and now stands in the cache
	maxCharges   = 256              // charges told apart per endpoint; what comes on top joins the youngest
)

// account is what one router has sent to one endpoint lately. Tokens throughout. Prefill is taken to be one queue that is served in order at a
// fixed rate, so a charge has a share of the rate's time and then none: at rest everything is exactly zero.
type account struct {
	charged float64 // sum of the charges since the queue was last empty
	served  float64 // of these, computed by now
	ends    ring    // value of served at which each charge is complete

	queue    float64 // charges waiting or in prefill, averaged over queueWindow
	inFlight float64 // whole prompts, decaying by inFlightHalf
	recent   float64 // uncached tokens, decaying by recentHalf
	at       time.Time
}

// load is an account as scoring reads it.
type load struct {
	backlog float64 // prefill tokens charged and not yet served
	queue   float64 // average number of charges not yet served
	memory  float64 // tokens that fill the endpoint's cache with the running and the latest requests
}

// pace is how fast accounts move: the rate of prefill, and the decay over one time step. The accounts of a fleet are mostly advanced together,
// so that the step is worked out once.
type pace struct {
	rate    float64 // tokens per second
	seconds float64 // the step
	queue   float64 // what is left after it of each decaying number
	flight  float64
	recent  float64
}

func (p *pace) step(seconds float64) {
	if seconds != p.seconds {
		p.seconds = seconds
		p.queue = math.Exp(-seconds / queueWindow.Seconds())
		p.flight = math.Exp2(-seconds / inFlightHalf.Seconds())
		p.recent = math.Exp2(-seconds / recentHalf.Seconds())
	}
}

// advance serves the queue until now. A clock that stands or goes back changes nothing.
func (a *account) advance(now time.Time, p *pace) {
	if a.at.IsZero() {
		a.at = now
		return
	}
	dt := now.Sub(a.at).Seconds()
	if dt <= 0 {
		return
	}
	a.at = now
	p.step(dt)
	a.inFlight = floor(a.inFlight*p.flight, 1)
	a.recent = floor(a.recent*p.recent, 1)
	for left := dt; ; {
		n := float64(a.ends.len())
		need := math.Inf(1)
		if n > 0 {
			need = (a.ends.first() - a.served) / p.rate
		}
		if need > left {
			keep := p.queue
			if left != dt {
				keep = math.Exp(-left / queueWindow.Seconds())
			}
			a.queue = n + (a.queue-n)*keep
			a.served += left * p.rate
			break
		}
		a.queue = n + (a.queue-n)*math.Exp(-need/queueWindow.Seconds())
		a.served = a.ends.first()
		a.ends.pop()
		left -= need
	}
	if a.ends.len() == 0 {
		a.charged, a.served = 0, 0
		a.queue = floor(a.queue, 1e-3)
	}
}

// charge enters one request: uncached tokens to compute, of a prompt of so many tokens.
func (a *account) charge(uncached, prompt float64) {
	if uncached > 0 {
		a.charged += uncached
		if a.ends.len() < maxCharges {
			a.ends.push(a.charged)
		} else {
			a.ends.setLast(a.charged)
		}
	}
	a.recent += uncached
	a.inFlight += prompt
}

func (a *account) load() load {
	return load{backlog: a.charged - a.served, queue: a.queue, memory: a.inFlight + a.recent}
}

// floor takes what is below least for nothing.
func floor(v, least float64) float64 {
	if v < least {
		return 0
	}
	return v
}

// ring is a queue of numbers that grows up to maxCharges. Its length is a power of two.
type ring struct {
	buf  []float64
	head int
	n    int
}

func (r *ring) len() int          { return r.n }
func (r *ring) first() float64    { return r.buf[r.head] }
func (r *ring) setLast(v float64) { r.buf[(r.head+r.n-1)&(len(r.buf)-1)] = v }
func (r *ring) pop()              { r.head = (r.head + 1) & (len(r.buf) - 1); r.n-- }
func (r *ring) push(v float64) {
	if r.n == len(r.buf) {
		grown := make([]float64, max(8, 2*len(r.buf)))
		for i := range r.n {
			grown[i] = r.buf[(r.head+i)&(len(r.buf)-1)]
		}
		r.buf, r.head = grown, 0
	}
	r.buf[(r.head+r.n)&(len(r.buf)-1)] = v
	r.n++
}
