package lab

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"
)

// TestSignalGroup ends a program with what it started.
func TestSignalGroup(t *testing.T) {
	l := shell(t)
	file := filepath.Join(t.TempDir(), "child")
	p, err := l.Start("parent", script(t, fmt.Sprintf("sleep 600 & echo $! >%[1]s.part; mv %[1]s.part %[1]s; wait", file)))
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), deadline)
	defer cancel()
	var child int
	if err := p.Until(ctx, "a parent", func() bool {
		text, err := os.ReadFile(file)
		child, _ = strconv.Atoi(strings.TrimSpace(string(text)))
		return err == nil
	}); err != nil || child == 0 {
		t.Fatalf("child %d, %v", child, err)
	}
	if err := p.SignalGroup(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	<-p.Ended()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	for running(child) {
		select {
		case <-ctx.Done():
			t.Fatalf("process %d runs on", child)
		case <-tick.C:
		}
	}
	if err := p.SignalGroup(syscall.SIGTERM); err != nil {
		t.Errorf("a group that has ended: %v", err)
	}
	if err := p.Until(ctx, "there", func() bool { return false }); err == nil || !strings.Contains(err.Error(), "ended before it was there") {
		t.Errorf("waiting for a program that has ended: %v", err)
	}
}

// running reports whether a process is there and no zombie that nobody has reaped yet.
func running(pid int) bool {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	_, state, _ := strings.Cut(string(text), ") ")
	return err == nil && !strings.HasPrefix(state, "Z")
}

func TestStartFails(t *testing.T) {
	l := shell(t)
	if _, err := l.Start("none", "/nothing"); err == nil {
		t.Error("a program that is not there gives no error")
	}
	l.Close()
	if _, err := l.Start("late", "/bin/true"); err == nil {
		t.Error("a closed lab starts a program")
	}
}

func TestAnswers(t *testing.T) {
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path != "/health" {
			http.NotFound(w, r)
		}
	}))
	defer server.Close()
	for url, want := range map[string]bool{server.URL + "/health": true, server.URL + "/other": false, "http://127.0.0.1:1/health": false, "::": false} {
		if got := Answers(t.Context(), url); got != want {
			t.Errorf("%s: %v, want %v", url, got, want)
		}
	}
}
