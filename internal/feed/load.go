package feed

import (
	"errors"
	"fmt"
	"math"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// Load is what an engine last said of itself.
type Load struct {
	Endpoint      string // as in Replica
	Running       int    // requests, of all ranks together
	Waiting       int
	KVUsage       float64 // 0 to 1
	PrefixHits    uint64  // tokens since the engine's start
	PrefixQueries uint64  // tokens since the engine's start; 0 for not known
	Sleeping      bool
	Age           time.Duration // of these figures
	Stale         bool          // they could not be read lately
}

func (l Load) proto() *feedpb.Load {
	return &feedpb.Load{
		Endpoint: l.Endpoint, Running: count32(l.Running), Waiting: count32(l.Waiting), KvUsage: l.KVUsage, PrefixHits: l.PrefixHits,
		PrefixQueries: l.PrefixQueries, Sleeping: l.Sleeping, AgeMs: uint64(max(l.Age.Milliseconds(), 0)), Stale: l.Stale,
	}
}

// maxAge bounds the age of figures, so that no sum with it overflows.
const maxAge = 365 * 24 * time.Hour

// loadOf reads a received load.
func loadOf(p *feedpb.Load) (Load, error) {
	l := Load{
		Endpoint: p.GetEndpoint(), Running: count(p.GetRunning()), Waiting: count(p.GetWaiting()), KVUsage: p.GetKvUsage(), PrefixHits: p.GetPrefixHits(),
		PrefixQueries: p.GetPrefixQueries(), Sleeping: p.GetSleeping(), Age: time.Duration(min(p.GetAgeMs(), uint64(maxAge.Milliseconds()))) * time.Millisecond,
		Stale: p.GetStale(),
	}
	if l.Endpoint == "" {
		return l, errors.New("load of no endpoint")
	}
	if !(l.KVUsage >= 0 && l.KVUsage <= 1) || math.IsNaN(l.KVUsage) {
		return l, fmt.Errorf("load with a KV usage of %g", l.KVUsage)
	}
	return l, short("endpoint", l.Endpoint, maxEndpoint)
}
