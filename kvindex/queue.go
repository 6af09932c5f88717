package kvindex

// queue is a first-in, first-out list that uses its memory again.
type queue[T any] struct {
	buf  []T
	head int
}

// keptQueue is the capacity beyond which an empty queue gives its memory back.
const keptQueue = 1024

func (q *queue[T]) len() int { return len(q.buf) - q.head }

// first returns the oldest element of a queue that is not empty.
func (q *queue[T]) first() T { return q.buf[q.head] }

func (q *queue[T]) push(v T) {
	if len(q.buf) == cap(q.buf) && q.head > len(q.buf)/2 {
		q.buf = q.buf[:copy(q.buf, q.buf[q.head:])]
		q.head = 0
	}
	q.buf = append(q.buf, v)
}

func (q *queue[T]) pop() T {
	v := q.buf[q.head]
	q.head++
	if q.head == len(q.buf) {
		q.buf, q.head = q.buf[:0], 0
		if cap(q.buf) > keptQueue {
			q.buf = nil
		}
	}
	return v
}
