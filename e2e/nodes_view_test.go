package e2e

import (
	"encoding/json"
	"fmt"
	"net/http"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// viewed is what a router says of an endpoint.
type viewed struct {
	Address   string `json:"address"`
	Healthy   bool   `json:"healthy"`
	Draining  bool   `json:"draining"`
	Connected bool   `json:"connected"`
	Matchable bool   `json:"matchable"`
	Problem   string `json:"problem"`
	Blocks    int    `json:"blocks"`
	Backlog   int    `json:"backlog_tokens"`
}

// view asks a router for its endpoints by address; none when it does not answer.
func view(t *testing.T, r *lab.Router) map[string]viewed {
	t.Helper()
	client := http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Get(r.Admin + "/api/v1/state")
	if err != nil {
		t.Log(err)
		return nil
	}
	defer resp.Body.Close()
	var state struct {
		Pools []struct {
			Endpoints []viewed `json:"endpoints"`
		} `json:"pools"`
	}
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
		t.Log(err)
		return nil
	}
	all := map[string]viewed{}
	for _, p := range state.Pools {
		for _, e := range p.Endpoints {
			all[e.Address] = e
		}
	}
	return all
}

// heardAgo is how long ago a router heard a node's last message; zero when it does not answer or does not know the node.
func heardAgo(t *testing.T, r *lab.Router, n *lab.Node) time.Duration {
	t.Helper()
	var state struct {
		Nodes []struct {
			Address string  `json:"address"`
			Heard   float64 `json:"heard_seconds_ago"`
		} `json:"nodes"`
	}
	resp, err := http.Get(r.Admin + "/api/v1/state")
	if err != nil {
		t.Log(err)
		return 0
	}
	defer resp.Body.Close()
	if err := json.NewDecoder(resp.Body).Decode(&state); err != nil {
		t.Log(err)
	}
	for _, one := range state.Nodes {
		if one.Address == n.Addr {
			return time.Duration(one.Heard * float64(time.Second))
		}
	}
	return 0
}

// matchable waits until a router matches, or does not match, blocks of all these engines.
func matchable(t *testing.T, r *lab.Router, engines []*lab.Engine, want bool) {
	t.Helper()
	var last map[string]viewed
	defer func() {
		if t.Failed() {
			t.Logf("%+v", last)
		}
	}()
	eventually(t, fmt.Sprintf("matchable %v at %s", want, r.Admin), func() bool {
		last = view(t, r)
		for _, e := range engines {
			if v, ok := last[e.Address]; !ok || v.Matchable != want {
				return false
			}
		}
		return true
	})
}
