package vllmdemo

import (
	"context"
	"fmt"
	"io"
	"strconv"
	"strings"
)

// showRanks goes through the parts with an engine of two data-parallel ranks: first it chooses among them itself, then the router does.
func (s *site) showRanks(ctx context.Context, out io.Writer, n int) (unpinned, pinned Figures, checks []Check, err error) {
	loose, err := s.variant("unpinned", func(text string) string { return strings.Replace(text, "pin_rank: true", "pin_rank: false", 1) })
	if err != nil {
		return unpinned, pinned, nil, err
	}
	if err := s.free(); err != nil {
		return unpinned, pinned, nil, err
	}
	if err := s.startRouter(ctx, loose); err != nil {
		return unpinned, pinned, nil, err
	}
	fmt.Fprintf(out, "starting an engine with %d data-parallel ranks (a minute and a half, more on a busy machine)\n", s.ranks)
	if err := s.startEngines(ctx, out, s.path, s.engines, "--api-server-count", "1"); err != nil {
		return unpinned, pinned, nil, err
	}
	if err := s.startEnvoy(ctx, loose); err != nil {
		return unpinned, pinned, nil, err
	}

	part := "ranks, chosen by the engine"
	first := script(seed+4, n, s.model, s.adapter)
	all, unpinned, err := s.chat(ctx, out, first, parallel)
	if err != nil {
		return unpinned, pinned, nil, err
	}
	held := heldSoFar(first, all)
	// The pool's only candidate is not matched, so nothing is predicted here: with pin_rank each rank is a candidate.
	checks = append(checks,
		most(part, "requests answered", unpinned.Answered, n*turns, 100),
		Check{Part: part, What: "follow-ups at a rank that holds the turn before", Got: share(unpinned.Held, unpinned.FollowUps), OK: true},
		Check{Part: part, What: "prompt tokens from cache", Got: share(unpinned.Cached, unpinned.Prompt), OK: true},
		s.ranksHold(ctx, part))

	part = "ranks, chosen by the router"
	if err := s.startEnvoy(ctx, s.path); err != nil {
		return unpinned, pinned, nil, err
	}
	again, err := s.afterRouterRestart(ctx, part+", after a router restart", s.path, held)
	if err != nil {
		return unpinned, pinned, nil, err
	}
	checks = append(checks, again...)
	second := script(seed+5, n, s.model, s.adapter)
	all, pinned, err = s.chat(ctx, out, second, parallel)
	if err != nil {
		return unpinned, pinned, nil, err
	}
	perRank := map[string]int{}
	for _, one := range all {
		if one.entry.Rank != nil {
			perRank["rank "+strconv.Itoa(*one.entry.Rank)]++
		}
	}
	rest, err := s.atRest(ctx, lastPrompts(heldSoFar(second, all)))
	if err != nil {
		return unpinned, pinned, nil, err
	}
	checks = append(checks, pinned.checks(part, n*turns, s.engines)...)
	checks = append(checks,
		most(part, "follow-ups at a rank that holds the turn before", pinned.Held, pinned.FollowUps, 95),
		Check{Part: part, What: "prompt tokens from cache", Got: share(pinned.Cached, pinned.Prompt), OK: true},
		Check{Part: part, What: "requests by rank", Got: counts(perRank), Want: "all ranks", OK: len(perRank) == s.ranks})
	return unpinned, pinned, append(checks, rest.restChecks(part)...), nil
}

// ranksHold is a check that every rank has told of blocks.
func (s *site) ranksHold(ctx context.Context, part string) Check {
	c := Check{Part: part, What: "blocks known by rank", Want: "some of each", OK: true}
	known := map[string]int{}
	for r := range s.ranks {
		n := s.metric(ctx, "kvsteer_subscriber_blocks", rank(r))
		known["rank "+strconv.Itoa(r)] = int(n)
		c.OK = c.OK && n > 0
	}
	c.Got = counts(known)
	return c
}
