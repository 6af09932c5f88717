package admin

import (
	"encoding/json"
	"net/http"
	"strconv"
	"time"

	"github.com/kvsteer/kvsteer/internal/router"
)

const (
	fewDecisions = 100  // unless asked for otherwise
	maxDecisions = 1000 // what a router keeps
)

// decision is a router.PastDecision as tools read it.
type decision struct {
	Time     time.Time     `json:"time"`
	ID       string        `json:"id"`
	Pool     string        `json:"pool,omitempty"`
	Mode     router.Mode   `json:"mode"`
	Rung     router.Rung   `json:"rung"`
	Reason   router.Reason `json:"reason"`
	Endpoint string        `json:"endpoint,omitempty"`
	Second   string        `json:"second,omitempty"`
	Rank     *int          `json:"rank,omitempty"` // data-parallel rank, where decisions choose it
	Matched  int           `json:"matched_tokens"`
	Prompt   int           `json:"prompt_tokens"` // 0: not known
	Seconds  float64       `json:"seconds"`       // taken by the decision
}

func decisions(all []router.PastDecision) []decision {
	out := make([]decision, len(all))
	for i, r := range all {
		d := r.Decision
		out[i] = decision{
			Time: r.Time, ID: d.ID, Pool: d.Pool, Mode: d.Mode, Rung: d.Rung, Reason: d.Reason, Endpoint: d.Endpoint, Second: d.Second,
			Matched: d.Matched, Prompt: d.Prompt, Seconds: r.Duration.Seconds(),
		}
		if d.Pinned {
			out[i].Rank = &d.Rank
		}
	}
	return out
}

func missing(w http.ResponseWriter, what string) {
	answer(w, http.StatusNotFound, problem{Error: "this process has no " + what})
}

func (s *Server) state(w http.ResponseWriter, _ *http.Request) {
	if s.o.Node != nil {
		answer(w, http.StatusOK, s.o.Node())
		return
	}
	if s.o.Viewer == nil {
		missing(w, "state")
		return
	}
	answer(w, http.StatusOK, s.o.Viewer.State())
}

func (s *Server) decisions(w http.ResponseWriter, r *http.Request) {
	if s.o.Viewer == nil {
		missing(w, "decisions")
		return
	}
	n := fewDecisions
	if text := r.URL.Query().Get("n"); text != "" {
		var err error
		if n, err = strconv.Atoi(text); err != nil || n < 1 || n > maxDecisions {
			answer(w, http.StatusBadRequest, problem{Error: "n is not a number from 1 to 1000"})
			return
		}
	}
	answer(w, http.StatusOK, struct {
		Decisions []decision `json:"decisions"`
	}{decisions(s.o.Viewer.Recent(n))})
}

func (s *Server) config(w http.ResponseWriter, _ *http.Request) {
	if s.o.Config == nil {
		missing(w, "configuration")
		return
	}
	answer(w, http.StatusOK, s.o.Config())
}

// indented is v as JSON for people.
func indented(v any) ([]byte, error) {
	text, err := json.MarshalIndent(v, "", "  ")
	return append(text, '\n'), err
}
