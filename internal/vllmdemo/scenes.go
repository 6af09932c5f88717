package vllmdemo

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// block is what the example's engines are started with.
const block = 32

// afterReset empties the prefix cache of all engines: what they held is predicted no more once they have said so.
func (s *site) afterReset(ctx context.Context, rng *rand.Rand) ([]Check, error) {
	const part = "reset"
	messages := prompt(rng, 200)
	if _, err := s.ask(ctx, messages); err != nil {
		return nil, err
	}
	before, err := s.askSettled(ctx, messages)
	if err != nil {
		return nil, err
	}
	blocks := s.metric(ctx, "kvsteer_router_endpoint_blocks", `tier="device"`)
	resets := s.metric(ctx, "kvsteer_subscriber_resets_total", `cause="cleared"`)
	for _, e := range s.engines {
		if err := post(ctx, "http://"+e+"/reset_prefix_cache", resetTime); err != nil {
			return nil, err
		}
		// An engine says so with the batch of its next request.
		if _, err := s.tell(ctx, e, prompt(rng, 60)); err != nil {
			return nil, err
		}
	}
	if err := s.until(ctx, "all engines have told of the reset", func() bool {
		return s.metric(ctx, "kvsteer_subscriber_resets_total", `cause="cleared"`) >= resets+float64(len(s.engines))
	}); err != nil {
		return nil, err
	}
	if err := s.settle(ctx); err != nil {
		return nil, err
	}
	left := s.metric(ctx, "kvsteer_router_endpoint_blocks", `tier="device"`)
	after, err := s.ask(ctx, messages)
	if err != nil {
		return nil, err
	}
	again, err := s.askSettled(ctx, messages)
	if err != nil {
		return nil, err
	}
	return []Check{
		predicted(part, "a prompt sent before", before, true),
		{Part: part, What: "blocks known before and after", Got: fmt.Sprintf("%.0f, %.0f", blocks, left), Want: "few after", OK: left < blocks/10},
		predicted(part, "the same after the reset", after, false),
		predicted(part, "the same once it was computed again", again, true),
	}, nil
}

// afterRestart kills the engine that holds a prompt: the others serve it. Then it starts the engine again, with few blocks, as a
// configuration and flags say.
func (s *site) afterRestart(ctx context.Context, out io.Writer, rng *rand.Rand, path, victim string, flags []string) ([]Check, error) {
	const part = "restart"
	messages := prompt(rng, 200)
	if _, err := s.tell(ctx, victim, messages); err != nil {
		return nil, err
	}
	before, err := s.askSettled(ctx, messages)
	if err != nil {
		return nil, err
	}
	fmt.Fprintf(out, "  killing the engine at %s and starting it again with few blocks and without a replay socket\n", victim)
	resets := s.metric(ctx, "kvsteer_subscriber_resets_total", label(victim))
	if err := s.kill(victim); err != nil {
		return nil, err
	}
	if err := s.until(ctx, "the router knows of the end", func() bool {
		return s.metric(ctx, "kvsteer_subscriber_connected", label(victim)) == 0
	}); err != nil {
		return nil, err
	}
	during, err := s.ask(ctx, messages)
	if err != nil {
		return nil, err
	}
	if err := s.startEngines(ctx, out, path, []string{victim}, flags...); err != nil {
		return nil, err
	}
	back := s.metric(ctx, "kvsteer_router_endpoint_blocks", label(victim))
	resets = s.metric(ctx, "kvsteer_subscriber_resets_total", label(victim)) - resets
	next := prompt(rng, 200)
	if _, err := s.tell(ctx, victim, next); err != nil {
		return nil, err
	}
	after, err := s.askSettled(ctx, next)
	if err != nil {
		return nil, err
	}
	at := func(what string, one seen, victims bool) Check {
		want := "another engine"
		if victims {
			want = victim
		}
		return Check{Part: part, What: what, Got: one.entry.Upstream, Want: want, OK: (one.entry.Upstream == victim) == victims}
	}
	return []Check{
		predicted(part, "a prompt that the engine holds", before, true), at("is sent to", before, true),
		predicted(part, "the same while it is down", during, false), at("is sent to", during, false),
		{Part: part, What: "blocks known when it is back", Got: fmt.Sprintf("%.0f", back), Want: "0", OK: back == 0},
		{Part: part, What: "resets by it", Got: fmt.Sprintf("%.0f", resets), Want: "1", OK: resets == 1},
		predicted(part, "a prompt that it computed since", after, true), at("is sent to", after, true),
	}, nil
}

