package router

import (
	"math"
	"time"
)

const (
	queueWindow  = 10 * time.Second // over which the prefill queue is averaged
	inFlightHalf = 5 * time.Second  // half-life of a running prompt's share of memory where nothing tells when its answer ends
	recentHalf   = 30 * time.Second // half-life of what was lately computed and now stands in the cache
	maxCharges   = 256              // charges told apart per endpoint; what comes on top joins the youngest
)

// account is what one router has sent to one target lately. Tokens throughout. Prefill is taken to be one queue that is served in order: at a
// fixed rate, or faster where the engine's events show that a prompt is complete or a record of the access log that the request is. So no
// charge lives for ever, and at rest everything is exactly zero.
//
// Ranks among which the engine spreads requests prefill side by side, one request each: the queue is served at the rate of as many ranks as it
// has charges, at most all. That errs to the slow side, since it still serves one charge after the other: of four alike the first has all four
// ranks, and the last one. Which rank a charge is at is not known. So the last block of a prompt completes that charge alone, as one before it
// may be long under way at another rank, where a single queue would have ended it first.
type account struct {
	served  float64           // tokens computed since the queue was last empty
	queued  ring              // charges not complete, in order
	awaited map[uint64]uint64 // number of the youngest queued charge by the key of its prompt's last block
	ranks   int               // of the endpoint, among which its engine spreads requests; 0 stands for 1
	last    uint64            // number of the last charge

	queue  float64 // charges waiting or in prefill, averaged over queueWindow
	recent float64 // uncached tokens, decaying by recentHalf
	at     time.Time

	// Of the open decisions. held is what fills the endpoint's memory if each of them is still running, guessed if they end by the half-life.
	// held is a whole number, so that it returns to exactly what it was, and guessed is never above it.
	held    int64   // whole prompts
	guessed float64 // whole prompts, decaying by inFlightHalf

	fading float64 // whole prompts of decisions of which nothing will be heard any more, decaying by inFlightHalf
}

// load is an account as scoring reads it, once it is the mean over ranks.
type load struct {
	backlog float64 // prefill tokens charged and not yet served
	queue   float64 // average number of charges not yet served
	memory  float64 // tokens that fill the endpoint's cache with the running and the latest requests
	running float64 // of these, prompts of running requests
}

