package router

import (
	"fmt"

	"github.com/kvsteer/kvsteer/subscriber"
)

// TierWeights are the worth of a token that an endpoint holds outside of its device, in device tokens: 1 saves as much as one on
// the device, 0 nothing. What is gained is the prefill; what is paid is the copying back, and that the entry may be gone by then.
type TierWeights struct {
	Host float64 // in the memory of the engine's host
	Disk float64 // on a disk of it
}

// DefaultTierWeights are those of a pool for which none are given.
func DefaultTierWeights() TierWeights { return TierWeights{Host: 0.8, Disk: 0.5} }

func (t TierWeights) check() error {
	for _, w := range []struct {
		name string
		v    float64
	}{{"host weight", t.Host}, {"disk weight", t.Disk}} {
		if !(w.v >= 0 && w.v <= 1) { // NaN is neither
			return fmt.Errorf("%s: %v, want 0 to 1", w.name, w.v)
		}
	}
	return nil
}

// of returns the worth of what an endpoint holds outside of its device. The index tells device and any tier apart only, so the
// coldest medium that the engine uses decides: credit too little is safe.
func (t TierWeights) of(coldest subscriber.Medium) float64 {
	if coldest == subscriber.MediumDisk {
		return t.Disk
	}
	return t.Host
}

// tiers returns the weights of a pool.
func (s *Settings) tiers(pool string) TierWeights {
	if t, ok := s.Tiers[pool]; ok {
		return t
	}
	return DefaultTierWeights()
}
