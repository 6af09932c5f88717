package kvindex

import (
	"math/rand/v2"
	"runtime"
	"sync/atomic"
)

// matchers keeps matchers between matches, as sync.Pool would, but through garbage collections too: a match never
// allocates, unless more matches are under way than there are nests.
type matchers struct {
	nests []nest
}

// nest holds one idle matcher. Cores do not share its cache line while they find theirs occupied.
type nest struct {
	idle atomic.Pointer[matcher]
	_    [56]byte
}

func (ms *matchers) init() {
	n := 8
	for n < 4*runtime.GOMAXPROCS(0) && n < 1024 {
		n *= 2
	}
	ms.nests = make([]nest, n)
}

func (ms *matchers) take(x *Index) *matcher {
	start := rand.Uint32()
	for i := range ms.nests {
		n := &ms.nests[(int(start)+i)&(len(ms.nests)-1)]
		if n.idle.Load() != nil {
			if m := n.idle.Swap(nil); m != nil {
				return m
			}
		}
	}
	return newMatcher(x)
}

func (ms *matchers) put(m *matcher) {
	start := rand.Uint32()
	for i := range ms.nests {
		n := &ms.nests[(int(start)+i)&(len(ms.nests)-1)]
		if n.idle.Load() == nil && n.idle.CompareAndSwap(nil, m) {
			return
		}
	}
}
