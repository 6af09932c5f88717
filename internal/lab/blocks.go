package lab

import (
	"bufio"
	"context"
	"fmt"
	"net/http"
	"net/url"
	"time"
)

// Blocks is a set of blocks, each a line of rank, tier and fingerprint.
type Blocks map[string]bool

// Blocks returns what the engine's caches hold, by fingerprints of its pool.
func (e *Engine) Blocks(ctx context.Context) (Blocks, error) {
	return readBlocks(ctx, e.client, e.URL()+"/sim/blocks?pool="+url.QueryEscape(e.Pool))
}

// Blocks returns what the router believes an endpoint to hold.
func (r *Router) Blocks(ctx context.Context, endpoint string) (Blocks, error) {
	return readBlocks(ctx, probe, r.Admin+"/api/v1/endpoints/"+url.PathEscape(endpoint)+"/blocks")
}

func readBlocks(ctx context.Context, client *http.Client, url string) (Blocks, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	patient := *client
	patient.Timeout = 10 * time.Second // a list is long beside an answer to a probe
	resp, err := patient.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != http.StatusOK {
		return nil, fmt.Errorf("read %s: status %d", url, resp.StatusCode)
	}
	all := Blocks{}
	lines := bufio.NewScanner(resp.Body)
	for lines.Scan() {
		all[lines.Text()] = true
	}
	if err := lines.Err(); err != nil {
		return nil, fmt.Errorf("read %s: %w", url, err)
	}
	return all, nil
}

// Lacks counts the blocks of other that b lacks.
func (b Blocks) Lacks(other Blocks) int {
	n := 0
	for block := range other {
		if !b[block] {
			n++
		}
	}
	return n
}