// afterEviction fills an engine of few blocks with more prompts than it has room for, and asks for them from the last to the first.
func (s *site) afterEviction(ctx context.Context, rng *rand.Rand, small string) ([]Check, error) {
	const part, enough = "eviction", 32
	removed := s.removed(ctx, small)
	var all [][]lab.Message
	for tokens := 0; tokens < fewBlocks*block*3/2 && len(all) < enough; {
		messages := prompt(rng, 150+rng.IntN(80))
		n, err := s.tell(ctx, small, messages)
		if err != nil {
			return nil, err
		}
		all = append(all, messages)
		tokens += n
	}
	held, gone, right := 0, 0, 0
	for i := len(all) - 1; i >= 0; i-- {
		if err := s.settle(ctx); err != nil {
			return nil, err
		}
		one, err := s.ask(ctx, all[i])
		if err != nil {
			return nil, err
		}
		if one.entry.Matched > 0 {
			held++
		} else {
			gone++
		}
		if c := predicted(part, "", one, one.entry.Matched > 0); c.OK {
			right++
		}
	}
	removed = s.removed(ctx, small) - removed
	return []Check{
		{Part: part, What: "removals told by the engine", Got: fmt.Sprintf("%.0f", removed), Want: "some", OK: removed > 0},
		{Part: part, What: fmt.Sprintf("of %d prompts, still known and forgotten", len(all)), Got: fmt.Sprintf("%d, %d", held, gone), Want: "some of each", OK: held > 0 && gone > 0},
		most(part, "of them with the cached tokens predicted", right, len(all), 100),
	}, nil
}

func (s *site) removed(ctx context.Context, endpoint string) float64 {
	return s.metric(ctx, "kvsteer_subscriber_events_total", label(endpoint), `type="removed"`)
}

// predicted is a check of one request: as many tokens cached as predicted, within a block, and some or none of them.
func predicted(part, what string, one seen, some bool) Check {
	matched, cached := int(one.entry.Matched), one.reply.CachedTokens
	c := Check{
		Part: part, What: what, Want: "0 and 0",
		Got: fmt.Sprintf("predicted %d, cached %d of %d", matched, cached, one.reply.PromptTokens),
		OK:  matched-cached <= block && cached-matched <= block,
	}
	if some {
		c.Want = "equal, not 0"
		c.OK = c.OK && matched > 0 && cached > 0
	} else {
		c.OK = c.OK && matched == 0
	}
	return c
}

// resetTime bounds the emptying of a prefix cache, which an engine does between two steps.
const resetTime = 30 * time.Second

// post asks an engine to do something that has no body, and gives up after d.
func post(ctx context.Context, url string, d time.Duration) error {
	ctx, cancel := context.WithTimeoutCause(ctx, d, fmt.Errorf("not within %s", d))
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, url, nil)
	if err != nil {
		return err
	}
	resp, err := http.DefaultClient.Do(req)
	if err != nil {
		return err
	}
	resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return fmt.Errorf("POST %s: status %d (engines have this path with VLLM_SERVER_DEV_MODE=1)", url, resp.StatusCode)
	}
	return nil
}

// askSettled sends a prompt through Envoy when what the engines have published is known.
func (s *site) askSettled(ctx context.Context, messages []lab.Message) (seen, error) {
	if err := s.settle(ctx); err != nil {
		return seen{}, err
	}
	return s.ask(ctx, messages)
}
