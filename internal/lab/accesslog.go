package lab

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"time"
)

// LogEntry is one request of Envoy's access log. What the router said is empty when it said nothing.
type LogEntry struct {
	Path      string `json:"path"`
	Code      int    `json:"code"`
	Flags     string `json:"flags"`
	Details   string `json:"details"`
	Attempts  int    `json:"attempts"`
	Cluster   string `json:"cluster"`
	Upstream  string `json:"upstream"` // ip:port that answered
	RequestID string `json:"request_id"`

	DecisionID string  `json:"decision_id"`
	Pool       string  `json:"pool"`
	Endpoint   string  `json:"endpoint"`
	Reason     string  `json:"reason"`
	Matched    float64 `json:"matched_tokens"`
	Prompt     float64 `json:"prompt_tokens"`
}

// ReadLog returns the entries of the site's access log once it holds at least want of them: Envoy flushes it in the background.
func (s *Site) ReadLog(ctx context.Context, want int) ([]LogEntry, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, fmt.Errorf("it holds fewer than %d requests", want))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for {
		entries, err := readLog(s.AccessLog)
		if err != nil {
			return nil, err
		}
		if len(entries) >= want {
			return entries, nil
		}
		select {
		case <-ctx.Done():
			return entries, fmt.Errorf("read %s: %w", s.AccessLog, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

func readLog(path string) ([]LogEntry, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read Envoy's access log: %w", err)
	}
	defer f.Close()
	var entries []LogEntry
	lines := bufio.NewScanner(f)
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		var e LogEntry
		if json.Unmarshal(lines.Bytes(), &e) != nil {
			break // a line that is still being written
		}
		entries = append(entries, e)
	}
	return entries, lines.Err()
}
