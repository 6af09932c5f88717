package subscriber

import "crypto/sha256"

// position says how far into an engine's batches a mirror is: it is what the engine held after the batch seq. The zero value
// is the position of a mirror that nothing was applied to.
type position struct {
	seq uint64
	// digest is that of the batch's payload, which carries the time at which it was made: a process that has another batch under
	// the same number is another process.
	digest [16]byte
	seen   bool
	// complete says that nothing is missing from the mirror: it has followed the engine's batches from number 0.
	complete bool
}

// digestOf returns the digest of a payload: the first half of its SHA-256.
func digestOf(payload []byte) (d [16]byte) {
	sum := sha256.Sum256(payload)
	copy(d[:], sum[:])
	return d
}
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