// pace is how fast accounts move: the rate of prefill, and the decay over one time step. The accounts of a fleet are mostly advanced together,
// so that the step is worked out once.
type pace struct {
	rate    float64 // tokens per second of one rank
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
	a.guessed = floor(a.guessed*p.flight, 1)
	a.fading = floor(a.fading*p.flight, 1)
	a.recent = floor(a.recent*p.recent, 1)
	for left := dt; ; {
		n := float64(a.queued.len())
		need, rate := math.Inf(1), p.rate
		if n > 0 {
			if a.ranks > 1 {
				rate *= min(n, float64(a.ranks))
			}
			need = max(a.queued.at(0).end-a.served, 0) / rate
		}
		if need > left {
			keep := p.queue
			if left != dt {
				keep = math.Exp(-left / queueWindow.Seconds())
			}
			a.queue = n + (a.queue-n)*keep
			a.served += left * rate
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
	if a.ranks > 1 {
		a.confirmEach(keys)
		return
	}
	last := uint64(0)
	for _, key := range keys {
		last = max(last, a.awaited[key])
	}
	for a.queued.len() > 0 && a.queued.at(0).number <= last {
		a.complete()
	}
	a.settle()
}

// confirmEach is confirm where several ranks prefill side by side. Of requests that share a charge it cannot be told which one is complete.
func (a *account) confirmEach(keys []uint64) {
	for _, key := range keys {
		number, ok := a.awaited[key]
		if !ok {
			continue
		}
		if i, ok := a.queued.find(number); ok && a.queued.at(i).requests == 1 {
			a.unqueue(number, 0)
		}
	}
}

// complete ends the first charge.
func (a *account) complete() {
	c := a.queued.pop()
	a.served = c.end
	a.unawait(c)
}

// unawait forgets the key of a charge that has left the queue.
func (a *account) unawait(c charge) {
	if a.awaited[c.key] == c.number {
		delete(a.awaited, c.key)
	}
}

// settle begins the count anew when the queue is empty, so that no rounding stays.
func (a *account) settle() {
	if a.queued.len() == 0 {
		a.served = 0
	}
}

// charge enters one request: uncached tokens to compute, of a prompt of so many tokens. key is that of the prompt's last whole block, 0 when it
// is not known. The number that it returns names the charge to release; it is 0 when there is nothing to compute.
func (a *account) charge(uncached float64, prompt int, key uint64) (number uint64) {
	a.held += int64(prompt)
	a.guessed += float64(prompt)
	if uncached <= 0 {
		return 0
	}
	a.recent += uncached
	if a.queued.len() < maxCharges {
		a.last++
		a.queued.push(charge{end: a.end() + uncached, key: key, number: a.last, requests: 1})
	} else {
		c := a.queued.at(maxCharges - 1)
		a.unawait(*c)
		c.end, c.key, c.requests = c.end+uncached, key, c.requests+1
	}
	if key != 0 {
		if a.awaited == nil {
			a.awaited = map[uint64]uint64{}
		}
		a.awaited[key] = a.last
	}
	return a.last
}

// end is the value of served at which the queue is empty.
func (a *account) end() float64 {
	if n := a.queued.len(); n > 0 {
		return a.queued.at(n - 1).end
	}
	return a.served
}

// release takes back what charge entered for one request some time ago: what is left of it in the queue, and its share of what is held.
func (a *account) release(number uint64, uncached float64, prompt int, age time.Duration) {
	a.unqueue(number, uncached)
	a.unhold(prompt, age)
}

// unhold takes back a request's share of what is held.
func (a *account) unhold(prompt int, age time.Duration) {
	a.held -= int64(prompt)
	a.guessed = min(floor(a.guessed-left(float64(prompt), age, inFlightHalf), 1), float64(a.held))
}

// fade lets what charge entered for one request some time ago end by itself: its prompt fades, and the queue works off what is to be computed.
func (a *account) fade(prompt int, age time.Duration, exact bool) {
	a.unhold(prompt, age)
	if exact {
		age = 0 // so far it counted in full
	}
	a.fading += left(float64(prompt), age, inFlightHalf)
}

// busy says whether anything of a request is left that has not ended, known or by estimate.
func (a *account) busy() bool { return a.held > 0 || a.fading > 0 || a.queued.len() > 0 }

// unqueue takes what is left of one request's charge out of the queue, wherever it stands. Of a charge that requests share, it cannot be told
// whose part has been served: each takes out no more than its own, and the last one the rest.
func (a *account) unqueue(number uint64, uncached float64) {
	i, ok := a.queued.find(number)
	if !ok {
		return // served, or confirmed
	}
	c := *a.queued.at(i)
	begin := a.served
	if i > 0 {
		begin = max(begin, a.queued.at(i-1).end)
	}
	cut := max(c.end-begin, 0)
	if c.requests > 1 {
		cut = min(cut, uncached)
	}
	if cut > 0 {
		for j := i; j < a.queued.len(); j++ {
			a.queued.at(j).end -= cut
		}
	}
	if c.requests > 1 {
		a.queued.at(i).requests--
		return
	}
	a.queued.remove(i)
	a.settle()
	if a.awaited[c.key] != number {
		return
	}
	delete(a.awaited, c.key)
	for i--; i >= 0; i-- {
		if before := a.queued.at(i); before.key == c.key {
			a.awaited[c.key] = before.number
			return
		}
	}
}

// forget takes what a request has left of its uncached tokens out of the recent ones: they were not computed here.
func (a *account) forget(uncached float64, age time.Duration) {
	a.recent = floor(a.recent-left(uncached, age, recentHalf), 1)
}

// computed enters uncached tokens of a request that was charged elsewhere, so long ago.
func (a *account) computed(uncached float64, age time.Duration) {
	a.recent += left(uncached, age, recentHalf)
}

// load is the account's state. exact says that records tell when requests end.
func (a *account) load(exact bool) load {
	running := a.guessed
	if exact {
		running = float64(a.held)
	}
	running += a.fading
	return load{backlog: max(a.end()-a.served, 0), queue: a.queue, memory: running + a.recent, running: running}
}

// mean is the load of one rank, when a request may come to any of so many. What delays a request is what waits at its own rank.
func (l load) mean(ranks int) load {
	if ranks == 1 {
		return l
	}
	n := float64(ranks)
	return load{backlog: l.backlog / n, queue: l.queue / n, memory: l.memory / n, running: l.running / n}
}

// left is what a half-life leaves of v.
func left(v float64, age, half time.Duration) float64 {
	if age <= 0 {
		return v
	}
	return v * math.Exp2(-age.Seconds()/half.Seconds())
}

// floor takes what is below least for nothing.
func floor(v, least float64) float64 {
	if v < least {
		return 0
	}
	return v
}
