package feed

import (
	"encoding/binary"
	"fmt"
)

// keySize is the size of a fingerprint on the wire, little-endian.
const keySize = 8

// The bits of a tier byte. A block that is there has bit any, and bit device as well where the device holds it.
const (
	tierAny    byte = 1
	tierDevice byte = 2
	tierBoth        = tierAny | tierDevice
)

// appendKey appends one key.
func appendKey(to []byte, key uint64) []byte { return binary.LittleEndian.AppendUint64(to, key) }

// keyAt is key i of a list.
func keyAt(list []byte, i int) uint64 { return binary.LittleEndian.Uint64(list[i*keySize:]) }

// packTiers leaves out tiers that are all of them.
func packTiers(tiers []byte) []byte {
	for _, t := range tiers {
		if t != tierBoth {
			return tiers
		}
	}
	return nil
}

// countKeys checks a received list of keys with their tiers and returns how many there are. With whole, each key has to be in any tier.
func countKeys(what string, keys, tiers []byte, whole bool) (int, error) {
	n := len(keys) / keySize
	switch {
	case len(keys)%keySize != 0:
		return 0, fmt.Errorf("%s of %d bytes are no whole keys", what, len(keys))
	case len(tiers) != 0 && len(tiers) != n:
		return 0, fmt.Errorf("%d %s with %d tiers", n, what, len(tiers))
	}
	if err := few(what, n, maxKeys); err != nil {
		return 0, err
	}
	for _, t := range tiers {
		if t == 0 || t > tierBoth || whole && t&tierAny == 0 {
			return 0, fmt.Errorf("%s with tier bits %#x", what, t)
		}
	}
	return n, nil
}
