package feed

// kind says what a message means to the queue.
type kind uint8

const (
	kindBlocks  kind = iota // what a new copy makes needless: begin, blocks, end, delta, and what is made anew
	kindReset               // is kept when the others are dropped
	kindCharges             // gives way to blocks
	kindRecord
)

// message is one that is ready to be sent. Several queues may have it.
type message struct {
	data   []byte // of a feedpb.NodeMessage; never changed
	kind   kind
	source uint32 // of a reset

	added, removed, copied, charges int // what it brings
}

// perMessage is what a message costs beside its bytes, rounded up.
const perMessage = 64

func (m message) size() int { return len(m.data) + perMessage }

// queue is a bounded list of messages, the oldest first.
type queue struct {
	limit int // of bytes
	bytes int
	list  []message
	head  int
}

// room says whether a message fits into a share of the queue.
func (q *queue) room(m message, numerator, denominator int) bool {
	return q.bytes+m.size() <= q.limit/denominator*numerator
}

func (q *queue) add(m message) {
	if q.head > 64 && 2*q.head > len(q.list) {
		n := copy(q.list, q.list[q.head:])
		clear(q.list[n:])
		q.list, q.head = q.list[:n], 0
	}
	q.bytes += m.size()
	q.list = append(q.list, m)
}

func (q *queue) empty() bool { return q.head == len(q.list) }

func (q *queue) pop() message {
	m := q.list[q.head]
	q.list[q.head] = message{}
	q.head++
	q.bytes -= m.size()
	if q.empty() {
		q.list, q.head = q.list[:0], 0
		if cap(q.list) > 1024 {
			q.list = nil
		}
	}
	return m
}

// take empties the queue.
func (q *queue) take() []message {
	all := q.list[q.head:]
	q.list, q.head, q.bytes = nil, 0, 0
	return all
}
