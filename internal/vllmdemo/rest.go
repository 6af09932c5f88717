package vllmdemo

import (
	"context"
	"fmt"
	"math/rand/v2"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// lastPrompts asks for the latest prompt of each conversation again, with an answer of one token.
func lastPrompts(held []conversation) []lab.ChatRequest {
	var all []lab.ChatRequest
	for _, c := range held {
		if n := len(c.said); n > 0 {
			all = append(all, request(c.model, c.salt, c.said[:n-1], 1))
		}
	}
	return all
}

// neverSent are prompts of which no engine holds anything: unknown texts, and known ones under a salt that nobody used.
func neverSent(rng *rand.Rand, model string, held []conversation) []lab.ChatRequest {
	var all []lab.ChatRequest
	salt := fmt.Sprintf("nobody-%d", rng.Uint32())
	for i := range 2 {
		all = append(all, request(model, "", prompt(rng, 120), 1))
		if n := len(held[i].said); n > 0 {
			all = append(all, request(held[i].model, salt, held[i].said[:n-1], 1))
		}
	}
	return all
}

// atRest asks one after the other, each when all that was published is known: what is predicted then is what the router's index holds
// of the prompt at the engine that answers, and what that engine reports as cached is what it holds.
func (s *site) atRest(ctx context.Context, all []lab.ChatRequest) (Figures, error) {
	var answers []seen
	moved := true // since it last settled
	for i, r := range all {
		if moved {
			if err := s.settle(ctx); err != nil {
				return Figures{}, err
			}
		}
		one, err := s.askThis(ctx, r)
		if err != nil {
			return Figures{}, err
		}
		// A prompt that is cached whole is not computed and not published.
		moved = one.reply.PromptTokens-one.reply.CachedTokens > block
		one.conversation = i
		answers = append(answers, one)
	}
	return judge(answers), nil
}

// restChecks are of an index that holds exactly what the engines do.
func (f Figures) restChecks(part string) []Check {
	return []Check{
		most(part, "prompts at rest with the cached tokens predicted, within a block", f.Predicted, f.Requests, 100),
		{Part: part, What: "of those, to the token", Got: share(f.Exact, f.Predicted), OK: true},
		{Part: part, What: "tokens predicted of those cached", Got: share(f.Foretold, f.Cached), OK: true},
	}
}

// none is a check that nothing was predicted and nothing found.
func (f Figures) none(part, what string) Check {
	return Check{
		Part: part, What: what, Got: share(f.Foretold, f.Cached), Want: "0 of less than a block each",
		OK: f.Requests > 0 && f.Answered == f.Requests && f.Foretold == 0 && f.Predicted == f.Requests,
	}
}

// never is a check that no request found more than a block less than was predicted.
func (f Figures) never(part, what string) Check {
	return Check{Part: part, What: what, Got: share(f.Over, f.Answered), Want: "0", OK: f.Answered > 0 && f.Over == 0}
}
