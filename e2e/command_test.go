package e2e

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// command is a program run as a user would, with all that it starts: everything carries a mark in its environment, by which it is found
// again whatever process group it is in.
type command struct {
	cmd  *exec.Cmd
	mark string
	temp string // its folder for temporary files

	mu     sync.Mutex
	output []string // lines of both streams
	ended  bool     // all output was read
}

// startCommand starts argv in dir. What is left of it when the test ends is killed.
func startCommand(t *testing.T, dir string, environment []string, argv ...string) *command {
	t.Helper()
	c := &command{mark: fmt.Sprintf("KVSTEER_TEST_RUN=%d/%s", os.Getpid(), t.Name()), temp: t.TempDir()}
	c.cmd = exec.Command(argv[0], argv[1:]...)
	c.cmd.Dir = dir
	c.cmd.Env = append(append(os.Environ(), "TMPDIR="+c.temp, c.mark), environment...)
	c.cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	c.cmd.Stdout, c.cmd.Stderr = w, w
	if err := c.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	read := make(chan struct{})
	go func() {
		defer close(read)
		lines := bufio.NewReader(r)
		for {
			line, err := lines.ReadString('\n')
			c.mu.Lock()
			c.output = append(c.output, strings.TrimSuffix(line, "\n"))
			c.ended = err != nil
			c.mu.Unlock()
			if err != nil {
				return
			}
		}
	}()
	t.Cleanup(func() {
		for _, pid := range c.running(t) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
		_ = c.cmd.Wait()
		<-read // ends when the last process that could write has ended
		r.Close()
		if t.Failed() {
			t.Logf("%s:\n%s", strings.Join(argv, " "), c.text())
		}
	})
	return c
}

func (c *command) text() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.output, "\n")
}

// running are the processes of the command that have not ended.
func (c *command) running(t *testing.T) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/environ")
	if err != nil || len(files) == 0 {
		t.Fatalf("no processes in /proc: %v", err)
	}
	var pids []int
	for _, file := range files {
		environment, err := os.ReadFile(file)
		if err != nil || !bytes.Contains(environment, []byte("\x00"+c.mark+"\x00")) {
			continue // ended meanwhile, or another's
		}
		var pid int
		if _, err := fmt.Sscanf(file, "/proc/%d/environ", &pid); err == nil {
			pids = append(pids, pid)
		}
	}
	return pids
}

// until waits for a text in the output.
func (c *command) until(t *testing.T, text string) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(90 * time.Second)
	defer deadline.Stop()
	for !strings.Contains(c.text(), text) {
		c.mu.Lock()
		ended := c.ended
		c.mu.Unlock()
		if ended {
			t.Fatalf("it ended before it said %q", text)
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			t.Fatalf("it does not say %q", text)
		}
	}
}

// wait returns the exit status, -1 for the end by a signal, and fails when it takes longer than limit.
func (c *command) wait(t *testing.T, limit time.Duration) int {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), limit)
	defer cancel()
	stop := context.AfterFunc(ctx, func() { _ = c.cmd.Process.Kill() })
	err := c.cmd.Wait()
	if !stop() {
		t.Fatalf("it runs for longer than %s", limit)
	}
	if exit := new(exec.ExitError); err != nil && !errors.As(err, &exit) {
		t.Fatal(err)
	}
	return c.cmd.ProcessState.ExitCode()
}

// requireGone wants no process of the command left within limit.
func (c *command) requireGone(t *testing.T, limit time.Duration) {
	t.Helper()
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	deadline := time.NewTimer(limit)
	defer deadline.Stop()
	for {
		left := c.running(t)
		if len(left) == 0 {
			return
		}
		select {
		case <-tick.C:
		case <-deadline.C:
			for _, pid := range left {
				name, _ := os.ReadFile(fmt.Sprintf("/proc/%d/cmdline", pid))
				t.Errorf("left behind after %s: %d %s", limit, pid, bytes.ReplaceAll(name, []byte{0}, []byte{' '}))
			}
			return
		}
	}
}

// freeRange finds n consecutive free ports below those that the system hands out, and returns the first.
func freeRange(t *testing.T, n int) int {
	t.Helper()
	for base := 12000 + os.Getpid()%5000; base < 28000; base += n {
		if portRanges.taken(base) {
			continue
		}
		if lab.CheckPorts(base, n) == nil {
			return base
		}
	}
	t.Fatalf("no %d free ports in a row", n)
	return 0
}

// portRanges remembers the ranges that were given out, since they are used only later.
var portRanges ranges

type ranges struct {
	mu    sync.Mutex
	given map[int]bool
}

func (r *ranges) taken(base int) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if r.given == nil {
		r.given = map[int]bool{}
	}
	was := r.given[base]
	r.given[base] = true
	return was
}

func entries(t *testing.T, dir string) []string {
	t.Helper()
	f, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	names, err := f.Readdirnames(-1)
	if err != nil && !errors.Is(err, io.EOF) {
		t.Fatal(err)
	}
	return names
}
