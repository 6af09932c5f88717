package router

import (
	"slices"
	"time"
)

// Load is what an engine last said of itself. Routing goes by the router's own ledger; of this it takes only that the engine sleeps.
type Load struct {
	Running       int     // requests, of all ranks together
	Waiting       int     // requests
	KVUsage       float64 // of the engine's cache, 0 to 1
	PrefixHits    uint64  // prompt tokens since the engine's start
	PrefixQueries uint64  // prompt tokens looked up since then; 0 when not known
	Sleeping      bool    // its weights are not on the device: it would refuse requests, or wake up for them

	Age   time.Duration // of these figures
	Stale bool          // they could not be read lately, and say nothing of this time
}

// EngineState is what an engine last said of itself.
type EngineState struct {
	Running       int     `json:"running_requests"`
	Waiting       int     `json:"waiting_requests"`
	KVUsage       float64 `json:"kv_usage"` // 0 to 1
	PrefixHits    uint64  `json:"prefix_hit_tokens"`
	PrefixQueries uint64  `json:"prefix_query_tokens"`
	Sleeping      bool    `json:"sleeping"` // no candidate while another endpoint is one
	Stale         bool    `json:"stale"`    // could not be read lately
	Age           float64 `json:"age_seconds"`
}

// report is a Load and when its figures were read.
type report struct {
	Load
	at time.Time
}

// Report takes over what an endpoint's engine says of itself. Endpoints that are not configured are passed over.
func (r *Router) Report(pool, endpoint string, l Load) {
	f := r.fleet(pool)
	if f == nil {
		return
	}
	t := f.target(endpoint)
	if t == nil {
		return
	}
	l.Running, l.Waiting = max(l.Running, 0), max(l.Waiting, 0)
	if !(l.KVUsage >= 0) { // nor is NaN
		l.KVUsage = 0
	}
	l.KVUsage = min(l.KVUsage, 1)
	was := t.of.reported.Swap(&report{Load: l, at: r.now().Add(-max(l.Age, 0))})
	if before := was != nil && was.asleep(); before != l.asleep() {
		f.findSleepers()
		r.log.Info("the engine sleeps, or does not any more", "pool", pool, "endpoint", endpoint, "sleeping", l.asleep())
	}
}

// asleep says whether the engine is known to sleep.
func (l *Load) asleep() bool { return l.Sleeping && !l.Stale }

// asleep says whether the target's engine is known to sleep.
func (t *target) asleep() bool {
	l := t.of.reported.Load()
	return l != nil && l.asleep()
}

// findSleepers finds out whether the engine of some endpoint sleeps.
func (f *fleet) findSleepers() {
	f.reports.Lock()
	defer f.reports.Unlock()
	f.asleep.Store(slices.ContainsFunc(f.all(), (*target).asleep))
}

// engine is what the endpoint's engine last said of itself; nil when it has said nothing.
func (r *ranks) engine(now time.Time) *EngineState {
	l := r.reported.Load()
	if l == nil {
		return nil
	}
	return &EngineState{
		Running: l.Running, Waiting: l.Waiting, KVUsage: l.KVUsage, PrefixHits: l.PrefixHits, PrefixQueries: l.PrefixQueries,
		Sleeping: l.Sleeping, Stale: l.Stale, Age: max(now.Sub(l.at), 0).Seconds(),
	}
}
