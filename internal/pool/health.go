package pool

import "time"

// downAfter is the number of failed checks in a row that take an endpoint down.
const downAfter = 2

const (
	// suspectErrors is the number of server errors in a row, of an endpoint whose probes are good, that make it suspect. A request that no
	// engine can serve is tried again some two or three times by common clients; the answers to others stand between such bursts.
	suspectErrors = 5

	// suspectHold is how long server errors make suspect. Probes say nothing about them, so requests have to try again; an endpoint that
	// goes on failing has one of them every suspectHold, beside those that find all others suspect.
	suspectHold = 5 * time.Second

	// suspectInterval is the longest time between two probes of a suspect endpoint.
	suspectInterval = time.Second
)

// health is the state of one endpoint as checks leave it. The zero value is an endpoint that nothing is known about: healthy.
type health struct {
	down     bool
	failures int // failed checks in a row; a connect error reported from outside counts as one

	elsewhere bool      // a request that was sent there ran elsewhere, and no probe was good since
	errors    int       // answers with a server error since the last good answer
	until     time.Time // when those stop to make suspect, once they are suspectErrors
}

// suspect says that the endpoint is not to be a first choice.
func (h health) suspect() bool { return h.elsewhere || !h.until.IsZero() }

// ok is the state after a good probe. It cannot clear an engine whose web server lives of failing requests: time does.
func (h health) ok(now time.Time) health {
	next := health{errors: h.errors, until: h.until}
	if !now.Before(h.until) {
		next.until = time.Time{}
	}
	return next
}

// failed is the state after a failed probe. A refused connection needs no second opinion.
func (h health) failed(refused bool) health {
	h.failures++
	h.down = h.down || refused || h.failures >= downAfter
	return h
}

// unconnected is the state after a connect error seen outside of the probes. However many requests report one, it
// counts once: they may all have met the same short outage.
func (h health) unconnected() health {
	h.failures = max(h.failures, 1)
	return h
}

// missed is the state after a request that did not run where it was sent.
func (h health) missed() health {
	h.elsewhere = true
	return h
}

// erred is the state after an answer with a server error. Past the hold, one more makes suspect again.
func (h health) erred(now time.Time) health {
	if h.errors = min(h.errors+1, suspectErrors); h.errors == suspectErrors {
		h.until = now.Add(suspectHold)
	}
	return h
}

// answered is the state after a good answer.
func (h health) answered() health {
	h.errors, h.until = 0, time.Time{}
	return h
}

// schedule spaces the probes of one endpoint.
type schedule struct {
	interval time.Duration // between good probes
	first    time.Duration // after the first failure; doubles with each further one
	cap      time.Duration
}

// delay is the time from one probe to the next. jitter is uniform in [0, 1): good probes vary by ±10 %, failing ones by ±25 %, so that
// probes of many endpoints and of many routers spread out.
func (s schedule) delay(h health, jitter float64) time.Duration {
	d, spread := s.interval, 0.1
	if h.failures > 0 {
		spread = 0.25
		d = min(s.first, s.cap)
		for i := 1; i < h.failures && d < s.cap; i++ {
			d = min(2*d, s.cap)
		}
	}
	if h.suspect() {
		d = min(d, suspectInterval)
	}
	return time.Duration(float64(d) * (1 + spread*(2*jitter-1)))
}
