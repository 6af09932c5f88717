package subscriber

import "testing"

// Life is the life of a truthful engine and of the Subscribers that follow it one after the other, for tests of what stands behind a Sink.
type Life struct{ life *life }

// LifeKinds is how many kinds of engines there are.
func LifeKinds() int { return len(lifeKinds()) }

// NewLife begins one. beside returns the Sink of a Subscriber that is about to begin.
func NewLife(t *testing.T, kind int, seed uint64, beside func() Sink) Life {
	return Life{newLife(t, lifeKinds()[kind], seed, beside)}
}

// Weather draws what goes wrong until the next Rest, Act lets something happen.
func (l Life) Weather() { l.life.weather() }
func (l Life) Act()     { l.life.act() }

// Renew ends the Subscriber, perhaps does something to its saved mirror, and begins another one.
func (l Life) Renew() { l.life.renew() }

// End ends the Subscriber.
func (l Life) End() { l.life.stop() }

// Rest waits until the Subscriber has applied what the engine published. It returns the fingerprints that a prompt can hit by tier, and those that
// must be announced because the engine can still replay them.
func (l Life) Rest() (held, due [2]map[uint64]bool) { return l.life.rest() }

// Announced is what the Subscriber has announced at this moment, by tier.
func (l Life) Announced() [2]map[uint64]bool { return l.life.sink.look().tiers }

// Prompt returns a prompt that a conversation has had, the first one of all when there is none.
func (l Life) Prompt() Prompt {
	e := l.life.engine
	if len(e.talks) == 0 {
		return e.system[0].Prompt
	}
	return e.talks[l.life.rnd.IntN(len(e.talks))].Prompt
}

// Happened counts what went wrong, and Events what the engine published.
func (l Life) Happened() map[string]int { return l.life.happened }
func (l Life) Events() int              { return l.life.events }

// bothSinks has two Sinks hear the same.
type bothSinks [2]Sink

func (b bothSinks) Store(tier Tier, keys []uint64) {
	for _, s := range b {
		s.Store(tier, keys)
	}
}

func (b bothSinks) Remove(tier Tier, keys []uint64) {
	for _, s := range b {
		s.Remove(tier, keys)
	}
}

func (b bothSinks) Reset(cause Cause) {
	for _, s := range b {
		s.Reset(cause)
	}
}

func (b bothSinks) Describe(d Description) {
	for _, s := range b {
		s.Describe(d)
	}
}
