package subscriber

import (
	"sync"
	"sync/atomic"
)

// Proxy stands in for a [Subscriber] that runs elsewhere: it takes the prompts, and gives what they hash to. All methods but Next may be called from any
// goroutine at any time.
type Proxy struct {
	pool   string
	ready  func()
	wanted atomic.Bool

	mu      sync.Mutex
	want    Want
	hasher  *Hasher // for want; nil: none yet
	queue   promptQueue
	dropped int
}

// NewProxy returns a Proxy for a Subscriber of a pool, which wants nothing. ready is called when Next may have something. It must not block.
func NewProxy(pool string, ready func()) *Proxy { return &Proxy{pool: pool, ready: ready} }

// Set takes over what the Subscriber wants. Prompts that wait for the block size are kept; when none are wanted, those that wait are let go. Where each token
// is a block nothing is hashed: to whoever has a table of the tokens' hashes that would be the prompt.
func (p *Proxy) Set(w Want) {
	if w.BlockSize == 1 {
		w = Want{}
	}
	p.mu.Lock()
	p.want, p.hasher = w, nil
	p.wanted.Store(w.Yes)
	if !w.Yes {
		p.queue = promptQueue{}
	}
	any := w.BlockSize > 0 && len(p.queue.prompts) > 0
	p.mu.Unlock()
	if any {
		p.ready()
	}
}

// Wants is that of the Subscriber, as far as it is known.
func (p *Proxy) Wants() bool { return p.wanted.Load() }

// Witness takes a prompt. It never blocks: one that is not wanted is ignored, and beyond 64 prompts or 256 Ki tokens that wait the oldest are dropped.
func (p *Proxy) Witness(prompt Prompt) {
	if !p.wanted.Load() {
		return
	}
	p.mu.Lock()
	if !p.want.Yes {
		p.mu.Unlock()
		return
	}
	p.dropped += p.queue.push(witness{Prompt: prompt}, waitPrompts, waitTokens)
	known := p.want.BlockSize > 0
	p.mu.Unlock()
	if known {
		p.ready()
	}
}

// Next hashes the prompts that wait, the oldest first; those without a whole block are left out. ok is false when none waits, or when they wait for the
// block size. dropped is how many were dropped since the last call. Next is called by one goroutine at a time.
func (p *Proxy) Next() (h Hashes, ok bool, dropped int) {
	for {
		p.mu.Lock()
		dropped += p.dropped
		p.dropped = 0
		if p.want.BlockSize == 0 || len(p.queue.prompts) == 0 {
			p.mu.Unlock()
			return h, false, dropped
		}
		if p.hasher == nil {
			p.hasher = NewHasher(p.pool, p.want)
		}
		hasher := p.hasher
		w, _ := p.queue.pop()
		p.mu.Unlock()
		if h, ok = hasher.Hash(w.Prompt); ok {
			return h, true, dropped
		}
	}
}
