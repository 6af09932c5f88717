package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// demoPorts is how many ports the demo uses.
const demoPorts = 29

func startDemo(t *testing.T, port, conversations int, args ...string) *command {
	t.Helper()
	argv := append([]string{binaries.kvsteer, "demo", "--port", fmt.Sprint(port), "--conversations", fmt.Sprint(conversations)}, args...)
	return startCommand(t, t.TempDir(), []string{"ENVOY=" + binaries.envoy[envoyNewest]}, argv...)
}

type demoReport struct {
	Arms []struct {
		Name        string  `json:"name"`
		Requests    int     `json:"requests"`
		Errors      int     `json:"errors"`
		CachedShare float64 `json:"cached_share"`
		TTFT        struct {
			Mean float64 `json:"mean"`
			P50  float64 `json:"p50"`
			P90  float64 `json:"p90"`
		} `json:"ttft_ms"`
		PerEndpoint map[string]int `json:"per_endpoint"`
	} `json:"arms"`
}

// TestDemo runs the demo as a user does and reads its figures.
func TestDemo(t *testing.T) {
	t.Parallel() // mostly waiting
	file := filepath.Join(t.TempDir(), "figures.json")
	demo := startDemo(t, freeRange(t, demoPorts), 12, "--json", file)
	if status := demo.wait(t, 2*time.Minute); status != 0 {
		t.Fatalf("exit status %d", status)
	}
	demo.requireGone(t, time.Second)
	if left := entries(t, demo.temp); len(left) > 0 {
		t.Errorf("temporary files are left: %q", left)
	}
	text := demo.text()
	for _, want := range []string{"12 conversations", "prompt tokens from cache", "TTFT p90", "requests per replica", "--keep", file} {
		if !strings.Contains(text, want) {
			t.Errorf("the output lacks %q", want)
		}
	}

	f, err := os.Open(file)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	var report demoReport
	decoder := json.NewDecoder(f)
	decoder.DisallowUnknownFields()
	if err := decoder.Decode(&report); err != nil {
		t.Fatal(err)
	}
	if len(report.Arms) != 3 || report.Arms[0].Name != "kvsteer" || report.Arms[1].Name != "no-engine-changes" || report.Arms[2].Name != "round-robin" {
		t.Fatalf("arms: %+v", report.Arms)
	}
	for _, a := range report.Arms {
		answered := 0
		for _, n := range a.PerEndpoint {
			answered += n
		}
		if a.Errors != 0 || a.Requests < 24 || a.Requests != report.Arms[0].Requests || answered != a.Requests || len(a.PerEndpoint) != 4 {
			t.Errorf("requests: %+v", a)
		}
		if a.TTFT.P50 <= 0 || a.TTFT.P90 < a.TTFT.P50 || a.TTFT.Mean <= 0 {
			t.Errorf("times to first token: %+v", a)
		}
	}
	steered, silent, plain := report.Arms[0].CachedShare, report.Arms[1].CachedShare, report.Arms[2].CachedShare
	if min(steered, silent) <= plain || max(steered, silent) > 1 || plain <= 0 {
		t.Errorf("cached share %.3f with kvsteer, %.3f without events and %.3f without kvsteer", steered, silent, plain)
	}
}

// TestDemoLeavesNothingBehind ends the demo at several moments, by Ctrl-C and by a kill that it cannot see.
func TestDemoLeavesNothingBehind(t *testing.T) {
	t.Parallel()
	tests := []struct {
		name, after string
		args        []string
		signal      syscall.Signal
		status      int
	}{
		{"starting", "kvsteer demo:", nil, syscall.SIGINT, 130},
		{"first arm", "kvsteer       ", nil, syscall.SIGINT, 130},
		{"second arm", "no-engine-changes ", nil, syscall.SIGINT, 130},
		{"terminated", "kvsteer       ", nil, syscall.SIGTERM, 130},
		{"kept", "running until Ctrl-C", []string{"--keep"}, syscall.SIGINT, 0},
		{"killed", "kvsteer       ", nil, syscall.SIGKILL, -1},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel() // mostly waiting
			demo := startDemo(t, freeRange(t, demoPorts), 2, tt.args...)
			demo.until(t, tt.after)
			if len(demo.running(t)) == 0 {
				t.Fatal("no process of the demo is found")
			}
			if err := demo.cmd.Process.Signal(tt.signal); err != nil {
				t.Fatal(err)
			}
			if status := demo.wait(t, 10*time.Second); status != tt.status {
				t.Errorf("exit status %d, want %d", status, tt.status)
			}
			demo.requireGone(t, 10*time.Second)
			if left := entries(t, demo.temp); len(left) > 0 && tt.signal != syscall.SIGKILL {
				t.Errorf("temporary files are left: %q", left)
			}
		})
	}
}

// TestDemoPortTaken wants a message that says what to do.
func TestDemoPortTaken(t *testing.T) {
	t.Parallel()
	base := freeRange(t, demoPorts)
	l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", base+5))
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	demo := startDemo(t, base, 2)
	if status := demo.wait(t, 30*time.Second); status != 1 {
		t.Errorf("exit status %d, want 1", status)
	}
	want := fmt.Sprintf("127.0.0.1:%d: port is in use: the demo needs the ports %d to %d", base+5, base, base+demoPorts-1)
	if text := demo.text(); !strings.Contains(text, want) || !strings.Contains(text, "--port") {
		t.Errorf("the output lacks %q", want)
	}
	demo.requireGone(t, 10*time.Second)
}
