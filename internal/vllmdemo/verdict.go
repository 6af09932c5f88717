package vllmdemo

import "fmt"

// Check is one thing that must be so.
type Check struct {
	Part string `json:"part"`
	What string `json:"what"`
	Got  string `json:"got"`
	Want string `json:"want"`
	OK   bool   `json:"ok"`
}

// Figures are what a set of requests shows.
type Figures struct {
	Requests    int            `json:"requests"`
	Answered    int            `json:"answered"`
	FollowUps   int            `json:"follow_ups"`
	Held        int            `json:"held"`             // follow-ups whose engine reports the turn before cached
	Followed    int            `json:"followed"`         // follow-ups at an engine that answered a turn before
	Predicted   int            `json:"predicted"`        // requests whose cached tokens are within one block of the prediction
	Exact       int            `json:"exact"`            // and equal to it
	Over        int            `json:"over"`             // matched by blocks, and more than a block less was cached than predicted
	OverText    int            `json:"over_text"`        // the same of those matched by text, whose prediction is an estimate
	Counted     int            `json:"counted"`          // prompts with as many tokens as the engine counts, of those that were matched
	Matched     int            `json:"matched"`          // requests whose prompt was matched
	Obeyed      int            `json:"obeyed"`           // requests answered by the router's first choice
	Foretold    int            `json:"predicted_tokens"` // of requests matched by blocks
	Prompt      int            `json:"prompt_tokens"`
	Cached      int            `json:"cached_tokens"`
	PerEndpoint map[string]int `json:"per_endpoint"`
	Kinds       map[string]int `json:"kinds"`
	Reasons     map[string]int `json:"reasons"`
}

// judge compares predictions with what engines report. A request that the router did not match was predicted nothing.
func judge(all []seen) Figures {
	f := Figures{PerEndpoint: map[string]int{}, Kinds: map[string]int{}, Reasons: map[string]int{}}
	type place struct{ conversation, turn int }
	turns := map[place]seen{}
	for _, s := range all {
		turns[place{s.conversation, s.turn}] = s
	}
	for _, s := range all {
		f.Requests++
		if !s.reply.OK() {
			continue
		}
		f.Answered++
		f.Prompt += s.reply.PromptTokens
		f.Cached += s.reply.CachedTokens
		f.PerEndpoint[s.entry.Upstream]++
		f.Kinds[s.kind]++
		f.Reasons[s.entry.Reason]++
		if s.entry.Upstream == s.entry.Endpoint {
			f.Obeyed++
		}
		exact := s.entry.Rung == "exact" // in other rungs prompt tokens are an estimate
		if exact {
			f.Matched++
			f.Foretold += int(s.entry.Matched)
			if int(s.entry.Prompt) == s.reply.PromptTokens {
				f.Counted++
			}
		}
		switch over := int(s.entry.Matched) - s.reply.CachedTokens; {
		case over == 0:
			f.Exact++
			f.Predicted++
		case -block <= over && over <= block:
			f.Predicted++
		case over > block && exact:
			f.Over++
		case over > block:
			f.OverText++
		}
		if s.turn == 0 {
			continue
		}
		f.FollowUps++
		// The answer before is rendered again as text, so what must be there is the prompt of the turn before without its last,
		// partial block, and without one more for its own generation prompt.
		before := turns[place{s.conversation, s.turn - 1}]
		if s.reply.CachedTokens >= before.reply.PromptTokens/block*block-block {
			f.Held++
		}
		for t := range s.turn {
			if turns[place{s.conversation, t}].entry.Upstream == s.entry.Upstream {
				f.Followed++
				break
			}
		}
	}
	return f
}

// share is a count of a whole for people.
func share(n, of int) string {
	if of == 0 {
		return "0 of 0"
	}
	return fmt.Sprintf("%d of %d (%.1f %%)", n, of, 100*float64(n)/float64(of))
}

// most is a check that at least so many percent of a whole are so.
func most(part, what string, n, of, percent int) Check {
	want := fmt.Sprintf("at least %d %%", percent)
	if percent == 100 {
		want = "all"
	}
	return Check{Part: part, What: what, Got: share(n, of), Want: want, OK: of > 0 && n*100 >= of*percent}
}

// checks of chat traffic.
func (f Figures) checks(part string, planned int, endpoints []string) []Check {
	c := []Check{
		most(part, "requests answered", f.Answered, planned, 100),
		most(part, "at the engine the router chose", f.Obeyed, f.Requests, 99),
		most(part, "prompts counted as the engine does", f.Counted, f.Matched, 100),
		most(part, "cached tokens predicted within one block", f.Predicted, f.Requests, 99),
		{Part: part, What: "of those, to the token", Got: share(f.Exact, f.Predicted), Want: "", OK: true},
	}
	used := 0
	for _, e := range endpoints {
		if f.PerEndpoint[e] > 0 {
			used++
		}
	}
	return append(c, most(part, "engines in use", used, len(endpoints), 100))
}
