package pool

import "time"

// downAfter is the number of failed checks in a row that take an endpoint down.
const downAfter = 2

// health is the state of one endpoint as checks leave it. The zero value is an endpoint that nothing is known about: healthy.
type health struct {
	down     bool
	suspect  bool // a request that was sent there ran elsewhere, and no probe was good since
	failures int  // failed checks in a row; a connect error reported from outside counts as one
}

// ok is the state after a good probe.
func (h health) ok() health { return health{} }

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
	h.suspect = true
	return h
}

// suspectInterval is the longest time between two probes of a suspect endpoint.
const suspectInterval = time.Second

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
	if h.suspect {
		d = min(d, suspectInterval)
	}
	return time.Duration(float64(d) * (1 + spread*(2*jitter-1)))
}
