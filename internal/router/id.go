package router

import (
	"crypto/rand"
	"encoding/base32"
	"strconv"
	"strings"
	"sync/atomic"
)

// ids numbers decisions: the instance, random per process, then a dash and a counter in base 36, all of it safe in URLs and file names.
// For example "k5t2q9vb-1z".
type ids struct {
	instance string
	last     atomic.Uint64
}

// newInstance returns 40 random bits: among 1,000 routers two are equal once in two million fleets.
func newInstance() string {
	var b [5]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return strings.ToLower(base32.StdEncoding.EncodeToString(b[:]))
}

// maxInstance bounds the names of other routers' instances, in bytes.
const maxInstance = 64

func (i *ids) next() (id string, number uint64) {
	number = i.last.Add(1)
	return i.instance + "-" + strconv.FormatUint(number, 36), number
}
