package router

// suspectCost puts a suspect endpoint behind all others, whatever they cost, and is small enough for its own cost to count among its like.
const suspectCost = 1e12

// maxKappa bounds the price of a second copy: behind a longer queue it is rather the queue itself that drives requests away.
const maxKappa = 6

// weights of the cost, in tokens per token.
type weights struct {
	memory float64
	near   float64 // costs within so many tokens of the lowest are equal
}

// standing is one healthy endpoint as scoring sees it. Tokens throughout.
type standing struct {
	device int     // leading prompt tokens in the device tier
	any    int     // leading prompt tokens in any tier, at least device
	colder float64 // worth of a token held outside of the device, in device tokens
	last   uint64  // key of the prompt's last whole block that could be reused, in this endpoint's block size; 0 when it was not matched here
	load   load

	suspect bool // not to be the first choice: suspect, or gone down, draining or asleep since it was gathered
}

// credit is what the endpoint saves of the prompt's prefill.
func (s standing) credit() float64 {
	return float64(s.device) + s.colder*float64(s.any-s.device)
}

// kappa is the price of computing a token that another endpoint holds: one more token of prefill delays everybody behind it, so it is
// the number of requests in prefill per endpoint. An idle pool copies freely, a loaded one stays with its holders.
func kappa(all []standing) float64 {
	if len(all) == 0 {
		return 0
	}
	sum := 0.0
	for i := range all {
		sum += all[i].load.queue
	}
	return min(sum/float64(len(all)), maxKappa)
}

// appendCosts appends the cost of a prompt at each endpoint:
//
//	uncached + κ·lost + backlog + w·memory
//
// uncached is what the endpoint must compute of the prompt, lost what it lacks of the best holder's share.
func appendCosts(dst []float64, prompt int, all []standing, w weights) []float64 {
	best := 0.0
	for i := range all {
		best = max(best, all[i].credit())
	}
	k := kappa(all)
	for i := range all {
		credit := all[i].credit()
		uncached, lost := float64(prompt)-credit, best-credit
		cost := uncached + k*lost + all[i].load.backlog + w.memory*all[i].load.memory
		if all[i].suspect {
			cost += suspectCost
		}
		dst = append(dst, cost)
	}
	return dst
}

// pick returns the index of a lowest cost other than except (−1: none excepted), at random among those within near of it, and −1 when nothing
// is left. random(n) is uniform in [0, n).
func pick(costs []float64, except int, near float64, random func(n int) int) int {
	lowest := -1
	for i, c := range costs {
		if i != except && (lowest < 0 || c < costs[lowest]) {
			lowest = i
		}
	}
	if lowest < 0 {
		return -1
	}
	chosen, equal := lowest, 0
	for i, c := range costs {
		if i == except || c-costs[lowest] > near {
			continue
		}
		if equal++; random(equal) == 0 {
			chosen = i
		}
	}
	return chosen
}
