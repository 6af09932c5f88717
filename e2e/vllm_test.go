//go:build vllm

// These tests run on real engines.
//
// TestVLLMDemo and TestVLLMExample start two vLLM 0.32 servers on CPU themselves, as examples/vllm-cpu does; its README has the
// environment variables that name an installation and a model that are there already.
//
//	go test -tags vllm -run '^TestVLLM(Demo|Example)$' -count 1 -v -timeout 90m ./e2e
//
// The others need two vLLM servers (or more) that somebody has started, on GPUs or on CPU: with what kvsteer engine-args prints for endpoints
// that listen, and served under the name tiny. VLLM_SERVER_DEV_MODE=1 in their environment gives them the path that TestVLLMForgets
// needs. The engines connect to the router for their events; the tests start router and Envoy. Any model with a chat template and room
// for 2,048 tokens will do. What is compared are tokens and blocks, not words.
//
//	export KVSTEER_VLLM=127.0.0.1:18100=127.0.0.1:25557,127.0.0.1:18101=127.0.0.1:25567
//	go test -tags vllm -run '^TestVLLM(FollowUps|Salt|Forgets|Restart)$' -count 1 -v ./e2e
//
// KVSTEER_VLLM lists each engine's HTTP address and, after the equals sign, the address it connects to for its events.
// KVSTEER_VLLM_NAME and KVSTEER_VLLM_BLOCK_SIZE say what differs from tiny and 32. TestVLLMRestart also needs
// KVSTEER_VLLM_RESTART, a shell command that kills the first engine (SIGKILL, with its children) and starts it again.
package e2e

