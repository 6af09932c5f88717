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
	// start is the number of the first batch that is in the mirror: what a replay begins with before it, the mirror lacks.
	start uint64
}

// digestOf returns the digest of a payload: the first half of its SHA-256.
func digestOf(payload []byte) (d [16]byte) {
	sum := sha256.Sum256(payload)
	copy(d[:], sum[:])
	return d
}
