package subscriber

// ages is a bounded map from 64-bit keys that forgets the oldest half when it is full: two generations, of which the older goes.
type ages[V any] struct {
	size int // keys of a generation
	now  map[uint64]V
	old  map[uint64]V
}

func (a *ages[V]) get(key uint64) (v V, ok bool) {
	if v, ok = a.now[key]; !ok {
		v, ok = a.old[key]
	}
	return v, ok
}

// put enters a value, and tells whether it begins a generation, for which the older of two was forgotten.
func (a *ages[V]) put(key uint64, v V) (turned bool) {
	if _, ok := a.now[key]; !ok && len(a.now) >= a.size {
		a.old, a.now = a.now, nil
		turned = true
	}
	if a.now == nil {
		a.now = make(map[uint64]V)
	}
	a.now[key] = v
	return turned
}

func (a *ages[V]) clear() { a.now, a.old = nil, nil }