import (
	"cmp"
	"fmt"
	"math/rand/v2"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// TestVLLMDemo runs what "make demo-vllm" runs.
func TestVLLMDemo(t *testing.T) {
	example, err := filepath.Abs("../examples/vllm-cpu")
	if err != nil {
		t.Fatal(err)
	}
	// The example's own ports: free ones are of the range from which vLLM takes ports for itself.
	report, _ := runVLLMDemo(t, example, 75, 60*time.Minute, vllmSettings(t)...)
	t.Logf("%+v", report.Traffic)
	if f := report.Traffic; f.Requests != 300 || f.FollowUps != 225 {
		t.Errorf("%d requests, %d of them follow-ups; want 300 and 225", f.Requests, f.FollowUps)
	}
}

// vllmSettings has setup.sh prepare vLLM and the model, and returns PATH and MODEL.
func vllmSettings(t *testing.T) []string {
	t.Helper()
	setup := exec.Command("bash", "-e", "-c", `eval "$(../examples/vllm-cpu/setup.sh)"; printf 'PATH=%s\nMODEL=%s\n' "$PATH" "$MODEL"`)
	setup.Stderr = os.Stderr
	out, err := setup.Output()
	if err != nil {
		t.Fatal(err)
	}
	return strings.Split(strings.TrimSpace(string(out)), "\n")
}

// TestVLLMExample runs the commands of the example's README.
func TestVLLMExample(t *testing.T) { runVLLMExample(t, 30*time.Minute) }

// vllmSite is a router and an Envoy before the engines that the environment names.
type vllmSite struct {
	*lab.Site
	model     string
	block     int
	endpoints []string
	seed      uint64 // of everything said in this run: nothing of it is in the engines' caches before
}

func startVLLMSite(t *testing.T) *vllmSite {
	t.Helper()
	s := &vllmSite{model: cmp.Or(os.Getenv("KVSTEER_VLLM_NAME"), "tiny"), seed: uint64(time.Now().UnixNano())}
	var err error
	if s.block, err = strconv.Atoi(cmp.Or(os.Getenv("KVSTEER_VLLM_BLOCK_SIZE"), "32")); err != nil {
		t.Fatalf("KVSTEER_VLLM_BLOCK_SIZE: %v", err)
	}
	var events []string
	for one := range strings.SplitSeq(os.Getenv("KVSTEER_VLLM"), ",") {
		endpoint, event, ok := strings.Cut(one, "=")
		if !ok {
			t.Fatalf("KVSTEER_VLLM=%q: want HTTP=EVENTS,HTTP=EVENTS, such as 127.0.0.1:18100=127.0.0.1:25557", os.Getenv("KVSTEER_VLLM"))
		}
		s.endpoints, events = append(s.endpoints, endpoint), append(events, event)
	}
	s.Site = startSite(t, envoyNewest, lab.SiteOptions{
		Pools: []lab.PoolOptions{{Name: "chat", Model: s.model, Endpoints: s.endpoints, Events: events}},
		// An engine that computes on the cores that serve its HTTP takes longer for /tokenize than the defaults let it.
		RouterConfig: "budget: 4s\ntokenize: {timeout: 3500ms}",
		EnvoyConfig:  "message_timeout: 5s",
	})
	eventually(t, "all engines are connected for their events", func() bool {
		return s.metric(t, "kvsteer_subscriber_connected") == float64(len(s.endpoints))
	})
	t.Logf("%d engines, block size %d, seed %d", len(s.endpoints), s.block, s.seed)
	return s
}

// metric is the sum of the router's series of one name; 0 when there is none.
func (s *vllmSite) metric(t *testing.T, name string, labels ...string) float64 {
	t.Helper()
	v, err := lab.Metric(t.Context(), s.RouterAdmin+"/metrics", name, labels...)
	if err != nil {
		return 0 // series begin when something has happened
	}
	return v
}

// system is a tenant's system prompt of this run.
func (s *vllmSite) system(tenant uint64, words int) lab.Message {
	return lab.Message{Role: "system", Content: fmt.Sprintf("You serve tenant %d. ", tenant) + prose(rand.New(rand.NewPCG(s.seed, tenant)), words)}
}

// chat sends one turn and fails the test unless a whole answer comes.
func (s *vllmSite) chat(t *testing.T, client *lab.Client, messages []lab.Message, tokens int, salt string) lab.Reply {
	t.Helper()
	r := client.Chat(t.Context(), lab.ChatRequest{Model: s.model, Messages: messages, MaxTokens: tokens, IgnoreEOS: true, Salt: salt})
	if !r.OK() {
		t.Fatalf("status %d %s, error %v", r.Status, r.Body, r.Err)
	}
	return r
}

// entry is what the access log says of one answered request.
func (s *vllmSite) entry(t *testing.T, reply lab.Reply) lab.LogEntry {
	t.Helper()
	var found lab.LogEntry
	eventually(t, "the access log has the request", func() bool {
		entries, err := s.FollowLog().Next()
		if err != nil {
			t.Fatal(err)
		}
		for _, e := range entries {
			if e.RequestID == reply.RequestID {
				found = e
				return true
			}
		}
		return false
	})
	return found
}

// agreement compares the router's predictions with what engines report.
type agreement struct {
	followUps, held     int
	requests, predicted int
	exact, counted      int
	perEndpoint         map[string]int
	reasons             map[string]int
}

func (a *agreement) String() string {
	percent := func(n, of int) string { return fmt.Sprintf("%d of %d (%.1f %%)", n, of, 100*float64(n)/float64(of)) }
	return fmt.Sprintf("follow-ups that reached an engine holding the turn before: %s; cached tokens predicted within one block: %s, exactly: %s; "+
		"prompt tokens counted as the engine does: %s; requests per engine %v; reasons %v",
		percent(a.held, a.followUps), percent(a.predicted, a.requests), percent(a.exact, a.requests), percent(a.counted, a.requests), a.perEndpoint, a.reasons)
}

// TestVLLMFollowUps holds 50 conversations of 3 or 4 turns, 6 at a time: follow-ups go to the engine that holds the turns before, and
// engines report the cached tokens that the router predicted.
func TestVLLMFollowUps(t *testing.T) {
	const conversations, parallel, tenants = 50, 6, 5
	s := startVLLMSite(t)
	client := s.Client()
	defer client.Close()

	var mu sync.Mutex
	turns := make([][]lab.Reply, conversations)
	var wg sync.WaitGroup
	slots := make(chan struct{}, parallel)
	for c := range conversations {
		wg.Go(func() {
			slots <- struct{}{}
			defer func() { <-slots }()
			rng := rand.New(rand.NewPCG(s.seed, uint64(1000+c)))
			messages := []lab.Message{s.system(uint64(c%tenants), 60)}
			for range 3 + c%2 {
				messages = append(messages, lab.Message{Role: "user", Content: prose(rng, 10+rng.IntN(30))})
				reply := client.Chat(t.Context(), lab.ChatRequest{Model: s.model, Messages: messages, MaxTokens: 16 + rng.IntN(32), IgnoreEOS: true})
				mu.Lock()
				turns[c] = append(turns[c], reply)
				mu.Unlock()
				messages = append(messages, lab.Message{Role: "assistant", Content: reply.Text})
			}
		})
	}
	wg.Wait()

	entries, err := s.ReadLog(t.Context(), 3*conversations+conversations/2)
	if err != nil {
		t.Fatal(err)
	}
	byRequest := map[string]lab.LogEntry{}
	for _, e := range entries {
		byRequest[e.RequestID] = e
	}
	a := agreement{perEndpoint: map[string]int{}, reasons: map[string]int{}}
	prompts := 0
	for c, replies := range turns {
		for turn, r := range replies {
			if !r.OK() {
				t.Fatalf("conversation %d turn %d: status %d %s, error %v", c, turn, r.Status, r.Body, r.Err)
			}
			e, ok := byRequest[r.RequestID]
			if !ok {
				t.Fatalf("the access log lacks request %q", r.RequestID)
			}
			if e.Upstream != e.Endpoint {
				t.Errorf("the router chose %s, Envoy went to %s", e.Endpoint, e.Upstream)
			}
			prompts += r.PromptTokens
			a.perEndpoint[e.Upstream]++
			a.reasons[e.Reason]++
			if turn > 0 {
				a.followUps++
				// The engine holds the turn before when it reports that prompt cached, but for its last, partial block.
				if r.CachedTokens >= replies[turn-1].PromptTokens/s.block*s.block-s.block {
					a.held++
				}
			}
			if e.Prompt == 0 {
				continue // not matched: the first requests find no block known
			}
			a.requests++
			if int(e.Prompt) == r.PromptTokens {
				a.counted++
			}
			switch difference := int(e.Matched) - r.CachedTokens; {
			case difference == 0:
				a.exact++
				a.predicted++
			case difference >= -s.block && difference <= s.block:
				a.predicted++
			default:
				t.Logf("conversation %d turn %d: matched %v, cached %d of %d tokens, %s", c, turn, e.Matched, r.CachedTokens, r.PromptTokens, e.Reason)
			}
		}
	}
	t.Logf("%v; mean prompt %d tokens", &a, prompts/len(entries))
	t.Logf("%v calls of /tokenize in %.1f s", s.metric(t, "kvsteer_tokenize_duration_seconds_count"), s.metric(t, "kvsteer_tokenize_duration_seconds_sum"))
	t.Logf("batches %v, resets %v, orphans %v, problems %v, dropped blocks %v", s.metric(t, "kvsteer_subscriber_batches_total"),
		s.metric(t, "kvsteer_subscriber_resets_total"), s.metric(t, "kvsteer_subscriber_orphan_blocks"),
		s.metric(t, "kvsteer_subscriber_problem"), s.metric(t, "kvsteer_subscriber_dropped_blocks_total"))
	if a.held*100 < a.followUps*95 {
		t.Errorf("%d of %d follow-ups reached an engine that holds the turn before, want at least 95 %%", a.held, a.followUps)
	}
	if a.predicted*100 < a.requests*95 {
		t.Errorf("%d of %d requests had the cached tokens that were predicted, want at least 95 %%", a.predicted, a.requests)
	}
	if a.counted != a.requests {
		t.Errorf("%d of %d prompts were counted as the engine does", a.counted, a.requests)
	}
	if a.requests*100 < len(entries)*95 {
		t.Errorf("%d of %d requests were matched, want at least 95 %%", a.requests, len(entries))
	}
	if len(a.perEndpoint) != len(s.endpoints) {
		t.Errorf("requests per engine %v, want all %d in use", a.perEndpoint, len(s.endpoints))
	}
	if n := s.metric(t, "kvsteer_subscriber_problem"); n != 0 {
		t.Errorf("%v problems with events", n)
	}
}

// TestVLLMSalt sends a prompt under two salts: each is matched only with its own blocks.
func TestVLLMSalt(t *testing.T) {
	s := startVLLMSite(t)
	client := s.Client()
	defer client.Close()
	messages := []lab.Message{s.system(7, 100), {Role: "user", Content: "Well?"}}
	for _, step := range []struct {
		salt string
		held bool
	}{{"", false}, {"one", false}, {"one", true}, {"two", false}, {"one", true}, {"", true}} {
		r := s.chat(t, client, messages, 4, step.salt)
		e := s.entry(t, r)
		t.Logf("salt %q: %s matched %v, cached %d of %d", step.salt, e.Reason, e.Matched, r.CachedTokens, r.PromptTokens)
		if int(e.Matched) != r.CachedTokens || (r.CachedTokens > 0) != step.held {
			t.Errorf("salt %q: matched %v, cached %d tokens, want equal and held %v", step.salt, e.Matched, r.CachedTokens, step.held)
		}
		s.untilSettled(t)
	}
}

// TestVLLMForgets clears the engines' caches: once an engine has told, nothing of before is matched.
func TestVLLMForgets(t *testing.T) {
	s := startVLLMSite(t)
	client := s.Client()
	defer client.Close()
	messages := []lab.Message{s.system(8, 100), {Role: "user", Content: "Well?"}}
	first := s.chat(t, client, messages, 4, "")
	s.untilSettled(t)
	again := s.chat(t, client, messages, 4, "")
	e := s.entry(t, again)
	if again.CachedTokens == 0 || int(e.Matched) != again.CachedTokens {
		t.Fatalf("matched %v, cached %d of %d tokens, want equal and not 0", e.Matched, again.CachedTokens, first.PromptTokens)
	}
	for _, endpoint := range s.endpoints {
		req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+endpoint+"/reset_prefix_cache", nil)
		if err != nil {
			t.Fatal(err)
		}
		resp, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		resp.Body.Close()
		if resp.StatusCode != http.StatusOK {
			t.Fatalf("reset of %s: status %d; engines need VLLM_SERVER_DEV_MODE=1", endpoint, resp.StatusCode)
		}
	}
	// An engine sends the clear with the next request's batch, so that one request still goes where the prompt was.
	cleared := s.chat(t, client, messages, 4, "")
	stale := s.entry(t, cleared)
	if cleared.CachedTokens != 0 || stale.Endpoint != e.Endpoint {
		t.Errorf("after the reset: cached %d at %s, want 0 at %s", cleared.CachedTokens, stale.Endpoint, e.Endpoint)
	}
	eventually(t, "the engine has told of the clear", func() bool { return s.metric(t, "kvsteer_subscriber_resets_total", `cause="cleared"`) >= 1 })
	s.untilSettled(t)
	back := s.chat(t, client, messages, 4, "")
	e = s.entry(t, back)
	if back.CachedTokens == 0 || int(e.Matched) != back.CachedTokens {
		t.Errorf("computed again: matched %v, cached %d tokens, want equal and not 0", e.Matched, back.CachedTokens)
	}
	other := s.chat(t, client, []lab.Message{s.system(9, 100), {Role: "user", Content: "Well?"}}, 4, "")
	if e := s.entry(t, other); e.Matched > float64(s.block) || other.CachedTokens > s.block {
		t.Errorf("another prompt: matched %v, cached %d", e.Matched, other.CachedTokens)
	}
}

