package vllmdemo

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"regexp"
	"time"
)

// replayKey is how the example's configurations name a replay socket.
var replayKey = regexp.MustCompile(`, replay: "[^"]*"`)

// show starts everything and goes through all parts with engines of one rank.
func (s *site) show(ctx context.Context, out io.Writer) (Report, error) {
	var r Report
	blind, err := s.variant("without-replay", func(text string) string { return replayKey.ReplaceAllString(text, "") })
	if err != nil {
		return r, err
	}
	if err := s.free(); err != nil {
		return r, err
	}
	fmt.Fprintf(out, "kvsteer on real engines: starting the router and %d vLLM servers on CPU (up to a minute, more on a busy machine)\n", len(s.engines))
	if err := s.startRouter(ctx, s.path); err != nil {
		return r, err
	}
	engines, err := s.relayed()
	if err != nil {
		return r, err
	}
	if err := s.startEngines(ctx, out, engines, s.engines); err != nil {
		return r, err
	}
	if err := s.startEnvoy(ctx, s.path); err != nil {
		return r, err
	}
	if err := s.showReplay(ctx, out, &r, blind); err != nil {
		return r, err
	}
	if err := s.showChanges(ctx, out, &r, engines); err != nil {
		return r, err
	}
	problems := s.metric(ctx, "kvsteer_subscriber_problem")
	r.add(Check{Part: "all", What: "problems with events", Got: fmt.Sprintf("%.0f", problems), Want: "0", OK: problems == 0})
	return r, nil
}

// showReplay is traffic, and what the router misses or forgets of it.
func (s *site) showReplay(ctx context.Context, out io.Writer, r *Report, blind string) error {
	rng := rand.New(rand.NewPCG(seed, 2))
	talks := script(seed, s.opt.Size, s.model, s.adapter)
	all, f, err := s.chat(ctx, out, talks, parallel)
	if err != nil {
		return err
	}
	r.Traffic = f
	r.add(f.checks("traffic", s.opt.Size*turns, s.engines)...)
	r.add(
		most("traffic", "follow-ups at an engine that holds the turn before", f.Held, f.FollowUps, 95),
		Check{Part: "traffic", What: "prompt tokens from cache", Got: share(f.Cached, f.Prompt), OK: true},
		Check{Part: "traffic", What: "requests by kind", Got: counts(f.Kinds), OK: true},
		Check{Part: "traffic", What: "requests by engine", Got: counts(f.PerEndpoint), OK: true},
		Check{Part: "traffic", What: "decisions by reason", Got: counts(f.Reasons), OK: true})
	held := heldSoFar(talks, all)

	fmt.Fprintln(out, "asking for all prompts again, one at a time")
	rest, err := s.atRest(ctx, lastPrompts(held))
	if err != nil {
		return err
	}
	none, err := s.atRest(ctx, neverSent(rng, s.model, held))
	if err != nil {
		return err
	}
	r.add(rest.restChecks("at rest")...)
	r.add(none.none("at rest", "predicted of prompts that were never sent"))

	fmt.Fprintln(out, "cutting the connections of both engines while requests go on")
	var checks []Check
	r.Cut, checks, err = s.afterCuts(ctx, out, rng, script(seed+2, s.fewer(), s.model, s.adapter))
	r.add(checks...)
	if err != nil {
		return fmt.Errorf("cut connection: %w", err)
	}
	fmt.Fprintln(out, "starting the router again, with replay")
	checks, err = s.afterRouterRestart(ctx, "router restart with replay", s.path, held)
	r.add(checks...)
	if err != nil {
		return fmt.Errorf("router restart: %w", err)
	}
	r.Healed, held, checks, err = s.afterBlindRestart(ctx, out, rng, blind, held)
	r.add(checks...)
	if err != nil {
		return fmt.Errorf("healing: %w", err)
	}
	if err := s.again(ctx, s.path); err != nil {
		return err
	}
	r.Node, checks, err = s.byNode(ctx, out, rng, held)
	r.add(checks...)
	if err != nil {
		return fmt.Errorf("node: %w", err)
	}
	return s.again(ctx, s.path)
}

// showChanges is what the engines forget.
func (s *site) showChanges(ctx context.Context, out io.Writer, r *Report, engines string) error {
	rng := rand.New(rand.NewPCG(seed, 1))
	fmt.Fprintln(out, "emptying both prefix caches")
	checks, err := s.afterReset(ctx, rng)
	r.add(checks...)
	if err != nil {
		return fmt.Errorf("reset: %w", err)
	}
	small := s.engines[0]
	flags := []string{"--num-gpu-blocks-override", fmt.Sprint(fewBlocks), "--max-model-len", fmt.Sprint(fewBlocksLength)}
	flags = append(flags, "--kv-events-config", fmt.Sprintf(`{"enable_kv_cache_events":true,"publisher":"zmq","endpoint":"tcp://%s"}`, s.relays[small].Addr()))
	checks, err = s.afterRestart(ctx, out, rng, engines, small, flags)
	r.add(checks...)
	if err != nil {
		return fmt.Errorf("restart: %w", err)
	}
	fmt.Fprintf(out, "filling the engine of %d blocks\n", fewBlocks)
	checks, err = s.afterEviction(ctx, rng, small)
	r.add(checks...)
	if err != nil {
		return fmt.Errorf("eviction: %w", err)
	}
	before := s.removed(ctx, small)
	// One conversation at a time: what two at once evict of each other nobody can predict.
	const part = "chat while an engine evicts"
	talks := script(seed+1, s.fewer(), s.model, s.adapter)
	for _, c := range talks {
		for i := range c.turns {
			c.turns[i].think = 150 * time.Millisecond // for the events alone: nobody else talks
		}
	}
	all, f, err := s.chat(ctx, out, talks, 1)
	if err != nil {
		return err
	}
	r.Eviction = f
	r.add(f.checks(part, len(talks)*turns, s.engines)...)
	removed := s.removed(ctx, small) - before
	r.add(Check{Part: part, What: "removals told by the engine", Got: fmt.Sprintf("%.0f", removed), Want: "some", OK: removed > 0})
	held := heldSoFar(talks, all)
	rest, err := s.atRest(ctx, lastPrompts(held))
	if err != nil {
		return err
	}
	r.add(rest.restChecks(part)...)
	checks, err = s.whileEvicting(ctx, out, rng, small, held)
	r.add(checks...)
	if err != nil {
		return fmt.Errorf("healing while an engine evicts: %w", err)
	}
	return nil
}

// fewer is the number of conversations of the parts after the first.
func (s *site) fewer() int { return max(s.opt.Size/4, leastSize) }
