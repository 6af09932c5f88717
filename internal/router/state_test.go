package router

import (
	"encoding/json"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestModeText(t *testing.T) {
	for _, m := range []Mode{ModeOn, ModeObserve, ModeOff} {
		if got, err := ParseMode(m.String()); err != nil || got != m {
			t.Errorf("mode %v is read as %v, %v", m, got, err)
		}
	}
	for _, text := range []string{"", "ON", "half"} {
		if got, err := ParseMode(text); err == nil || got != ModeOff {
			t.Errorf("mode %q is read as %v, %v", text, got, err)
		}
	}
}

// TestStateAsJSON holds what tools read.
func TestStateAsJSON(t *testing.T) {
	want := State{Pools: []PoolState{{
		Name: "chat", Models: []string{"llama"}, Mode: ModeOn, Percent: 10,
		Endpoints: []EndpointState{{Address: "10.0.0.1:8000", Healthy: true, Events: true, Problem: "no_token_ids", Blocks: 7, Backlog: 12}},
	}}}
	text, err := json.Marshal(want)
	if err != nil {
		t.Fatal(err)
	}
	const written = `{"time":"0001-01-01T00:00:00Z","pools":[{"name":"chat","models":["llama"],"mode":"on","percent":10,"endpoints":[` +
		`{"address":"10.0.0.1:8000","healthy":true,"suspect":false,"draining":false,"leaving":false,"events":true,"connected":false,"matchable":false,` +
		`"problem":"no_token_ids","block_size":0,"blocks":7,"device_blocks":0,"approximate_blocks":0,"backlog_tokens":12,"memory_tokens":0}]}]}`
	if diff := cmp.Diff(written, string(text)); diff != "" {
		t.Errorf("-want +got:\n%s", diff)
	}
	var got State
	if err := json.Unmarshal(text, &got); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("read back, -want +got:\n%s", diff)
	}
	if err := json.Unmarshal([]byte(`{"pools":[{"mode":"loud"}]}`), &got); err == nil {
		t.Error("an unknown mode is accepted")
	}
}
