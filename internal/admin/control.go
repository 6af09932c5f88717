package admin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"

	"github.com/kvsteer/kvsteer/internal/router"
)

// maxCommand bounds a command's body.
const maxCommand = 4 << 10

// Setting is a pool's mode: the body of a mode command, and part of its answer.
type Setting struct {
	Mode    router.Mode `json:"mode"`
	Percent int         `json:"percent"`
}

// ModeSet is the answer to a mode command.
type ModeSet struct {
	Pool string `json:"pool"`
	Setting
	Before Setting `json:"before"`
}

// EndpointSet is the answer to drain, undrain and reset.
type EndpointSet struct {
	Pool     string `json:"pool"`
	Endpoint string `json:"endpoint"`
	Draining bool   `json:"draining"`
	Leaving  bool   `json:"leaving,omitempty"`  // it drains because DNS or its node says so, whatever a call says
	Blocks   int    `json:"blocks"`             // that were known before
	Approx   int    `json:"approximate_blocks"` // of text that it was sent, known before
	Left     int    `json:"left"`               // endpoints of the pool that get requests
}

func (s *Server) setMode(w http.ResponseWriter, r *http.Request) {
	p, ok := s.pool(w, r.PathValue("pool"))
	if !ok {
		return
	}
	// What the body leaves out of percent stays as it is: who switches off and on again gets the same share.
	body := struct {
		Mode    *router.Mode `json:"mode"`
		Percent *int         `json:"percent"`
	}{}
	if err := read(w, r, &body); err != nil {
		answer(w, http.StatusBadRequest, problem{Error: err.Error()})
		return
	}
	before := Setting{p.Mode, p.Percent}
	after := before
	if body.Mode == nil {
		answer(w, http.StatusBadRequest, problem{Error: "mode is missing: on, observe or off"})
		return
	}
	after.Mode = *body.Mode
	if body.Percent != nil {
		if after.Mode != router.ModeOn {
			answer(w, http.StatusBadRequest, problem{Error: fmt.Sprintf("percent is the share that mode on steers: with mode %s it has no meaning", after.Mode)})
			return
		}
		after.Percent = *body.Percent
	}
	if after.Percent < 0 || after.Percent > 100 {
		answer(w, http.StatusBadRequest, problem{Error: fmt.Sprintf("percent %d is not in the range 0 to 100", after.Percent)})
		return
	}
	err := s.o.Control.SetMode(p.Name, after.Mode, after.Percent)
	if s.carriedOut(w, r, "mode", err, "pool", p.Name, "mode", after.Mode.String(), "percent", after.Percent) {
		answer(w, http.StatusOK, ModeSet{Pool: p.Name, Setting: after, Before: before})
	}
}

func (s *Server) drain(on bool) http.HandlerFunc {
	name := "drain"
	if !on {
		name = "undrain"
	}
	return func(w http.ResponseWriter, r *http.Request) {
		pool, e, ok := s.endpoint(w, r)
		if !ok {
			return
		}
		err := s.o.Control.Drain(e.Address, on)
		if s.carriedOut(w, r, name, err, "pool", pool, "endpoint", e.Address) {
			answer(w, http.StatusOK, EndpointSet{
				Pool: pool, Endpoint: e.Address, Draining: on || e.Leaving, Leaving: e.Leaving, Blocks: e.Blocks, Approx: e.ApproximateBlocks, Left: s.left(pool),
			})
		}
	}
}

func (s *Server) reset(w http.ResponseWriter, r *http.Request) {
	pool, e, ok := s.endpoint(w, r)
	if !ok {
		return
	}
	err := s.o.Control.Reset(e.Address)
	if s.carriedOut(w, r, "reset", err, "pool", pool, "endpoint", e.Address) {
		answer(w, http.StatusOK, EndpointSet{Pool: pool, Endpoint: e.Address, Draining: e.Draining, Leaving: e.Leaving, Blocks: e.Blocks, Approx: e.ApproximateBlocks, Left: s.left(pool)})
	}
}

// left counts the endpoints of a pool that get requests.
func (s *Server) left(pool string) int {
	left := 0
	for _, p := range s.o.Viewer.State().Pools {
		for _, e := range p.Endpoints {
			if p.Name == pool && e.Healthy && !e.Draining {
				left++
			}
		}
	}
	return left
}

// carriedOut counts and logs a command, and answers one that failed.
func (s *Server) carriedOut(w http.ResponseWriter, r *http.Request, command string, err error, about ...any) bool {
	about = append([]any{"command", command, "from", r.RemoteAddr}, about...)
	if err != nil {
		s.o.Metrics.commands.WithLabelValues(command, "failed").Inc()
		s.o.Log.Warn("an admin command failed", append(about, "error", err)...)
		answer(w, http.StatusConflict, problem{Error: err.Error()})
		return false
	}
	s.o.Metrics.commands.WithLabelValues(command, "done").Inc()
	s.o.Log.Info("an admin command is done", about...)
	return true
}

// read reads a command's JSON body; an empty one leaves v as it is.
func read(w http.ResponseWriter, r *http.Request, v any) error {
	dec := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxCommand))
	dec.DisallowUnknownFields()
	if err := dec.Decode(v); err != nil && !errors.Is(err, io.EOF) {
		return fmt.Errorf("the body: %w", err)
	}
	if _, err := dec.Token(); !errors.Is(err, io.EOF) {
		return errors.New("the body: more than one JSON value")
	}
	return nil
}

// pool finds a pool, or answers with those there are.
func (s *Server) pool(w http.ResponseWriter, name string) (router.PoolState, bool) {
	if s.o.Viewer == nil {
		missing(w, "state")
		return router.PoolState{}, false
	}
	var known []string
	for _, p := range s.o.Viewer.State().Pools {
		if p.Name == name {
			return p, true
		}
		known = append(known, p.Name)
	}
	answer(w, http.StatusNotFound, problem{Error: fmt.Sprintf("there is no pool %q", name), Known: known})
	return router.PoolState{}, false
}

// endpoint finds the endpoint that a request's path names and its pool, or answers with those there are. It takes no body.
func (s *Server) endpoint(w http.ResponseWriter, r *http.Request) (pool string, e router.EndpointState, ok bool) {
	if s.o.Viewer == nil {
		missing(w, "state")
		return "", e, false
	}
	if err := read(w, r, &struct{}{}); err != nil {
		answer(w, http.StatusBadRequest, problem{Error: err.Error()})
		return "", e, false
	}
	address := r.PathValue("address")
	var known []string
	for _, p := range s.o.Viewer.State().Pools {
		for _, e := range p.Endpoints {
			if e.Address == address {
				return p.Name, e, true
			}
			known = append(known, e.Address)
		}
	}
	answer(w, http.StatusNotFound, problem{Error: fmt.Sprintf("there is no endpoint %q", address), Known: known})
	return "", e, false
}
