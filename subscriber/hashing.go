package subscriber

import (
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// variant is a way in which an engine may hash a prompt: algorithm and form of the extra keys. A plain prompt has the untagged
// form alone.
type variant uint8

const (
	algorithmCount = 5
	variants       = 2 * algorithmCount
)

func variantOf(a blockhash.Algorithm, tagged bool) variant {
	v := 2 * variant(a)
	if tagged {
		v++
	}
	return v
}

func (v variant) algorithm() blockhash.Algorithm { return blockhash.Algorithm(v / 2) }
func (v variant) tagged() bool                   { return v%2 == 1 }

// Bounds of the attempts to find out how an engine hashes, in blocks hashed.
const (
	trialPrompt = 16 << 10 // for one prompt
	trialSecond = 64 << 10 // in one second
)

// hashing is what is known of how the engine hashes. Nothing that is announced rests on it: a block is taken for resident only
// when a hash that the engine published is met exactly. It only saves the attempts that would be in vain.
type hashing struct {
	chains [algorithmCount]*blockhash.EngineChain // nil: cannot be tried, or is known not to be it
	all    [algorithmCount]*blockhash.EngineChain // chains of an engine of which nothing is known
	known  bool                                   // one chain is left because it fits
	// tagged and untagged say which forms of extra keys the engine may use.
	tagged, untagged bool

	spent int // blocks hashed in attempts since second
	since time.Time
}

// newHashing takes PYTHONHASHSEED of the engine, nil when it is not set.
func newHashing(seed *string) *hashing {
	h := &hashing{}
	text := blockhash.DefaultSeed
	if seed != nil {
		text = *seed
	}
	for a := range blockhash.Algorithm(algorithmCount) {
		if seed != nil || !a.NeedsSeed() {
			h.all[a] = blockhash.NewEngineChain(a, text)
		}
	}
	h.reset()
	return h
}

// reset forgets what was learned: another engine may answer.
func (h *hashing) reset() {
	h.chains, h.known = h.all, false
	h.tagged, h.untagged = true, true
}

// hopeless says that no chain is left that could be the engine's.
func (h *hashing) hopeless() bool {
	for _, c := range h.chains {
		if c != nil {
			return false
		}
	}
	return true
}

// variantsOf appends the variants under which the engine may have hashed a prompt.
func (h *hashing) variantsOf(dst []variant, p *Prompt) []variant {
	for a, c := range h.chains {
		algorithm := blockhash.Algorithm(a)
		switch {
		case c == nil:
		case p.Adapter == "" && p.Salt == "":
			dst = append(dst, variantOf(algorithm, false))
		case algorithm == blockhash.AlgorithmSGLang:
			if p.Adapter == "" {
				dst = append(dst, variantOf(algorithm, false))
			}
		default:
			if h.untagged {
				dst = append(dst, variantOf(algorithm, false))
			}
			if h.tagged && (p.Adapter == "" || p.AdapterPath != "") {
				dst = append(dst, variantOf(algorithm, true))
			}
		}
	}
	return dst
}

// keysOf is what goes into the hashes of a prompt's blocks beside the tokens; nil for nothing.
func (v variant) keysOf(p *Prompt) *blockhash.ExtraKeys {
	if p.Adapter == "" && p.Salt == "" {
		return nil
	}
	return &blockhash.ExtraKeys{Tagged: v.tagged(), LoRA: p.Adapter, LoRAPath: p.AdapterPath, Salt: p.Salt}
}

// afford takes so many blocks off what attempts may cost in this second, and is false when that is too much.
func (h *hashing) afford(blocks int, now time.Time) bool {
	if passed := now.Sub(h.since); passed >= time.Second || passed < 0 {
		h.since, h.spent = now, 0
	}
	if h.spent+blocks > trialSecond {
		return false
	}
	h.spent += blocks
	return true
}

// learn notes that the engine has published a hash that v gives.
func (h *hashing) learn(v variant, keyed bool) {
	for a := range h.chains {
		if blockhash.Algorithm(a) != v.algorithm() {
			h.chains[a] = nil
		}
	}
	h.known = true
	if keyed && v.algorithm() != blockhash.AlgorithmSGLang {
		h.tagged, h.untagged = v.tagged(), !v.tagged()
	}
}

// settled says that a prompt with such keys leaves nothing to find out.
func (h *hashing) settled(keyed bool) bool { return h.known && (!keyed || h.tagged != h.untagged) }

// maxFirst bounds the tokens of a first block that is hashed: above it Python splits the pickle into frames.
const maxFirst = 8 << 10

// first looks at a first block as the engine published it. certain says that the event tells all that went into its hash.
func (h *hashing) first(hash uint64, p Prompt, certain bool) {
	keyed := p.Adapter != "" || p.Salt != ""
	if len(p.Tokens) > maxFirst || h.settled(keyed) {
		return
	}
	if h.hopeless() { // perhaps wrongly: what made it so is less certain than a hash
		h.chains = h.all
		defer func() {
			if !h.known {
				h.giveUp()
			}
		}()
	}
	var buf [variants]variant
	for _, v := range h.variantsOf(buf[:0], &p) {
		c := h.chains[v.algorithm()]
		d := c.Block(nil, p.Tokens, v.keysOf(&p))
		if c.Uint64(&d) == hash {
			h.learn(v, keyed)
			return
		}
	}
	if certain && !keyed && !h.known {
		h.giveUp()
	}
}

// giveUp notes that no chain fits.
func (h *hashing) giveUp() { h.chains = [algorithmCount]*blockhash.EngineChain{} }
