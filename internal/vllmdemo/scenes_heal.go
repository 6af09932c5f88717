package vllmdemo

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// afterBlindRestart starts the router again with a configuration by which it can ask for no replay, while the engines hold the conversations: what they
// hold is recognised by the prompts that are routed.
func (s *site) afterBlindRestart(ctx context.Context, out io.Writer, rng *rand.Rand, path string, held []conversation) (Figures, []conversation, []Check, error) {
	const part = "healing without replay"
	var f Figures
	fmt.Fprintf(out, "starting the router again without replay: %d conversations, one more turn each, then another\n", len(held))
	before := s.metric(ctx, "kvsteer_router_endpoint_blocks", `tier="device"`)
	if err := s.again(ctx, path); err != nil {
		return f, nil, nil, err
	}
	after := s.metric(ctx, "kvsteer_router_endpoint_blocks", `tier="device"`)

	// The first conversation is a plain one. Its request tells of its system prompt, which others share.
	first, err := s.play(ctx, goOn(rng, held[:1]), 1, func() {})
	if err != nil {
		return f, nil, nil, err
	}
	system := []lab.Message{{Role: "system", Content: held[0].system}, {Role: "user", Content: words(rng, 20)}}
	shared, err := s.askSettled(ctx, system)
	if err != nil {
		return f, nil, nil, err
	}
	held = append(heldSoFar(held[:1], first), held[1:]...)

	healed, err := s.round(ctx, rng, held, parallel)
	if err != nil {
		return f, nil, nil, err
	}
	if err := s.settle(ctx); err != nil {
		return f, nil, nil, err
	}
	held = heldSoFar(held, healed)
	again, err := s.round(ctx, rng, held, parallel)
	if err != nil {
		return f, nil, nil, err
	}
	held = heldSoFar(held, again)
	f = judge(again)
	rest, err := s.atRest(ctx, lastPrompts(held))
	if err != nil {
		return f, nil, nil, err
	}
	none, err := s.atRest(ctx, neverSent(rng, s.model, held))
	if err != nil {
		return f, nil, nil, err
	}
	checks := []Check{
		{Part: part, What: "blocks known before and after the start", Got: fmt.Sprintf("%.0f, %.0f", before, after), Want: "none after", OK: before > 0 && after == 0},
		predicted(part, "the system prompt after one request", shared, true),
		most(part, "requests of the first further turn answered", judge(healed).Answered, len(held), 100),
		most(part, "tokens predicted of those cached, one turn later", f.Foretold, f.Cached, 95),
		f.never(part, "more predicted than cached, by more than a block"),
		most(part, "tokens predicted of those cached, at rest", rest.Foretold, rest.Cached, 95),
		most(part, "prompts at rest with the cached tokens predicted, within a block", rest.Predicted, rest.Requests, 95),
		rest.never(part, "more predicted than cached at rest, by more than a block"),
		none.none(part, "predicted of prompts that were never sent"),
	}
	for i, a := range s.engines {
		n := s.metric(ctx, "kvsteer_subscriber_healed_blocks_total", label(a), `means="hash"`)
		orphans, blocks := s.metric(ctx, "kvsteer_subscriber_orphan_blocks", label(a)), s.metric(ctx, "kvsteer_subscriber_blocks", label(a))
		how := []string{"sha256, hashes as integers", "sha256_cbor, hashes as bytes"}[i%len(programs)]
		checks = append(checks,
			Check{Part: part, What: "blocks healed by their hash, " + how, Got: fmt.Sprintf("%.0f", n), Want: "some", OK: n > 0},
			Check{Part: part, What: "orphans of the blocks mirrored", Got: share(int(orphans), int(blocks)), OK: true})
	}
	return f, held, checks, nil
}

// round is one more turn of each conversation, so many at a time.
func (s *site) round(ctx context.Context, rng *rand.Rand, held []conversation, parallel int) ([]seen, error) {
	return s.play(ctx, goOn(rng, held), parallel, func() {})
}

// whileEvicting starts the router again beside an engine of few blocks without a replay socket: it heals while the engine evicts.
func (s *site) whileEvicting(ctx context.Context, out io.Writer, rng *rand.Rand, small string, held []conversation) ([]Check, error) {
	const part = "healing while an engine evicts"
	fmt.Fprintf(out, "starting the router again: one engine cannot replay, and evicts\n")
	// Prompts that this engine alone holds: of six, some are routed to it although it is not known to hold them.
	var told []conversation
	for range 6 {
		messages := prompt(rng, 80)
		if _, err := s.tell(ctx, small, messages); err != nil {
			return nil, err
		}
		told = append(told, conversation{kind: "plain", model: s.model, said: append(messages, lab.Message{Role: "assistant", Content: words(rng, 8)})})
	}
	held = append(told, held...)
	if err := s.again(ctx, s.path); err != nil {
		return nil, err
	}
	blind := s.blocks(ctx, small)
	unreachable := s.metric(ctx, "kvsteer_subscriber_replays_total", label(small), `outcome="unreachable"`)
	healing, err := s.round(ctx, rng, held, 1)
	if err != nil {
		return nil, err
	}
	held = heldSoFar(held, healing)
	f := judge(healing)
	rest, err := s.atRest(ctx, lastPrompts(held))
	if err != nil {
		return nil, err
	}
	n := s.metric(ctx, "kvsteer_subscriber_healed_blocks_total", label(small), `means="hash"`)
	return []Check{
		{Part: part, What: "blocks known after the start, and replays that found no socket", Got: fmt.Sprintf("%.0f, %.0f", blind, unreachable), Want: "0, some", OK: blind == 0 && unreachable > 0},
		most(part, "requests answered", f.Answered, len(held), 100),
		f.never(part, "more predicted than cached, by more than a block"),
		{Part: part, What: "tokens predicted of those cached", Got: share(f.Foretold, f.Cached), OK: true},
		rest.never(part, "more predicted than cached at rest, by more than a block"),
		{Part: part, What: "tokens predicted of those cached, at rest", Got: share(rest.Foretold, rest.Cached), OK: true},
		{Part: part, What: "blocks healed by their hash", Got: fmt.Sprintf("%.0f", n), OK: true},
	}, nil
}
