package main

import (
	"errors"
	"time"

	"github.com/kvsteer/kvsteer/internal/eventsources"
)

const (
	offerTick     = time.Second      // how often it is looked at whether an engine is to be asked about its ranks
	offerRetry    = 2 * time.Second  // until it is asked again, at first; then twice as long each time
	offerMaxRetry = 30 * time.Second // at most
)

// offer is what an engine has told of its ranks, and when it is asked again: until it has answered, whenever it is not connected, and in its next
// life. Sockets for events are there before the HTTP server, so a connection says nothing about the latter. An engine that does not
// know the question is not asked again before its next life.
type offer struct {
	ranks []eventsources.Rank // nil while it has told nothing

	life      uint64
	connected bool
	known     bool // it has answered, in this life and since it was last asked
	none      bool // it does not know the question
	last      time.Time
	wait      time.Duration // 0: ask at once
}

// due says whether the engine is to be asked.
func (o *offer) due(now time.Time, life uint64, connected bool) bool {
	if life != o.life {
		o.life, o.known, o.none, o.wait = life, false, false, 0
	}
	if o.connected && !connected {
		o.wait = 0
	}
	o.connected = connected
	if o.none || o.known && connected {
		return false
	}
	return !now.Before(o.last.Add(o.wait))
}

// told takes over an answer. It reports whether there is one.
func (o *offer) told(now time.Time, ranks []eventsources.Rank, err error) bool {
	o.last, o.wait = now, min(max(2*o.wait, offerRetry), offerMaxRetry)
	o.known, o.none = err == nil, errors.Is(err, eventsources.ErrNotOffered)
	switch {
	case o.known:
		o.ranks = ranks
	case o.none:
		o.ranks = nil
	}
	return o.known || o.none
}
