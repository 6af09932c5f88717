package approx

import (
	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/internal/openai"
)

const (
	// BlockBytes is the size of a text block: about 64 tokens of English.
	BlockBytes = 256

	// BytesPerToken is how many bytes of text a token is taken for where nothing tells better, and exactly what a token id takes.
	BytesPerToken = 4

	// mediaBytes is the room that a part which is not text takes in the text: about 1,000 tokens, as an image of a common size.
	mediaBytes = 4096
)

// Keyer computes the keys of prompts by their text, one after the other. The zero Keyer is ready. It keeps no text, only the part of a block
// that is not full, and that until the next prompt.
type Keyer struct {
	// Keys are those of the last prompt's text blocks, first block first. A partial trailing block has none.
	Keys []uint64
	// Bytes is the length of the last prompt's text, its head included.
	Bytes int

	head   int // bytes of the head
	opened int // bytes after the head up to the end of the first message; 0 when there are no messages
	max    int // keys
	parent uint64
	text   bool // the head is complete
	block  [BlockBytes]byte
	n      int // bytes in block
	buf    [2048]byte
}

// Key computes the keys of a request's prompt, at most max of them, and reports whether it has a text. pool names the base weights.
func (k *Keyer) Key(pool, adapter string, r *openai.Request, max int) bool {
	k.Keys, k.Bytes, k.head, k.opened, k.n = k.Keys[:0], 0, 0, 0, 0
	k.max, k.text = max, false
	k.parent = blockhash.Namespace{Pool: pool, Adapter: adapter, BlockSize: BlockBytes}.Root()
	if !r.WriteText(k, k.buf[:]) {
		return false
	}
	k.begin()
	return true
}

// Reusable is how many leading keys an engine could reuse: it computes at least the last token of a prompt.
func (k *Keyer) Reusable() int {
	return min(len(k.Keys), max(0, k.Bytes-k.head-1)/BlockBytes)
}

// Covered is how many bytes of the prompt so many leading blocks stand for. The head counts once the first message is held: templates may
// print tools and documents after it.
func (k *Keyer) Covered(blocks int) int {
	n := blocks * BlockBytes
	if n > 0 && n >= k.opened {
		n += k.head
	}
	return n
}

// Head takes the part of the text that decides on all of it: it becomes the root of the chain.
func (k *Keyer) Head(p []byte) {
	k.head += len(p)
	k.Bytes += len(p)
	k.fill(p)
}

// Text takes what follows.
func (k *Keyer) Text(p []byte) {
	k.begin()
	k.Bytes += len(p)
	k.fill(p)
}

// Media takes a part that is not text. Its hash stands for it, repeated, so that the part weighs something.
func (k *Keyer) Media(p []byte) {
	k.begin()
	id := blockhash.Bytes(p)
	var room [64]byte
	for i := range room {
		room[i] = byte(id >> (i % 8 * 8))
	}
	for range mediaBytes / len(room) {
		k.Bytes += len(room)
		k.fill(room[:])
	}
}

// Opened notes the end of the first message.
func (k *Keyer) Opened() {
	k.begin()
	k.opened = k.Bytes - k.head
}

// begin ends the head.
func (k *Keyer) begin() {
	if k.text {
		return
	}
	k.parent = blockhash.Chain(k.parent, blockhash.Bytes(k.block[:k.n]))
	k.n, k.text = 0, true
}

// fill adds bytes to the chain, block by block.
func (k *Keyer) fill(p []byte) {
	if k.n > 0 {
		n := copy(k.block[k.n:], p)
		k.n += n
		p = p[n:]
		if k.n < BlockBytes {
			return
		}
		k.chain(k.block[:])
		k.n = 0
	}
	for len(p) >= BlockBytes {
		k.chain(p[:BlockBytes])
		p = p[BlockBytes:]
	}
	k.n = copy(k.block[:], p)
}

func (k *Keyer) chain(block []byte) {
	switch {
	case !k.text:
		k.parent = blockhash.Chain(k.parent, blockhash.Bytes(block))
	case len(k.Keys) < k.max:
		k.parent = blockhash.Chain(k.parent, blockhash.Bytes(block))
		k.Keys = append(k.Keys, k.parent)
	}
}
