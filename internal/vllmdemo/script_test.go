package vllmdemo

import (
	"errors"
	"math/rand/v2"
	"net/http"
	"reflect"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/lab"
)

func TestScript(t *testing.T) {
	all := script(1, 40, "tiny", "tiny-adapter")
	kinds, systems := map[string]int{}, map[string]map[string]bool{}
	for i, c := range all {
		kinds[c.kind]++
		if (c.salt != "") != strings.Contains(c.kind, "salt") || (c.model == "tiny-adapter") != strings.Contains(c.kind, "adapter") {
			t.Errorf("conversation %d is %q, with salt %q and model %q", i, c.kind, c.salt, c.model)
		}
		if systems[c.system] == nil {
			systems[c.system] = map[string]bool{}
		}
		systems[c.system][c.kind] = true
		length := len(strings.Fields(c.system))
		if len(c.turns) != turns {
			t.Errorf("conversation %d has %d turns", i, len(c.turns))
		}
		for _, turn := range c.turns {
			length += len(strings.Fields(turn.user)) + turn.answer
			if turn.think <= 0 {
				t.Errorf("conversation %d: think %v", i, turn.think)
			}
		}
		if length > 550 { // words; the model takes 1,536 tokens with few blocks
			t.Errorf("conversation %d has %d words", i, length)
		}
	}
	if len(kinds) != 4 || kinds["plain"] != 10 || kinds["adapter and salt"] != 10 {
		t.Errorf("kinds %v, want a quarter each", kinds)
	}
	if len(systems) != tenants {
		t.Errorf("%d system prompts, want %d", len(systems), tenants)
	}
	for _, kinds := range systems {
		if len(kinds) != 4 {
			t.Errorf("a system prompt has the kinds %v only: nothing would show that they are told apart", kinds)
		}
	}
	if !reflect.DeepEqual(all, script(1, 40, "tiny", "tiny-adapter")) {
		t.Error("one seed gives two scripts")
	}
	if all[0].turns[0].user == script(2, 1, "tiny", "tiny-adapter")[0].turns[0].user {
		t.Error("two seeds give one script")
	}
}

// TestHeldSoFar holds that conversations go on after the last turn that was answered.
func TestHeldSoFar(t *testing.T) {
	said := func(texts ...string) (all []lab.Message) {
		for i, text := range texts {
			all = append(all, lab.Message{Role: []string{"system", "user", "assistant"}[min(i, 1)+max(0, i-1)%2], Content: text})
		}
		return all
	}
	answered := func(c, turn int, answer string, messages ...string) seen {
		return seen{conversation: c, turn: turn, request: request("tiny", "", said(messages...), 9), reply: lab.Reply{Status: http.StatusOK, Text: answer}}
	}
	broken := answered(1, 1, "half", "s1", "u1", "a1", "u2")
	broken.reply.Err = errors.New("cut")
	held := heldSoFar(script(1, 4, "tiny", "a"), []seen{
		answered(0, 1, "a2", "s0", "u1", "a1", "u2"), answered(0, 0, "a1", "s0", "u1"), answered(1, 0, "a1", "s1", "u1"), broken,
	})
	want := [][]lab.Message{said("s0", "u1", "a1", "u2", "a2"), said("s1", "u1", "a1"), nil, nil}
	for i, c := range held {
		if d := cmp.Diff(want[i], c.said); d != "" || len(c.turns) != 0 {
			t.Errorf("conversation %d has %d turns left, said (-want +got):\n%s", i, len(c.turns), d)
		}
	}
	next := goOn(rand.New(rand.NewPCG(1, 1)), held)
	if len(next) != 4 || len(next[0].turns) != 1 || len(held[0].turns) != 0 || next[0].turns[0] == next[1].turns[0] {
		t.Errorf("next turns %+v", next)
	}
	if asked := lastPrompts(held); len(asked) != 2 || len(asked[0].Messages) != 4 || asked[0].MaxTokens != 1 {
		t.Errorf("asked again: %+v", asked)
	}
	rng := rand.New(rand.NewPCG(1, 1))
	salts := map[string]bool{}
	for range 2 {
		for _, r := range neverSent(rng, "tiny", held) {
			salts[r.Salt] = true
		}
	}
	if len(salts) != 3 || !salts[""] { // another salt each time
		t.Errorf("salts of prompts never sent: %v", salts)
	}
}
