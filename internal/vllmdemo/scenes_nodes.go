package vllmdemo

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// byNode has a node follow the engines in the router's place, at the same ports: they run on and connect to it. Then it holds conversations, and ends and
// starts the node again. At its end the node is stopped, and no router runs that follows engines.
func (s *site) byNode(ctx context.Context, out io.Writer, rng *rand.Rand, held []conversation) (Figures, []Check, error) {
	const part = "node"
	var f Figures
	if err := s.settle(ctx); err != nil {
		return f, nil, err
	}
	before := s.allBlocks(ctx)
	fmt.Fprintln(out, "a node follows the engines in the router's place")
	s.router.Stop() // it listens where the node is to
	s.follower = s.nodeAdmin
	defer func() { s.follower = s.admin }()
	if err := s.startNode(ctx); err != nil {
		return f, nil, err
	}
	defer func() { s.node.Stop() }() // the one of then
	if err := s.again(ctx, s.watching); err != nil {
		return f, nil, err
	}
	if err := s.untilKnown(ctx, before); err != nil {
		return f, nil, err
	}
	checks := []Check{s.asMany(ctx, part, before)}
	rest, err := s.atRest(ctx, lastPrompts(held))
	if err != nil {
		return f, checks, err
	}
	checks = append(checks, rest.restChecks(part)...)

	talks := script(seed+6, s.fewer(), s.model, s.adapter)
	all, f, err := s.chat(ctx, out, talks, parallel)
	if err != nil {
		return f, checks, err
	}
	checks = append(checks, f.checks(part, len(talks)*turns, s.engines)...)
	checks = append(checks, most(part, "follow-ups at an engine that holds the turn before", f.Held, f.FollowUps, 95))
	held = heldSoFar(talks, all)

	fmt.Fprintln(out, "killing the node, and starting it again")
	if err := s.settle(ctx); err != nil {
		return f, checks, err
	}
	before = s.allBlocks(ctx)
	copies := s.metric(ctx, "kvsteer_feed_router_copies_total")
	s.node.Kill()
	began := time.Now()
	if err := s.startNode(ctx); err != nil {
		return f, checks, err
	}
	if err := s.until(ctx, "the router has copied all from the node", func() bool {
		return s.metric(ctx, "kvsteer_feed_router_copies_total") >= copies+float64(len(s.engines))
	}); err != nil {
		return f, checks, err
	}
	if err := s.untilKnown(ctx, before); err != nil {
		return f, checks, err
	}
	known := time.Since(began)
	if err := s.untilRouted(ctx, s.engines); err != nil {
		return f, checks, err
	}
	checks = append(checks,
		Check{Part: part, What: "until a node that was started again has told the router all blocks", Got: fmt.Sprintf("%.2f s", known.Seconds()), OK: true},
		s.asMany(ctx, part, before))
	if rest, err = s.atRest(ctx, lastPrompts(held)); err != nil {
		return f, checks, err
	}
	none, err := s.atRest(ctx, neverSent(rng, s.model, held))
	if err != nil {
		return f, checks, err
	}
	problems := s.metric(ctx, "kvsteer_subscriber_problem")
	checks = append(checks, rest.restChecks(part+", started again")...)
	return f, append(checks, none.none(part, "predicted of prompts that were never sent"),
		Check{Part: part, What: "problems with events", Got: fmt.Sprintf("%.0f", problems), Want: "0", OK: problems == 0}), nil
}

// startNode starts the node, or starts it again, and returns when it serves.
func (s *site) startNode(ctx context.Context) error {
	var err error
	if s.node, err = s.lab.Start("node", s.opt.Kvsteer, "node", "--config", s.nodePath); err != nil {
		return err
	}
	return within(ctx, startTime, func(ctx context.Context) error {
		return s.node.Until(ctx, "serving", func() bool { return lab.Answers(ctx, s.nodeAdmin+"/healthz") })
	})
}
