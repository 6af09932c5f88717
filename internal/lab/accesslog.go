package lab

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"
)

// LogEntry is one request of Envoy's access log. What the router said is empty when it said nothing.
type LogEntry struct {
	Start      time.Time `json:"time"` // to the millisecond
	DurationMS int       `json:"duration_ms"`
	Path       string    `json:"path"`
	Code       int       `json:"code"`
	Flags      string    `json:"flags"`
	Details    string    `json:"details"`
	Attempts   int       `json:"attempts"`
	Cluster    string    `json:"cluster"`
	Upstream   string    `json:"upstream"` // ip:port that answered
	RequestID  string    `json:"request_id"`

	DecisionID string  `json:"decision_id"`
	Pool       string  `json:"pool"`
	Mode       string  `json:"mode"`
	Endpoint   string  `json:"endpoint"`
	Rung       string  `json:"rung"`
	Reason     string  `json:"reason"`
	Matched    float64 `json:"matched_tokens"`
	Prompt     float64 `json:"prompt_tokens"`
	Rank       *int    `json:"rank"` // data-parallel rank that was chosen, nil for none
}

// End is when the request ended.
func (e LogEntry) End() time.Time {
	return e.Start.Add(time.Duration(e.DurationMS) * time.Millisecond)
}

// ReadLog returns the entries of the site's access log once it holds at least want of them: Envoy flushes it in the background.
func (s *Site) ReadLog(ctx context.Context, want int) ([]LogEntry, error) {
	ctx, cancel := context.WithTimeoutCause(ctx, 5*time.Second, fmt.Errorf("it holds fewer than %d requests", want))
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	log := s.FollowLog()
	var entries []LogEntry
	for {
		more, err := log.Next()
		if err != nil {
			return nil, err
		}
		if entries = append(entries, more...); len(entries) >= want {
			return entries, nil
		}
		select {
		case <-ctx.Done():
			return entries, fmt.Errorf("read %s: %w", s.AccessLog, context.Cause(ctx))
		case <-tick.C:
		}
	}
}

// LogReader reads an access log while it grows.
type LogReader struct {
	path   string
	offset int64 // of the first line not returned
}

// FollowLog returns a reader that begins with the site's first request.
func (s *Site) FollowLog() *LogReader { return &LogReader{path: s.AccessLog} }

// Next returns the entries written since the last call.
func (r *LogReader) Next() ([]LogEntry, error) {
	f, err := os.Open(r.path)
	if err != nil {
		return nil, fmt.Errorf("read Envoy's access log: %w", err)
	}
	defer f.Close()
	text, err := io.ReadAll(io.NewSectionReader(f, r.offset, 1<<30))
	if err != nil {
		return nil, fmt.Errorf("read Envoy's access log: %w", err)
	}
	var entries []LogEntry
	for {
		line, rest, whole := bytes.Cut(text, []byte("\n"))
		if !whole {
			return entries, nil
		}
		var e LogEntry
		if err := json.Unmarshal(line, &e); err != nil {
			return entries, fmt.Errorf("read Envoy's access log: line %q: %w", line, err)
		}
		entries = append(entries, e)
		r.offset += int64(len(line)) + 1
		text = rest
	}
}
