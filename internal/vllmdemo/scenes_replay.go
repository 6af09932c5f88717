package vllmdemo

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// afterCuts breaks the connections of all engines with the router, twice, while conversations go on. What engines publish meanwhile is lost
// to the router, until a replay repeats it.
func (s *site) afterCuts(ctx context.Context, out io.Writer, rng *rand.Rand, script []conversation) (Figures, []Check, error) {
	const part = "cut connection"
	before := s.replayed(ctx)
	defer s.eachRelay(func(a string) { s.relays[a].Mend() })
	total := int64(len(script) * turns)
	var n atomic.Int64
	var mu sync.Mutex // breaks and mends are in order
	all, f, err := s.chatWith(ctx, out, script, parallel, func() {
		switch n.Add(1) {
		case total / 8, total * 5 / 8:
			mu.Lock()
			defer mu.Unlock()
			_ = s.untilRouted(ctx, s.engines) // the replay after the first cut is over; an error shows below
			s.eachRelay(func(a string) { s.relays[a].Break() })
		case total * 3 / 8, total * 7 / 8:
			mu.Lock()
			defer mu.Unlock()
			s.eachRelay(func(a string) { s.relays[a].Mend() })
		}
	})
	if err != nil {
		return f, nil, err
	}
	if err := s.untilRouted(ctx, s.engines); err != nil {
		return f, nil, err
	}
	held := heldSoFar(script, all)
	rest, err := s.atRest(ctx, lastPrompts(held))
	if err != nil {
		return f, nil, err
	}
	none, err := s.atRest(ctx, neverSent(rng, s.model, held))
	if err != nil {
		return f, nil, err
	}
	after := s.replayed(ctx)
	checks := []Check{
		most(part, "requests answered", f.Answered, len(script)*turns, 100),
		f.never(part, "more predicted than cached, by more than a block"),
		{Part: part, What: "the same of those matched by their text while the engines were away", Got: share(f.OverText, f.Answered-f.Matched), OK: true},
		{Part: part, What: "decisions by reason", Got: counts(f.Reasons), OK: true},
		{Part: part, What: "batches replayed", Got: fmt.Sprintf("%.0f", after.batches-before.batches), Want: "some", OK: after.batches > before.batches},
		{Part: part, What: "complete replays", Got: fmt.Sprintf("%.0f", after.replays-before.replays), Want: fmt.Sprintf("at least %d", 2*len(s.engines)), OK: after.replays-before.replays >= float64(2*len(s.engines))},
		{Part: part, What: "resets", Got: fmt.Sprintf("%.0f", after.resets-before.resets), Want: "0", OK: after.resets == before.resets},
	}
	checks = append(checks, rest.restChecks(part)...)
	return f, append(checks, none.none(part, "predicted of prompts that were never sent")), nil
}

func (s *site) eachRelay(do func(address string)) {
	for a := range s.relays {
		do(a)
	}
}

// repaired is what the router has counted of replays.
type repaired struct{ batches, replays, resets float64 }

func (s *site) replayed(ctx context.Context) repaired {
	return repaired{
		batches: s.metric(ctx, "kvsteer_subscriber_replayed_batches_total"),
		replays: s.metric(ctx, "kvsteer_subscriber_replays_total", `outcome="complete"`),
		resets:  s.metric(ctx, "kvsteer_subscriber_resets_total"),
	}
}

// blocks are those that the router knows of an engine.
func (s *site) blocks(ctx context.Context, endpoint string) float64 {
	return s.metric(ctx, "kvsteer_router_endpoint_blocks", label(endpoint), `tier="device"`)
}

// allBlocks are those that the router knows, by engine.
func (s *site) allBlocks(ctx context.Context) map[string]float64 {
	all := map[string]float64{}
	for _, a := range s.engines {
		all[a] = s.blocks(ctx, a)
	}
	return all
}

// untilKnown returns when the router knows as many blocks of each engine as before.
func (s *site) untilKnown(ctx context.Context, before map[string]float64) error {
	return s.until(ctx, "all blocks are known again", func() bool {
		for a, n := range before {
			if s.blocks(ctx, a) < n {
				return false
			}
		}
		return true
	})
}

// asMany is a check that the router knows as many blocks as before.
func (s *site) asMany(ctx context.Context, part string, before map[string]float64) Check {
	after, had := 0.0, 0.0
	for a, n := range before {
		had, after = had+n, after+s.blocks(ctx, a)
	}
	return Check{Part: part, What: "blocks known before and after", Got: fmt.Sprintf("%.0f, %.0f", had, after), Want: "as many", OK: after == had && had > 0}
}

// afterRouterRestart starts the router again beside running engines, whose replay sockets tell it all that they hold.
func (s *site) afterRouterRestart(ctx context.Context, part, path string, held []conversation) ([]Check, error) {
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	before := s.allBlocks(ctx)
	began := time.Now()
	if err := s.startRouter(ctx, path); err != nil {
		return nil, err
	}
	serving := time.Since(began)
	if err := s.untilKnown(ctx, before); err != nil {
		return nil, err
	}
	known := time.Since(began)
	if err := s.untilRouted(ctx, s.engines); err != nil {
		return nil, err
	}
	if err := s.untilAsked(ctx); err != nil {
		return nil, err
	}
	same := s.asMany(ctx, part, before) // of then: prompts that are asked for again may fill a block
	rest, err := s.atRest(ctx, lastPrompts(held))
	if err != nil {
		return nil, err
	}
	checks := []Check{
		{Part: part, What: "until the router serves, and knows all blocks again", Got: fmt.Sprintf("%.2f s, %.2f s", serving.Seconds(), known.Seconds()), OK: true},
		same,
		{Part: part, What: "batches replayed", Got: fmt.Sprintf("%.0f", s.replayed(ctx).batches), Want: "some", OK: s.replayed(ctx).batches > 0},
	}
	return append(checks, rest.restChecks(part)...), nil
}
