package lab

import (
	"context"
	"errors"
	"fmt"
	"syscall"
	"time"
)

// Start runs a program that is not part of a site, with its output appended to DIR/name.log. It ends with the lab.
func (l *Lab) Start(name string, argv ...string) (*Process, error) { return l.start(name, argv...) }

// Until polls ready until it is true, the process ends, or ctx ends; the error then has the end of the process's log.
func (p *Process) Until(ctx context.Context, what string, ready func() bool) error {
	return p.until(ctx, what, ready)
}

// SignalGroup sends sig to the process and to all that it started and that stayed in its group.
func (p *Process) SignalGroup(sig syscall.Signal) error {
	if err := syscall.Kill(-p.PID(), sig); err != nil && !errors.Is(err, syscall.ESRCH) {
		return fmt.Errorf("signal %s: %w", p.Name, err)
	}
	return nil
}

// Answers reports whether a GET of url has status 200.
func Answers(ctx context.Context, url string) bool { return answers(ctx, url) }

// Wait returns after d, or with false when ctx ends.
func Wait(ctx context.Context, d time.Duration) bool {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-t.C:
		return true
	case <-ctx.Done():
		return false
	}
}
