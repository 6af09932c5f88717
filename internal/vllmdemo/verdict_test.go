package vllmdemo

import (
	"bytes"
	"encoding/json"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// one is a request that was answered by e.
func one(conversation, turn int, e string, matched, cached, prompt int) seen {
	return seen{
		conversation: conversation, turn: turn, kind: "plain",
		reply: lab.Reply{Status: http.StatusOK, PromptTokens: prompt, CachedTokens: cached},
		entry: lab.LogEntry{Upstream: e, Endpoint: e, Rung: "exact", Reason: "prefix", Matched: float64(matched), Prompt: float64(prompt)},
	}
}

func TestJudge(t *testing.T) {
	failed := one(3, 0, "a", 0, 0, 100)
	failed.reply.Status = http.StatusServiceUnavailable
	moved := one(2, 2, "b", 160, 128, 300)
	moved.entry.Endpoint = "a"
	unmatched := one(4, 0, "a", 0, 64, 200)
	unmatched.entry.Rung, unmatched.entry.Prompt = "load", 190
	guessed := one(6, 0, "a", 128, 32, 200)
	guessed.entry.Rung = "approximate"
	miscounted := one(5, 0, "a", 0, 0, 100)
	miscounted.entry.Prompt = 101
	for name, tt := range map[string]struct {
		all  []seen
		want Figures
	}{
		"nothing": {nil, Figures{}},
		"exact":   {[]seen{one(0, 0, "a", 96, 96, 130)}, Figures{Requests: 1, Answered: 1, Predicted: 1, Exact: 1, Matched: 1, Counted: 1, Obeyed: 1, Foretold: 96, Prompt: 130, Cached: 96}},
		"a block more": {
			[]seen{one(0, 0, "a", 96, 128, 130)},
			Figures{Requests: 1, Answered: 1, Predicted: 1, Matched: 1, Counted: 1, Obeyed: 1, Foretold: 96, Prompt: 130, Cached: 128},
		},
		"two blocks more": {[]seen{one(0, 0, "a", 64, 128, 130)}, Figures{Requests: 1, Answered: 1, Matched: 1, Counted: 1, Obeyed: 1, Foretold: 64, Prompt: 130, Cached: 128}},
		"two blocks less": {[]seen{one(0, 0, "a", 128, 64, 130)}, Figures{Requests: 1, Answered: 1, Over: 1, Matched: 1, Counted: 1, Obeyed: 1, Foretold: 128, Prompt: 130, Cached: 64}},
		"not answered":    {[]seen{failed}, Figures{Requests: 1}},
		"not matched":     {[]seen{unmatched}, Figures{Requests: 1, Answered: 1, Obeyed: 1, Prompt: 200, Cached: 64}},
		"by text":         {[]seen{guessed}, Figures{Requests: 1, Answered: 1, OverText: 1, Obeyed: 1, Prompt: 200, Cached: 32}},
		"counted wrong":   {[]seen{miscounted}, Figures{Requests: 1, Answered: 1, Predicted: 1, Exact: 1, Matched: 1, Obeyed: 1, Prompt: 100}},
		"follow-ups": { // held and at a, not held and at b, back at a
			[]seen{one(1, 0, "a", 0, 0, 100), one(1, 1, "a", 96, 96, 200), one(1, 2, "b", 0, 0, 300), one(1, 3, "a", 256, 256, 400)},
			Figures{Requests: 4, Answered: 4, FollowUps: 3, Held: 2, Followed: 2, Predicted: 4, Exact: 4, Matched: 4, Counted: 4, Obeyed: 4, Foretold: 352, Prompt: 1000, Cached: 352},
		},
		"elsewhere than chosen": {
			[]seen{one(2, 0, "a", 0, 0, 100), one(2, 1, "a", 64, 64, 200), moved},
			Figures{Requests: 3, Answered: 3, FollowUps: 2, Held: 1, Followed: 1, Predicted: 3, Exact: 2, Matched: 3, Counted: 3, Obeyed: 2, Foretold: 224, Prompt: 600, Cached: 192},
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := judge(tt.all)
			total := 0
			for _, n := range got.PerEndpoint {
				total += n
			}
			if total != got.Answered {
				t.Errorf("requests per endpoint %v, answered %d", got.PerEndpoint, got.Answered)
			}
			got.PerEndpoint, got.Kinds, got.Reasons = nil, nil, nil
			if d := cmp.Diff(tt.want, got); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

func TestChecks(t *testing.T) {
	good := Figures{Requests: 200, Answered: 200, Matched: 190, Counted: 190, Predicted: 198, Exact: 150, Obeyed: 200, PerEndpoint: map[string]int{"a": 150, "b": 50}}
	for name, tt := range map[string]struct {
		change func(*Figures)
		failed string // part of the check that fails, "" for none
	}{
		"good":              {func(*Figures) {}, ""},
		"one not answered":  {func(f *Figures) { f.Answered-- }, "answered"},
		"one not sent":      {func(f *Figures) { f.Requests, f.Answered, f.Obeyed = 199, 199, 199 }, "answered"},
		"moved":             {func(f *Figures) { f.Obeyed = 197 }, "chose"},
		"one counted wrong": {func(f *Figures) { f.Counted-- }, "counted"},
		"none matched":      {func(f *Figures) { f.Matched, f.Counted = 0, 0 }, "counted"},
		"98 % predicted":    {func(f *Figures) { f.Predicted = 197 }, "predicted"},
		"one engine only":   {func(f *Figures) { f.PerEndpoint = map[string]int{"a": 200} }, "in use"},
	} {
		t.Run(name, func(t *testing.T) {
			f := good
			tt.change(&f)
			failed := Report{Checks: f.checks("traffic", 200, []string{"a", "b"})}.failed()
			switch {
			case tt.failed == "" && len(failed) > 0, tt.failed != "" && len(failed) != 1:
				t.Errorf("failed: %+v", failed)
			case tt.failed != "" && !strings.Contains(failed[0].What, tt.failed):
				t.Errorf("failed: %+v, want %q", failed[0], tt.failed)
			}
		})
	}
}

func TestPredicted(t *testing.T) {
	for name, tt := range map[string]struct {
		matched, cached int
		some, ok        bool
	}{
		"equal":                 {96, 96, true, true},
		"within a block":        {96, 64, true, true},
		"two blocks off":        {96, 32, true, false},
		"none of some":          {0, 0, true, false},
		"none":                  {0, 0, false, true},
		"none predicted":        {0, 64, false, false},
		"forgotten, yet so":     {64, 64, false, false},
		"forgotten, yet cached": {0, 32, false, true},
	} {
		if c := predicted("p", "w", one(0, 0, "a", tt.matched, tt.cached, 130), tt.some); c.OK != tt.ok {
			t.Errorf("%s: %+v, want %v", name, c, tt.ok)
		}
	}
}

func TestReport(t *testing.T) {
	r := Report{Checks: []Check{
		{Part: "traffic", What: "requests answered", Got: "8 of 8 (100.0 %)", Want: "all", OK: true},
		{Part: "traffic", What: "by engine", Got: "a 4, b 4", OK: true},
		{Part: "reset", What: "the same", Got: "predicted 64, cached 0 of 90", Want: "0 and 0"},
	}}
	var b bytes.Buffer
	if err := table(&b, r); err != nil {
		t.Fatal(err)
	}
	const want = `traffic
  requests answered   8 of 8 (100.0 %)               ok
  by engine           a 4, b 4
reset
  the same            predicted 64, cached 0 of 90   FAILED, want 0 and 0
`
	if d := cmp.Diff(want, b.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	path := filepath.Join(t.TempDir(), "figures.json")
	if err := writeJSON(path, r); err != nil {
		t.Fatal(err)
	}
	data, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	var back Report
	if err := json.Unmarshal(data, &back); err != nil || !cmp.Equal(r, back) {
		t.Errorf("%v, read back %+v", err, back)
	}
	if err := writeJSON(t.TempDir(), r); err == nil {
		t.Error("a folder was written as a file")
	}
	if err := table(failing{}, r); err == nil {
		t.Error("a writer's error is lost")
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, errors.New("full") }
