package engineargs

import (
	"bytes"
	"slices"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/config"
)

// ofNode is what a node's file with two pools comes to.
func ofNode() *config.Config {
	cfg := config.Default()
	cfg.Pools = []config.Pool{
		{Name: "chat", Models: []string{"tiny"}, Endpoints: []config.Endpoint{
			{Address: ":8001", Events: config.Events{Listen: "tcp://127.0.0.1:5557", Replay: "tcp://127.0.0.1:5558", Ranks: 1}},
			{Address: "127.0.0.1:8002", Events: config.Events{Listen: "tcp://127.0.0.1:5559", Ranks: 1}},
		}},
		{Name: "code", Models: []string{"big"}, Endpoints: []config.Endpoint{
			{Address: "10.0.0.1:8003", Events: config.Events{Dial: "tcp://127.0.0.1:5600", Ranks: 1}},
		}},
	}
	return cfg
}

func TestPlanOfNode(t *testing.T) {
	kinds := map[string]Kind{"code": SGLang}
	engines, err := Plan(ofNode(), Options{Node: true, Kinds: kinds, Replay: true, Bind: true})
	if err != nil || len(engines) != 3 {
		t.Fatalf("%d engines, %v", len(engines), err)
	}
	here, local, other := engines[0], engines[1], engines[2]
	if here.Kind != VLLM || other.Kind != SGLang {
		t.Errorf("kinds %s and %s", here.Kind, other.Kind)
	}
	if value(here.Args, "--port") != "8001" || slices.Contains(here.Args, "--host") || value(local.Args, "--host") != "127.0.0.1" {
		t.Errorf("%v and %v", here.Args, local.Args)
	}
	if want := `{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://127.0.0.1:5557","replay_endpoint":"tcp://127.0.0.1:5558"}`; value(here.Args, "--kv-events-config") != want {
		t.Errorf("%v", here.Args)
	}
	if !slices.Contains(other.Args, "--enable-metrics") || slices.Contains(here.Args, "--enable-metrics") {
		t.Errorf("%v", other.Args)
	}
	var all bytes.Buffer
	if err := Shell(&all, engines); err != nil {
		t.Fatal(err)
	}
	if err := Container(&all, engines); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"it connects to the node at tcp://127.0.0.1:5557", "The node must be in the same network namespace", "where the node dials it", "let only the node's host through"} {
		if !strings.Contains(all.String(), want) {
			t.Errorf("%q is not said:\n%s", want, all.String())
		}
	}
	for _, unwanted := range []string{"router", "are recognised by their hashes"} {
		if strings.Contains(all.String(), unwanted) {
			t.Errorf("%q is said of a node:\n%s", unwanted, all.String())
		}
	}
}

// An engine is asked for as the file names it, or as the node reaches it.
func TestPlanOfNodeByAddress(t *testing.T) {
	tests := []struct {
		endpoint, want string // "" is refused
		node           bool
	}{
		{":8001", ":8001", true},
		{"127.0.0.1:8001", ":8001", true},
		{"127.0.0.1:8002", "127.0.0.1:8002", true},
		{"10.0.0.1:8003", "10.0.0.1:8003", true},
		{"127.0.0.1:8003", "", true},
		{":8002", "", true},
		{"127.0.0.1:8001", "", false},
	}
	for _, tt := range tests {
		engines, err := Plan(ofNode(), Options{Node: tt.node, Endpoint: tt.endpoint})
		switch {
		case tt.want == "":
			if err == nil || !strings.Contains(err.Error(), "is not in the configuration") {
				t.Errorf("%s: error %v", tt.endpoint, err)
			}
		case err != nil || len(engines) != 1 || engines[0].Endpoint != tt.want:
			t.Errorf("%s: %+v, %v", tt.endpoint, engines, err)
		}
	}
	// One kind for all, and one that there is not.
	if engines, err := Plan(ofNode(), Options{Node: true, Kind: VLLM, Kinds: map[string]Kind{"code": SGLang}}); err != nil || engines[2].Kind != VLLM {
		t.Errorf("%+v, %v", engines, err)
	}
	if _, err := Plan(ofNode(), Options{Node: true, Kinds: map[string]Kind{"code": "tgi"}}); err == nil {
		t.Error("an unknown kind is planned")
	}
	if _, err := Plan(ofNode(), Options{Node: true, Kinds: map[string]Kind{"code": SGLang}, Release: "0.3.0"}); err == nil {
		t.Error("a release without events is planned")
	}
}
