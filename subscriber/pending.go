package subscriber

// pending holds live batches that wait for a replay, oldest first. What does not fit is dropped, and asked for again.
type pending struct {
	limit int // of size
	size  int // in bytes, with perPending for each
	queue []waitingBatch
	head  int
}

type waitingBatch struct {
	seq     uint64
	payload []byte
}

// perPending is what a batch takes beside its payload, rounded up.
const perPending = 128

func (p *pending) add(seq uint64, payload []byte) {
	size := len(payload) + perPending
	if p.size+size > p.limit {
		return
	}
	p.size += size
	p.queue = append(p.queue, waitingBatch{seq, payload})
}

// first returns the oldest batch.
func (p *pending) first() (seq uint64, payload []byte, ok bool) {
	if p.head == len(p.queue) {
		return 0, nil, false
	}
	b := p.queue[p.head]
	return b.seq, b.payload, true
}

// pop drops the oldest batch.
func (p *pending) pop() {
	b := &p.queue[p.head]
	p.size -= len(b.payload) + perPending
	*b = waitingBatch{}
	p.head++
}

func (p *pending) clear() { p.queue, p.head, p.size = nil, 0, 0 }
