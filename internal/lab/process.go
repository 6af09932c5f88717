package lab

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"sync"
	"syscall"
	"time"
)

// stopGrace is how long a process may take to end after SIGTERM before it is killed.
const stopGrace = 5 * time.Second

// Process is one running child. Its output goes to a log file.
type Process struct {
	Name string
	Log  string // path of the file with its standard output and error

	cmd  *exec.Cmd
	done chan struct{} // closed when the process has ended and was reaped
}

// spawner starts every child from one operating system thread that lives as long as the lab: the kernel ties a child's
// parent-death signal to the thread that started it, not to the process.
type spawner struct {
	jobs chan func()
	once sync.Once
}

func newSpawner() *spawner {
	s := &spawner{jobs: make(chan func())}
	go func() {
		runtime.LockOSThread()
		for job := range s.jobs {
			job()
		}
	}()
	return s
}

func (s *spawner) start(cmd *exec.Cmd) error {
	result := make(chan error)
	s.jobs <- func() { result <- cmd.Start() }
	return <-result
}

func (s *spawner) close() { s.once.Do(func() { close(s.jobs) }) }

// start runs argv with its output appended to DIR/name.log.
func (l *Lab) start(name string, argv ...string) (*Process, error) {
	p := &Process{Name: name, Log: filepath.Join(l.opt.Dir, name+".log"), done: make(chan struct{})}
	out, err := os.OpenFile(p.Log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	defer out.Close()
	p.cmd = exec.Command(argv[0], argv[1:]...)
	p.cmd.Stdout, p.cmd.Stderr = out, out
	p.cmd.SysProcAttr = childAttributes()
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("start %s: the lab is closed", name)
	}
	if err := l.spawn.start(p.cmd); err != nil {
		return nil, fmt.Errorf("start %s: %w", name, err)
	}
	l.processes = append(l.processes, p)
	go func() {
		_ = p.cmd.Wait() // how it ended is for its log; callers look at Ended
		close(p.done)
	}()
	return p, nil
}

// Ended is closed when the process has ended.
func (p *Process) Ended() <-chan struct{} { return p.done }

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends sig to the process; a process that has ended is no error.
func (p *Process) Signal(sig syscall.Signal) error {
	if err := p.cmd.Process.Signal(sig); err != nil && !errors.Is(err, os.ErrProcessDone) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Pause stops the process as a hang would.
func (p *Process) Pause() error { return p.Signal(syscall.SIGSTOP) }

// Resume lets a paused process go on.
func (p *Process) Resume() error { return p.Signal(syscall.SIGCONT) }

// Kill ends the process at once, as a crash would, and waits for its end.
func (p *Process) Kill() {
	_ = p.cmd.Process.Kill()
	<-p.done
}

// Stop asks the process to end, kills it after a grace period, and waits for its end.
func (p *Process) Stop() {
	_ = p.Signal(syscall.SIGTERM)
	_ = p.Signal(syscall.SIGCONT) // a stopped process would not see SIGTERM
	t := time.NewTimer(stopGrace)
	defer t.Stop()
	select {
	case <-p.done:
	case <-t.C:
		p.Kill()
	}
}

// Tail returns the last lines of the process's log, for error messages.
func (p *Process) Tail() string {
	f, err := os.Open(p.Log)
	if err != nil {
		return ""
	}
	defer f.Close()
	if info, err := f.Stat(); err == nil && info.Size() > 4096 {
		_, _ = f.Seek(-4096, io.SeekEnd)
	}
	text, _ := io.ReadAll(f)
	lines := strings.Split(string(bytes.TrimSpace(text)), "\n")
	return strings.Join(lines[max(len(lines)-12, 0):], "\n")
}

// until polls ready until it is true, the process ends, or ctx ends.
func (p *Process) until(ctx context.Context, what string, ready func() bool) error {
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ready() {
		select {
		case <-p.done:
			return fmt.Errorf("%s ended before it was %s; the end of its log:\n%s", p.Name, what, p.Tail())
		case <-ctx.Done():
			return fmt.Errorf("%s is not %s: %w; the end of its log:\n%s", p.Name, what, context.Cause(ctx), p.Tail())
		case <-tick.C:
		}
	}
	return nil
}
