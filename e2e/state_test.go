package e2e

import (
	"fmt"
	"math/rand/v2"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestRouterRestartResumes stops and kills a router with a state_dir, whose engines keep too few batches for a replay of all. What it knew
// is matched again with its first requests. When the engines were restarted meanwhile, nothing of before is.
func TestRouterRestartResumes(t *testing.T) {
	state := filepath.Join(t.TempDir(), "state")
	site := startPatient(t, envoyNewest, lab.SiteOptions{
		RouterConfig: fmt.Sprintf("state_dir: %q", state),
		Pools: []lab.PoolOptions{{
			Name: "chat", Model: "sim", Engines: 2, Dial: true, Replay: true, Args: append([]string{"--buffer-steps", "16"}, quick...),
		}},
	})
	s := &restarts{t: t, site: site, client: site.Client(), watch: startWatch(t, site)}
	defer s.client.Close()

	s.ask("at first", 0, 60, nothing)
	site.Router.Stop()
	s.ask("without a router", 60, 66, undecided)
	s.start()
	s.ask("after a stop", 0, 66, everything)
	s.restored("resumed")

	s.ask("new ones", 66, 70, nothing)
	began := time.Now()
	eventually(t, "both mirrors are saved", func() bool {
		files, err := filepath.Glob(filepath.Join(state, "*.mirror"))
		if err != nil || len(files) != 2 {
			return false
		}
		for _, f := range files {
			if info, err := os.Stat(f); err != nil || info.ModTime().Before(began) {
				return false
			}
		}
		return true
	})
	s.ask("new ones after the save", 70, 74, nothing)
	site.Router.Kill()
	s.ask("without a router", 74, 78, undecided)
	s.start()
	s.ask("after a kill", 0, 78, everything)
	s.restored("resumed")

	site.Router.Stop()
	for _, e := range site.Engines {
		e.Kill()
		if err := e.Restart(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	s.ask("of restarted engines without a router", 100, 140, undecided)
	s.start()
	s.ask("after a restart of the engines", 0, 20, nothing)
	s.restored("not_proven")

	for i, reply := range s.all {
		if entry := s.entries[reply.RequestID]; int(entry.Matched) > reply.CachedTokens+blockSize {
			t.Errorf("request %d: %v tokens matched, %d cached", i, entry.Matched, reply.CachedTokens)
		}
	}
}

type restarts struct {
	t       *testing.T
	site    *lab.Site
	client  *lab.Client
	watch   *watch
	all     []lab.Reply
	entries map[string]lab.LogEntry
}

// start starts the router again and waits until Envoy asks it.
func (s *restarts) start() {
	s.t.Helper()
	restart(s.t, s.site)
	eventually(s.t, "a router that answers its health checks", func() bool { return routersSeen(s.t, s.site) == 1 })
}

// What is to be matched of a request.
const (
	nothing = iota
	everything
	undecided
)

// ask sends prompts by their numbers: the same number is the same prompt, and different ones have nothing in common.
func (s *restarts) ask(what string, from, to, want int) {
	s.t.Helper()
	first := len(s.all)
	for n := from; n < to; n++ {
		text := prose(rand.New(rand.NewPCG(17, uint64(n))), 80)
		reply := s.client.Chat(s.t.Context(), lab.ChatRequest{Model: "sim", MaxTokens: 2, Messages: []lab.Message{{Role: "user", Content: text}}})
		if !reply.OK() {
			s.t.Fatalf("%s: prompt %d: status %d %s, error %v", what, n, reply.Status, reply.Body, reply.Err)
		}
		s.all = append(s.all, reply)
	}
	s.entries = map[string]lab.LogEntry{}
	for _, e := range s.watch.all(len(s.all)) {
		s.entries[e.RequestID] = e
	}
	bad := 0
	for i, reply := range s.all[first:] {
		e := s.entries[reply.RequestID]
		ok := false
		switch want {
		case undecided:
			ok = e.DecisionID == ""
		case nothing:
			ok = e.DecisionID != "" && e.Matched == 0
		case everything:
			ok = e.Reason == "prefix" && int(e.Matched) >= reply.CachedTokens-blockSize && int(e.Matched) >= reply.PromptTokens-2*blockSize
		}
		if !ok {
			bad++
			s.t.Errorf("%s: prompt %d of %d tokens: decision %q, reason %q, %v matched, %d cached", what, from+i, reply.PromptTokens, e.DecisionID, e.Reason, e.Matched, reply.CachedTokens)
		}
	}
	s.t.Logf("%s: %d of %d prompts as expected", what, to-from-bad, to-from)
}

// restored wants both endpoints' mirrors to have come to an outcome.
func (s *restarts) restored(outcome string) {
	s.t.Helper()
	for _, e := range s.site.Engines {
		n := metric(s.t, s.site.RouterAdmin+"/metrics", "kvsteer_subscriber_restores_total", fmt.Sprintf("endpoint=%q", e.Address), fmt.Sprintf("outcome=%q", outcome))
		if n != 1 {
			s.t.Errorf("endpoint %s: restores with outcome %s: %v, want 1", e.Address, outcome, n)
		}
	}
}
