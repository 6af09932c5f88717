package main

import (
	"fmt"
	"log/slog"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Every endpoint with events finds a slot in the index, however many there are, and another one for a copy of its blocks.
func TestEachSourceHasASlot(t *testing.T) {
	const endpoints = 1100 // above the index's own default
	var b strings.Builder
	b.WriteString("pools:\n- name: chat\n  models: [llama]\n  endpoints:\n")
	for i := range endpoints {
		fmt.Fprintf(&b, "  - address: 10.1.%d.%d:8000\n    events: {dial: \"tcp://10.1.%d.%d:5557\"}\n", i/250, 1+i%250, i/250, 1+i%250)
	}
	cfg, err := config.Parse("k.yaml", []byte(b.String()))
	if err != nil {
		t.Fatal(err)
	}
	var log strings.Builder
	s, err := newService("k.yaml", cfg, slog.New(slog.NewTextHandler(&log, nil)))
	if err != nil {
		t.Fatal(err)
	}
	if len(s.followers.first) != endpoints {
		t.Fatalf("%d sources", len(s.followers.first))
	}
	for round := range 2 {
		for i, f := range s.followers.first {
			source := f.sources[0]
			source.Reset(subscriber.CauseGap)
			source.Store(subscriber.Any, []uint64{uint64(round*endpoints + i)})
		}
	}
	for i, f := range s.followers.first {
		source := f.sources[0].(routerSource)
		for range 2 { // it may start over
			source.Begin()
			source.Store(subscriber.Any, []uint64{uint64(2*endpoints + i)})
		}
	}
	if log.Len() > 0 {
		t.Errorf("endpoints without a slot: %.300s", log.String())
	}
}
