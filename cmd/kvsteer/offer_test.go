package main

import (
	"errors"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/eventsources"
)

func TestOffer(t *testing.T) {
	refused := errors.New("connection refused")
	two := []eventsources.Rank{{Events: 1}, {Events: 2}}
	type step struct {
		at        int // seconds
		life      uint64
		connected bool
		due       bool
		ranks     []eventsources.Rank // what is told when it is due
		err       error
		known     int // ranks known after it
	}
	tests := []struct {
		name  string
		steps []step
	}{
		{"told, connected, and not asked again", []step{
			{at: 0, due: true, ranks: two, known: 2},
			{at: 3, connected: true, known: 2},
			{at: 1000, connected: true, known: 2},
		}},
		{"events are there before the HTTP server", []step{
			{at: 0, due: true, err: refused},
			{at: 1, connected: true},
			{at: 2, connected: true, due: true, err: refused},
			{at: 5, connected: true},
			{at: 6, connected: true, due: true, ranks: two, known: 2},
			{at: 1000, connected: true, known: 2},
		}},
		{"an old engine is asked once in its life", []step{
			{at: 0, due: true, err: eventsources.ErrNotOffered},
			{at: 100, connected: true},
			{at: 200},
			{at: 300, life: 1, due: true, ranks: two, known: 2},
		}},
		{"asked at once when the connection is lost, then less and less often", []step{
			{at: 0, connected: true, due: true, ranks: two, known: 2},
			{at: 50, due: true, err: refused, known: 2},
			{at: 51, known: 2},
			{at: 52, due: true, err: refused, known: 2},
			{at: 55, known: 2},
			{at: 56, due: true, err: refused, known: 2},
			{at: 64, due: true, err: refused, known: 2},
			{at: 80, due: true, err: refused, known: 2},
			{at: 109, known: 2},
			{at: 110, due: true, ranks: two[:1], known: 1},
		}},
		{"an engine of before took its place", []step{
			{at: 0, connected: true, due: true, ranks: two, known: 2},
			{at: 10, life: 1, connected: true, due: true, err: eventsources.ErrNotOffered},
			{at: 1000, life: 1, connected: true},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var o offer
			start := time.Unix(1_800_000_000, 0)
			for i, s := range tt.steps {
				now := start.Add(time.Duration(s.at) * time.Second)
				due := o.due(now, s.life, s.connected)
				if due != s.due {
					t.Fatalf("step %d: due %v", i, due)
				}
				if due {
					if answered := o.told(now, s.ranks, s.err); answered == errors.Is(s.err, refused) {
						t.Errorf("step %d: answered %v", i, answered)
					}
				}
				if len(o.ranks) != s.known {
					t.Errorf("step %d: %d ranks known, want %d", i, len(o.ranks), s.known)
				}
			}
		})
	}
}

func TestWithPort(t *testing.T) {
	tests := []struct {
		address string
		port    uint16
		want    string
	}{
		{"tcp://10.0.0.1:5557", 18857, "tcp://10.0.0.1:18857"},
		{"tcp://[fd00::1]:5557", 1, "tcp://[fd00::1]:1"},
		{"tcp://10.0.0.1:5557", 0, "tcp://10.0.0.1:5557"},
		{"", 7, ""},
	}
	for _, tt := range tests {
		if got := withPort(tt.address, tt.port); got != tt.want {
			t.Errorf("withPort(%q, %d) = %q, want %q", tt.address, tt.port, got, tt.want)
		}
	}
}
