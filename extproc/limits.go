package extproc

import (
	"sync"

	"github.com/prometheus/client_golang/prometheus"
)

const (
	ordinaryShare   = 32 // a body above MaxBody/ordinaryShare, or above streamWindow, is large
	undeclaredShare = 8  // a body of undeclared length is entered as MaxBody/undeclaredShare
)

// account counts the bytes that all streams hold. Large holdings have a bound of their own below the total, so that they leave room
// for ordinary ones.
type account struct {
	ordinary int64 // a holding above this is large
	gauge    prometheus.Gauge

	mu       sync.Mutex
	max      int64 // total
	maxLarge int64 // large holdings together
	total    int64
	large    int64
}

func newAccount(maxBody, maxTotal int64, gauge prometheus.Gauge) *account {
	a := &account{ordinary: min(maxBody/ordinaryShare, streamWindow), gauge: gauge}
	a.bound(maxBody, maxTotal)
	return a
}

// bound changes the bounds. What is held stays, and what is large stays large: that is judged by the bounds of the beginning.
func (a *account) bound(maxBody, maxTotal int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.max, a.maxLarge = maxTotal, max(maxTotal/2, maxBody+slack)
}

// move changes one holding from one size to another. Unless forced, a growth that breaks a bound is refused and changes nothing.
func (a *account) move(from, to int64, force bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	total := a.total - from + to
	large := a.large - a.largePart(from) + a.largePart(to)
	if !force && to > from && (total > a.max || large > a.large && large > a.maxLarge) {
		return false
	}
	a.total, a.large = total, large
	a.gauge.Set(float64(total))
	return true
}

func (a *account) largePart(n int64) int64 {
	if n > a.ordinary {
		return n
	}
	return 0
}

// awaited reports whether a body of a declared length may be long in coming and take much when it comes: large ones and those of
// undeclared length.
func (a *account) awaited(declared int64) bool {
	return declared == undeclared || declared > a.ordinary
}

// holding is what one stream has entered in the account.
type holding struct {
	account *account
	n       int64
}

// resize makes the holding n bytes, or reports false and leaves it as it is.
func (h *holding) resize(n int64) bool {
	if !h.account.move(h.n, n, false) {
		return false
	}
	h.n = n
	return true
}

// force makes the holding n bytes whatever the bounds: for bytes that are held already and cannot be refused.
func (h *holding) force(n int64) {
	h.account.move(h.n, n, true)
	h.n = n
}
