package router

import (
	"slices"

	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Hearer learns from the prompts that are sent to an engine what the engine holds.
type Hearer interface {
	// Wants says whether a prompt helps. It costs nothing.
	Wants() bool
	// Witness tells of a prompt. It never blocks.
	Witness(p subscriber.Prompt)
}

// TellPrompts has the source's subscriber hear of the prompts that may run at its rank. It may be called at any time.
func (s *Source) TellPrompts(h Hearer) { s.hearer.Store(&h) }

// hears says whether the source's subscriber wants prompts, and returns it.
func (k *rank) hears() (Hearer, bool) {
	s := k.source.Load()
	if s == nil {
		return nil, false
	}
	h := s.hearer.Load()
	if h == nil || !(*h).Wants() {
		return nil, false
	}
	return *h, true
}

// wantsWitness says whether any candidate learns from prompts what it holds.
func (sc *scratch) wantsWitness() bool {
	return slices.ContainsFunc(sc.candidates, func(c candidate) bool {
		return slices.ContainsFunc(c.target.ranks, func(k *rank) bool { _, ok := k.hears(); return ok })
	})
}

// testify tells of a prompt those who want to hear of it where it may run: the choice when that is obeyed, else all candidates, since Envoy goes where
// it likes then. Telling of a prompt that runs elsewhere does no harm: a prompt alone proves nothing, it only names the blocks that the
// engine's own events are about.
func (sc *scratch) testify(steered bool, first int, p subscriber.Prompt) {
	for i := range sc.candidates {
		if steered && i != first {
			continue
		}
		for _, k := range sc.candidates[i].target.ranks {
			if h, ok := k.hears(); ok {
				p.AdapterPath = sc.candidates[i].endpoint.AdapterPath(p.Adapter)
				h.Witness(p)
			}
		}
	}
}

// runs says whether an engine will run a prompt whose token ids are known, as far as the reason tells.
func runs(reason Reason) bool {
	switch reason {
	case ReasonOverModel, ReasonAborted, Reason(openai.ReasonTooLong):
		return false
	}
	return true
}
