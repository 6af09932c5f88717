package router

import "math"

// Peers are the other routers that send requests to the same endpoints. Its methods may be called from any goroutine, and never block.
type Peers interface {
	// Charged tells them what a decision of this router has charged. A decision is told of once, and again for another endpoint after
	// it was released.
	Charged(c Charge)
	// Released tells them that the request of a decision has ended. It may tell so twice.
	Released(pool string, number uint64)
	// Pass hands the end of a request to the router that made its decision, or keeps it until there is a way.
	Pass(instance string, c Completion) Passing
}

// Passing says what peers do with a record of another router's decision.
type Passing uint8

// What peers do with records.
const (
	NoWay  Passing = iota // nothing: no way to its router is known, and none is waited for
	Passed                // there is a way
	Kept                  // there may soon be one
)

// Charge is what one decision has entered as load at an endpoint. Routers that share charges enter each other's in their own accounts.
type Charge struct {
	Pool     string
	Endpoint string // ip:port
	Rank     int    // data-parallel rank that was chosen, −1 where the engine chooses
	Number   uint64 // of the decision, by which it is released
	Uncached int    // prompt tokens to compute
	Prompt   int    // prompt tokens
	Key      uint64 // fingerprint of the prompt's last whole block, 0 when not known
}

// Instance is this life of the router, as decision ids name it.
func (r *Router) Instance() string { return r.ids.instance }

// tells says whether what is entered for a request is told to peers.
func (f *fleet) tells(b booking, prompt int) bool {
	return f.peers != nil && b.number != 0 && b.charge && prompt > 0
}

// tellCharge tells peers of a charge. The caller does not hold mu: whoever shares charges may be about to enter one here.
func (f *fleet) tellCharge(t *target, number uint64, uncached float64, prompt int, key uint64) {
	f.peers.Charged(Charge{
		Pool: f.name(), Endpoint: t.endpoint.Addr(), Rank: t.seat().rank, Number: number, Uncached: int(math.Ceil(uncached)), Prompt: prompt, Key: key,
	})
}

// tellReleases tells peers of decisions that have ended. The caller does not hold mu.
func (f *fleet) tellReleases(numbers ...uint64) {
	for _, number := range numbers {
		f.peers.Released(f.name(), number)
	}
}
