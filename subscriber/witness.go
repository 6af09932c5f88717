package subscriber

import (
	"sync"
	"sync/atomic"
)

// Prompt is a prompt that was routed to the engine: a witness of what the engine's blocks hold.
type Prompt struct {
	Adapter string // LoRA name, "" for the base model
	// AdapterPath is the adapter's path exactly as the engine was given it; "" when it is not known. vLLM ≥ 0.31 hashes it.
	AdapterPath string
	Salt        string // the request's cache salt, "" without
	// Tokens are the prompt's token ids. They are kept for a while and must not be changed.
	Tokens []uint32
}

// Bounds of the witnesses that wait.
const (
	queuePrompts = 256
	queueTokens  = 1 << 20
)

// witness is a prompt, or what one hashes to.
type witness struct {
	Prompt
	hashes *Hashes // nil: the tokens are here
}

// size is what a witness takes, in tokens: a hash is as long as two.
func (w *witness) size() int {
	if w.hashes != nil {
		return 2 * w.hashes.Numbers()
	}
	return len(w.Tokens)
}

// promptQueue holds prompts up to a number and a sum of tokens. When it is full, the oldest go.
type promptQueue struct {
	prompts []witness
	tokens  int
}

// push appends a prompt and returns how many went for it, the prompt itself among them if it is too long for any queue.
func (q *promptQueue) push(p witness, maxPrompts, maxTokens int) (dropped int) {
	if p.size() > maxTokens {
		return 1
	}
	q.prompts = append(q.prompts, p)
	q.tokens += p.size()
	for len(q.prompts) > maxPrompts || q.tokens > maxTokens {
		q.pop()
		dropped++
	}
	return dropped
}

func (q *promptQueue) pop() (witness, bool) {
	if len(q.prompts) == 0 {
		return witness{}, false
	}
	p := q.prompts[0]
	q.prompts[0] = witness{}
	q.prompts = q.prompts[1:]
	if len(q.prompts) == 0 {
		q.prompts = nil
	}
	q.tokens -= p.size()
	return p, true
}

// witnesses pass prompts from those who route them to the goroutine in Run.
type witnesses struct {
	wanted atomic.Bool
	ready  chan struct{} // capacity 1: there may be some

	mu      sync.Mutex
	queue   promptQueue
	dropped int
}

func newWitnesses() *witnesses { return &witnesses{ready: make(chan struct{}, 1)} }

func (w *witnesses) put(p witness) {
	if !w.wanted.Load() {
		return
	}
	w.mu.Lock()
	w.dropped += w.queue.push(p, queuePrompts, queueTokens)
	w.mu.Unlock()
	w.again()
}

// again says that there may be some.
func (w *witnesses) again() {
	select {
	case w.ready <- struct{}{}:
	default: // said already
	}
}

// take returns the oldest, and how many were dropped since the last call.
func (w *witnesses) take() (p witness, ok bool, dropped int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p, ok = w.queue.pop()
	dropped, w.dropped = w.dropped, 0
	return p, ok, dropped
}

// want says whether prompts are of use. What is queued is let go when they are not.
func (w *witnesses) want(yes bool) {
	if w.wanted.Swap(yes) == yes || yes {
		return
	}
	w.mu.Lock()
	w.queue = promptQueue{}
	w.mu.Unlock()
}

// Wants says whether a [Prompt] helps: the engine is connected, and it may hold blocks that it has not announced since the last
// Reset. It may be called at any time from anywhere and costs one atomic load.
func (s *Subscriber) Wants() bool { return s.witnesses.wanted.Load() }

// Witness tells of a prompt that was routed to the engine. It may be called at any time from anywhere and never blocks: a
// prompt that is not wanted is ignored, and beyond 256 prompts or 1 Mi tokens in the queue the oldest are dropped.
func (s *Subscriber) Witness(p Prompt) { s.witnesses.put(witness{Prompt: p}) }

// WitnessHashes is Witness for a prompt whose tokens are elsewhere: a [Hasher] has hashed it there for what Options.Wanted told. Hashes are kept for a
// while and must not be changed. Of the queue's tokens a hash takes two. Whoever sends hashes is believed about what they are of: wrong ones can have
// blocks announced that the engine holds with other contents.
func (s *Subscriber) WitnessHashes(h Hashes) { s.witnesses.put(witness{hashes: &h}) }
