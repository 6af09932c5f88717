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

// account is what one router has sent to one endpoint lately. Tokens throughout. Prefill is taken to be one queue that is served in order: at a
// fixed rate, or faster where the engine's events show that a prompt is complete. So no charge lives for ever, and at rest everything is
// exactly zero.
type account struct {
	charged float64            // sum of the charges since the queue was last empty
	served  float64            // of these, computed by now
	queued  ring               // charges not complete, in order
	awaited map[uint64]float64 // end of the queued charges by the key of their prompt's last block

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
		n := float64(a.queued.len())
		need := math.Inf(1)
		if n > 0 {
			need = (a.queued.first().end - a.served) / p.rate
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
		a.complete()
		left -= need
	}
	a.settle()
	if a.queued.len() == 0 {
		a.queue = floor(a.queue, 1e-3)
	}
}

// confirm takes blocks that the engine has announced. A charge is complete when the last block of its prompt is, and so are the charges
// before it.
func (a *account) confirm(keys []uint64) {
	if len(a.awaited) == 0 {
		return
	}
	end := 0.0
	for _, key := range keys {
		end = max(end, a.awaited[key])
	}
	for a.queued.len() > 0 && a.queued.first().end <= end {
		a.complete()
	}
	a.settle()
}

// complete ends the first charge.
func (a *account) complete() {
	c := a.queued.pop()
	a.served = c.end
	if a.awaited[c.key] == c.end {
		delete(a.awaited, c.key)
	}
}

// settle begins the count anew when the queue is empty, so that no rounding stays.
func (a *account) settle() {
	if a.queued.len() == 0 {
		a.charged, a.served = 0, 0
	}
}

// charge enters one request: uncached tokens to compute, of a prompt of so many tokens. key is that of the prompt's last whole block, 0 when it
// is not known.
func (a *account) charge(uncached, prompt float64, key uint64) {
	a.recent += uncached
	a.inFlight += prompt
	if uncached <= 0 {
		return
	}
	a.charged += uncached
	c := charge{end: a.charged, key: key}
	if a.queued.len() < maxCharges {
		a.queued.push(c)
	} else {
		delete(a.awaited, a.queued.last().key)
		a.queued.setLast(c)
	}
	if key != 0 {
		if a.awaited == nil {
			a.awaited = map[uint64]float64{}
		}
		a.awaited[key] = c.end
	}
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
