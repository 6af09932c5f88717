package subscriber

// order says how a batch stands to the one before it on the same connection.
type order uint8

const (
	first     order = iota // of the connection: nothing to compare with
	next                   // the number expected
	gap                    // numbers are missing: batches were lost
	backwards              // a number seen before: the engine counts from a fresh start
)

// sequence follows the sequence numbers of one connection. Engines count batches from 0 per publisher process, one number
// each. The zero value has seen nothing. A number that a later process happens to reach again looks like next: only the
// connection's end shows that restart, which is why a disconnect always resets.
type sequence struct {
	expected uint64
	seen     bool
}

// observe classifies seq and expects its successor from then on.
func (s *sequence) observe(seq uint64) order {
	o := next
	switch {
	case !s.seen:
		o = first
	case seq > s.expected:
		o = gap
	case seq < s.expected:
		o = backwards
	}
	s.expected, s.seen = seq+1, true
	return o
}
