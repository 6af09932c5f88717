package demo

import (
	"fmt"
	"math"
	"math/rand/v2"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// Workload describes the traffic of one arm. Lengths are in words: about 1.4 tokens of the simulated engines each.
type Workload struct {
	Seed          uint64
	Tenants       int           // each with its own system prompt
	SystemWords   int           // mean length of a system prompt
	Conversations int           // spread over Span
	Turns         int           // most turns of one conversation; the fewest are 2, if it allows
	UserWords     int           // mean length of a user's message
	AnswerTokens  int           // mean length of an answer
	Think         time.Duration // mean time between an answer and the next turn
	Span          time.Duration // conversations begin within it
}

// defaultWorkload takes somewhat over 20 s per arm on the demo's engines.
var defaultWorkload = Workload{
	Seed: 7, Tenants: 6, SystemWords: 1400, Conversations: 60, Turns: 5, UserWords: 90, AnswerTokens: 60,
	Think: 1500 * time.Millisecond, Span: 11500 * time.Millisecond,
}

// conversation is one user's script: the answers come from the engines.
type conversation struct {
	start  time.Duration
	system string
	turns  []turn
}

type turn struct {
	user   string
	answer int           // longest answer, in tokens
	think  time.Duration // before the turn, after the previous answer
}

// sized is w with so many conversations that begin at the same rate; 0 leaves it as it is.
func (w Workload) sized(conversations int) Workload {
	if conversations > 0 {
		w.Span = w.Span * time.Duration(conversations) / time.Duration(w.Conversations)
		w.Conversations = conversations
	}
	return w
}

// script draws the whole workload.
func (w Workload) script() []conversation {
	rng := rand.New(rand.NewPCG(w.Seed, 0x6b76))
	systems := make([]string, w.Tenants)
	for i := range systems {
		systems[i] = fmt.Sprintf("You answer for tenant %d. ", i) + words(rng, spread(rng, w.SystemWords))
	}
	out := make([]conversation, w.Conversations)
	for i := range out {
		c := &out[i]
		c.start = time.Duration(rng.Float64() * float64(w.Span))
		// A few tenants have most of the users, as in real fleets.
		c.system = systems[int(float64(w.Tenants)*math.Pow(rng.Float64(), 1.6))]
		for range min(2, w.Turns) + rng.IntN(max(1, w.Turns-1)) {
			c.turns = append(c.turns, turn{
				user:   words(rng, spread(rng, w.UserWords)),
				answer: spread(rng, w.AnswerTokens),
				think:  time.Duration(rng.ExpFloat64() * float64(w.Think)),
			})
		}
	}
	return out
}

func (w Workload) requests() int {
	n := 0
	for _, c := range w.script() {
		n += len(c.turns)
	}
	return n
}

// spread draws a length around mean: half of it to twice of it.
func spread(rng *rand.Rand, mean int) int {
	return max(1, int(float64(mean)*math.Exp2(rng.Float64()*2-1)))
}

var syllables = strings.Fields("ka lo mi ren sta vo tel ur an pri so den ta lu fer ni go mar esk wi")

func words(rng *rand.Rand, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		for range 1 + rng.IntN(3) {
			b.WriteString(syllables[rng.IntN(len(syllables))])
		}
	}
	return b.String()
}

// messages begins the conversation's message list.
func (c conversation) messages() []lab.Message {
	return []lab.Message{{Role: "system", Content: c.system}}
}
