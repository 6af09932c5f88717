package vllmdemo

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// conversation is one user's script: the answers come from the engines.
type conversation struct {
	kind   string // for the table
	model  string
	salt   string
	system string
	turns  []turn

	said []lab.Message // before the first of these turns; nil for one that begins with its system prompt
}

type turn struct {
	user   string
	answer int           // length of the answer, in tokens
	think  time.Duration // before the turn, after the previous answer
}

const (
	turns   = 4
	tenants = 5 // each with its own system prompt, which conversations of all kinds share
)

// script draws n conversations: a quarter plain, a quarter salted, a quarter with the adapter, a quarter with both. All that
// is said differs between seeds. A prompt stays below 1,500 tokens of the example's model.
func script(seed uint64, n int, model, adapter string) []conversation {
	rng := rand.New(rand.NewPCG(seed, 0x766c6c6d))
	systems := make([]string, tenants)
	for i := range systems {
		systems[i] = fmt.Sprintf("You answer for tenant %d. ", i) + words(rng, 60+rng.IntN(60))
	}
	out := make([]conversation, n)
	for i := range out {
		c := conversation{kind: "plain", model: model, system: systems[i%tenants]}
		if i%4 == 1 || i%4 == 3 {
			c.kind, c.salt = "salted", fmt.Sprintf("customer-%d", i/4%2)
		}
		if i%4 >= 2 {
			c.model = adapter
			c.kind = map[string]string{"plain": "adapter", "salted": "adapter and salt"}[c.kind]
		}
		for range turns {
			c.turns = append(c.turns, turn{
				user: words(rng, 10+rng.IntN(40)), answer: 16 + rng.IntN(32), think: time.Duration(200+rng.IntN(400)) * time.Millisecond,
			})
		}
		out[i] = c
	}
	return out
}

// goOn is one more turn of each conversation, of some 40 tokens and as many more of the answer.
func goOn(rng *rand.Rand, all []conversation) []conversation {
	next := make([]conversation, len(all))
	for i, c := range all {
		c.turns = []turn{{user: words(rng, 16+rng.IntN(8)), answer: 16}}
		next[i] = c
	}
	return next
}

// heldSoFar are the conversations of a script as they are after all that was answered of them, without further turns.
func heldSoFar(script []conversation, all []seen) []conversation {
	held := slices.Clone(script)
	last := make([]int, len(script))
	for i := range held {
		held[i].turns, last[i] = nil, -1
	}
	for _, s := range all {
		if i := s.conversation; s.reply.OK() && s.turn > last[i] {
			last[i] = s.turn
			held[i].said = append(slices.Clone(s.request.Messages), lab.Message{Role: "assistant", Content: s.reply.Text})
		}
	}
	return held
}

// prompt is one message of its own, of about twice as many tokens as words.
func prompt(rng *rand.Rand, n int) []lab.Message {
	return []lab.Message{{Role: "user", Content: words(rng, n)}}
}

var vocabulary = strings.Fields(`a the of and to in harbour winter engine paper letter glass river number table window garden morning
	street answer copper stone village ladder bridge market silver people north water question light before after under between
	carries opens follows counts returns keeps slowly early never always often seven twelve`)

func words(rng *rand.Rand, n int) string {
	var b strings.Builder
	for i := range n {
		if i > 0 {
			b.WriteByte(' ')
		}
		b.WriteString(vocabulary[rng.IntN(len(vocabulary))])
	}
	return b.String()
}
