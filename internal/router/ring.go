package router

// charge is one request in an account's queue.
type charge struct {
	end float64 // value of account.served at which it is complete
	key uint64  // of the prompt's last whole block; 0 when not known
}

// ring is a queue of charges that grows as needed. Its length is a power of two.
type ring struct {
	buf  []charge
	head int
	n    int
}

func (r *ring) at(i int) *charge { return &r.buf[(r.head+i)&(len(r.buf)-1)] }

func (r *ring) len() int         { return r.n }
func (r *ring) first() charge    { return *r.at(0) }
func (r *ring) last() charge     { return *r.at(r.n - 1) }
func (r *ring) setLast(c charge) { *r.at(r.n - 1) = c }

func (r *ring) pop() charge {
	c := r.first()
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
	r.setLast(c)
}
