package scrape

import "math"

// counter makes counts that never go back of those of an engine, which begin anew with each of its lives.
type counter struct {
	last  map[string]counts // by rank, as of the last page
	total counts
}

// add takes the counts of a page and tells whether some of them are of another life than before. A rank that was not there before has its
// counts since its own start.
func (c *counter) add(now map[string]counts) (restarted bool) {
	for rank, n := range now {
		before, known := c.last[rank]
		if known && (n.hits < before.hits || n.queries < before.queries) {
			restarted = true
			before = counts{}
		}
		c.total.hits = add(c.total.hits, n.hits-before.hits)
		c.total.queries = add(c.total.queries, n.queries-before.queries)
	}
	for rank := range c.last {
		if _, still := now[rank]; !still {
			restarted = true
		}
	}
	c.last = now
	return restarted
}

// add stays at the largest number rather than to begin anew.
func add(a, b uint64) uint64 {
	if a+b < a {
		return math.MaxUint64
	}
	return a + b
}
