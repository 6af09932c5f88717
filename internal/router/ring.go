package router

import "sort"

// charge is one request in an account's queue, or several that have joined the youngest one.
type charge struct {
	end      float64 // value of account.served at which it is complete
	key      uint64  // of the prompt's last whole block; 0 when not known
	number   uint64  // names it; grows along the queue
	requests int     // that share it
}

// ring is a queue of charges that grows as needed. Its length is a power of two.
type ring struct {
	buf  []charge
	head int
	n    int
}

func (r *ring) at(i int) *charge { return &r.buf[(r.head+i)&(len(r.buf)-1)] }

func (r *ring) len() int { return r.n }

func (r *ring) pop() charge {
	c := *r.at(0)
	r.head = (r.head + 1) & (len(r.buf) - 1)
	r.n--
	return c
}

func (r *ring) push(c charge) {
	if r.n == len(r.buf) {
		grown := make([]charge, max(8, 2*len(r.buf)))
		for i := range r.n {
			grown[i] = *r.at(i)
		}
		r.buf, r.head = grown, 0
	}
	r.n++
	*r.at(r.n - 1) = c
}

// find returns the position of the charge with a number.
func (r *ring) find(number uint64) (i int, ok bool) {
	i = sort.Search(r.n, func(i int) bool { return r.at(i).number >= number })
	return i, i < r.n && r.at(i).number == number
}

// remove takes out the charge at a position.
func (r *ring) remove(i int) {
	for ; i+1 < r.n; i++ {
		*r.at(i) = *r.at(i + 1)
	}
	r.n--
}