// TestVLLMRestart kills the first engine: its blocks are forgotten, the others serve its conversations, and once it is back it is matched
// with what it has computed since.
func TestVLLMRestart(t *testing.T) {
	command := os.Getenv("KVSTEER_VLLM_RESTART")
	if command == "" {
		t.Fatal("KVSTEER_VLLM_RESTART is not set")
	}
	s := startVLLMSite(t)
	client := s.Client()
	defer client.Close()
	victim, label := s.endpoints[0], fmt.Sprintf("endpoint=%q", s.endpoints[0])

	// onVictim sends prompts until one is computed by the first engine, and returns it.
	next := uint64(100)
	onVictim := func() []lab.Message {
		for range 40 {
			next++
			messages := []lab.Message{s.system(next, 100), {Role: "user", Content: "Well?"}}
			if e := s.entry(t, s.chat(t, client, messages, 4, "")); e.Upstream == victim {
				s.untilSettled(t)
				return messages
			}
		}
		t.Fatalf("%s is not chosen", victim)
		return nil
	}
	// again sends a prompt that was sent before, and checks who answers with what.
	again := func(when string, messages []lab.Message, byVictim, held bool) {
		r := s.chat(t, client, messages, 4, "")
		e := s.entry(t, r)
		t.Logf("%s: %s, %s matched %v, cached %d of %d", when, e.Upstream, e.Reason, e.Matched, r.CachedTokens, r.PromptTokens)
		if int(e.Matched) != r.CachedTokens || (r.CachedTokens > 0) != held || byVictim && e.Upstream != victim {
			t.Errorf("%s: want matched and cached equal, held %v, by the first engine %v", when, held, byVictim)
		}
	}
	messages := onVictim()
	again("before", messages, true, true)

	restart := exec.CommandContext(t.Context(), "sh", "-c", command)
	restart.Stdout, restart.Stderr = os.Stderr, os.Stderr
	if err := restart.Start(); err != nil {
		t.Fatal(err)
	}
	restarted := make(chan error, 1)
	go func() { restarted <- restart.Wait() }()
	eventually(t, "the router knows of the end", func() bool {
		return s.metric(t, "kvsteer_subscriber_connected", label) == 0 && s.metric(t, "kvsteer_router_endpoint_blocks", label) == 0
	})
	r := s.chat(t, client, messages, 4, "")
	e := s.entry(t, r)
	t.Logf("while it is down: %s, %s matched %v, cached %d of %d, attempts %d", e.Upstream, e.Reason, e.Matched, r.CachedTokens, r.PromptTokens, e.Attempts)
	if e.Upstream == victim || e.Matched != 0 || r.CachedTokens >= s.block*2 {
		t.Errorf("while it is down: %+v", e)
	}
	if err := <-restarted; err != nil {
		t.Fatal(err)
	}
	eventually(t, "the engine is used again", func() bool {
		return s.metric(t, "kvsteer_subscriber_connected", label) == 1 && s.metric(t, "kvsteer_pool_endpoint_up", label) == 1
	})
	// The engine that took over may hold the first prompt; a fresh one shows the engine that is back.
	again("after, the same prompt", messages, false, true)
	again("after, another prompt", onVictim(), true, true)
	t.Logf("resets by a lost connection: %v", s.metric(t, "kvsteer_subscriber_resets_total", label, `cause="disconnect"`))
}

// untilSettled waits until two readings of the event counter, some polls apart, are the same.
func (s *vllmSite) untilSettled(t *testing.T) {
	t.Helper()
	last, same := -1.0, 0
	eventually(t, "no more events come", func() bool {
		n := s.metric(t, "kvsteer_subscriber_batches_total")
		if same++; n != last {
			last, same = n, 0
		}
		return same >= 10
	})
}
