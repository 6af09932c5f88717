package vllmdemo

import (
	"reflect"
	"strings"
	"testing"
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
