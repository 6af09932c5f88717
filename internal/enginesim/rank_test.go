package enginesim

import (
	"encoding/hex"
	"encoding/json"
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

type rankRecording struct {
	Requests []struct {
		Body struct {
			Prompt []uint32
		}
		Headers map[string]string
	}
	Responses []struct{ Status int }
	Ranks     map[string]struct {
		Messages []struct{ Frames []string }
	}
	Replay map[string]struct {
		Replies []struct{ Frames []string }
	} `json:"replay_from_0"`
	Sources map[string]eventSource `json:"kv_event_sources"`
}

// TestRecordedRanks sends two ranks what a real engine's two ranks were sent, and wants the same status, messages and replays.
// Requests without a rank go where the real engine put them.
func TestRecordedRanks(t *testing.T) {
	data, err := os.ReadFile("testdata/ranks-0.32.0/40_data_parallel_2.json")
	if err != nil {
		t.Fatal(err)
	}
	var rec rankRecording
	if err := json.Unmarshal(data, &rec); err != nil {
		t.Fatal(err)
	}
	e := start(t, Options{
		BlockSize: 32, Blocks: 256, Ranks: 2, MaxModelLen: 2048,
		Events: Events{Bind: "tcp://127.0.0.1:0", Replay: "tcp://127.0.0.1:0", Topic: "kv-events"},
	})
	c := newClient(t)
	for i, r := range rec.Requests {
		rank := r.Headers[rankHeader]
		if r.Headers == nil {
			first := hex.EncodeToString(appendUint(nil, uint64(r.Body.Prompt[0])) /* of token_ids */)
			for n := range 2 {
				for _, m := range rec.Ranks[fmt.Sprintf("rank%d", n)].Messages {
					if strings.Contains(m.Frames[2], "dc0040"+first) {
						rank = strconv.Itoa(n)
					}
				}
			}
		}
		body := fmt.Sprintf(`{"max_tokens":1,"prompt":%s}`, strings.ReplaceAll(fmt.Sprint(r.Body.Prompt), " ", ","))
		if status, reply := postJSON(t, c, e, "/v1/completions", body, rankHeader, rank); status != rec.Responses[i].Status {
			t.Errorf("request %d to rank %q: status %d, want %d: %s", i, rank, status, rec.Responses[i].Status, reply)
		}
	}
	seen := 0
	for n, r := range e.ranks {
		name := fmt.Sprintf("rank%d", n)
		_, payloads := r.pub.since(0)
		if len(payloads) != len(rec.Ranks[name].Messages) {
			t.Fatalf("%s: %d messages, want %d", name, len(payloads), len(rec.Ranks[name].Messages))
		}
		for i, m := range rec.Ranks[name].Messages {
			want, err := hex.DecodeString(m.Frames[2])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(withoutTime(want), withoutTime(payloads[i])); diff != "" {
				t.Errorf("%s: message %d (-want +got):\n%s", name, i, diff)
			}
			seen++
		}
		host, port, _ := net.SplitHostPort(e.ReplayAddr())
		base, _ := strconv.Atoi(port)
		replies := newDealer(t, net.JoinHostPort(host, strconv.Itoa(base+n)), "DEALER").replay(t, 0)
		for i, want := range rec.Replay[name].Replies {
			for f := range want.Frames {
				if f == 3 && want.Frames[3] != "" { // but for the time
					want.Frames[3], replies[i][3] = want.Frames[3][20:], replies[i][3][20:]
				}
			}
			if diff := cmp.Diff(want.Frames, replies[i]); diff != "" {
				t.Errorf("%s: reply %d (-want +got):\n%s", name, i, diff)
			}
		}
	}
	if seen != 7 {
		t.Errorf("%d messages compared, want 7", seen)
	}

	// The real engine's addresses, with the ports that were free here.
	var sources map[string]eventSource
	if _, body := getBody(t, c, e, "/kv_event_sources"); json.Unmarshal([]byte(body), &sources) != nil {
		t.Fatalf("sources: %s", body)
	}
	ports := func(addr string, rank int) string {
		_, port, _ := net.SplitHostPort(addr)
		n, _ := strconv.Atoi(port)
		return fmt.Sprintf("tcp://127.0.0.1:%d", n+rank)
	}
	want := rec.Sources
	for name, s := range want {
		n, _ := strconv.Atoi(name)
		s.Endpoint, s.ReplayEndpoint = ports(e.EventsAddr(), n), ptr(ports(e.ReplayAddr(), n))
		want[name] = s
	}
	if diff := cmp.Diff(want, sources); diff != "" {
		t.Errorf("sources (-want +got):\n%s", diff)
	}
}

func TestAtRank(t *testing.T) {
	for _, tc := range []struct {
		endpoint, bound string
		rank            int
		want            string
	}{
		{"tcp://*:18857", "[::]:18857", 1, "tcp://*:18858"},
		{"tcp://[::1]:5557", "", 3, "tcp://[::1]:5560"},
		{"tcp://*:0", "[::]:4000", 2, "tcp://*:4002"},
	} {
		if got := atRank(tc.endpoint, tc.bound, tc.rank); got != tc.want {
			t.Errorf("atRank(%q, %q, %d) = %q, want %q", tc.endpoint, tc.bound, tc.rank, got, tc.want)
		}
	}
}

// TestPick wants requests without a rank to be spread, and the header to be read as vLLM does.
func TestPick(t *testing.T) {
	e, err := New(Options{Ranks: 4})
	if err != nil {
		t.Fatal(err)
	}
	hash := newHasher(&e.opts)
	served := make(map[*rank]int)
	for range 40 {
		r, bad := e.pick(http.Header{})
		if bad != nil {
			t.Fatal(bad.Message)
		}
		served[r]++
		r.loop.submit([]*sequence{newSequence(hash, nil, "", make([]uint32, 20), 1)})
	}
	e.ranks[2].loop.sched.waiting = nil
	if r, _ := e.pick(http.Header{}); r != e.ranks[2] {
		t.Error("the idle rank was not picked")
	}
	for i, r := range e.ranks {
		if served[r] != 10 {
			t.Errorf("rank %d: %d requests, want 10", i, served[r])
		}
	}
	for header, want := range map[string]int{"0": 0, "3": 3, "+1": 1, "4": -1, "-1": -1, "99999999999999999999": -1} {
		r, bad := e.pick(http.Header{"X-Data-Parallel-Rank": {header}})
		switch {
		case want < 0 && (bad == nil || bad.Status != http.StatusBadRequest || !strings.Contains(bad.Message, "out of range [0, 4)")):
			t.Errorf("rank %q: %v", header, bad)
		case want >= 0 && (bad != nil || r != e.ranks[want]):
			t.Errorf("rank %q was not picked: %v", header, bad)
		}
	}
	if r, bad := e.pick(http.Header{"X-Data-Parallel-Rank": {"two"}}); bad != nil || r == nil {
		t.Errorf("a rank that is no number: %v", bad)
	}
}

// TestRankMetrics wants one series for each rank.
func TestRankMetrics(t *testing.T) {
	e := start(t, Options{Ranks: 2, HashAlgo: SHA256})
	c := newClient(t)
	postJSON(t, c, e, "/v1/completions", fmt.Sprintf(`{"max_tokens":1,"prompt":%s}`, tokenList(40, 1)), rankHeader, "1")
	_, body := getBody(t, c, e, "/metrics")
	for _, want := range []string{
		`vllm:prompt_tokens_total{engine="0",model_name="tiny"} 0`,
		`vllm:prompt_tokens_total{engine="1",model_name="tiny"} 40`,
		`vllm:time_to_first_token_seconds_count{engine="0",model_name="tiny"} 0`,
		`vllm:time_to_first_token_seconds_count{engine="1",model_name="tiny"} 1`,
		`prefix_caching_hash_algo="sha256"`,
	} {
		if !strings.Contains(body, want) {
			t.Errorf("no %s in\n%s", want, body)
		}
	}
}

// TestDefaultHashes wants the hashes that a real engine without hash settings published for the same prompts.
func TestDefaultHashes(t *testing.T) {
	for file, seed := range map[string]string{"default_unset_int": "", "default_seed0_bytes": "0"} {
		data, err := os.ReadFile("../blockhash/testdata/" + file + ".json")
		if err != nil {
			t.Fatal(err)
		}
		var rec recording
		if err := json.Unmarshal(data, &rec); err != nil {
			t.Fatal(err)
		}
		form := HashInt
		if seed != "" {
			form = HashBytes
		}
		o, err := Options{BlockSize: 32, Seed: seed, HashAlgo: SHA256, Events: Events{Hashes: form}}.withDefaults()
		if err != nil {
			t.Fatal(err)
		}
		r := &replay{
			sched:  scheduler{blockSize: 32, maxStepTokens: 2048, maxRunning: 256, cache: newCache(1000, Map)},
			hasher: newHasher(&o), encoder: encoder{format: Map, hashes: form}, adapter: &adapter{},
		}
		r.adapter.name = "none"
		r.run(t, &rec)
		if len(r.payloads) == 0 || len(r.payloads) != len(rec.Messages) {
			t.Fatalf("%s: %d messages, want %d", file, len(r.payloads), len(rec.Messages))
		}
		for i, m := range rec.Messages {
			want, err := hex.DecodeString(m.Frames[2])
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(withoutTime(want), withoutTime(r.payloads[i])); diff != "" {
				t.Errorf("%s: message %d (-want +got):\n%s", file, i, diff)
			}
		}
	}
}
