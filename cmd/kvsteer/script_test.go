package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/exec"
	"regexp"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/kvsteer/kvsteer/internal/lab"
)

func TestMain(m *testing.M) { testscript.Main(m, map[string]func(){"kvsteer": main}) }

// TestScript runs the sessions in testdata/script. Beside testscript's own commands they have:
//
//	exits CODE COMMAND ARG…   runs a command to its end and wants this exit status
//	port free NAME…           sets variables to TCP ports of loopback that nobody uses
//	port taken NAME…          the same, with a server on each until the script ends
//	socket stale PATH         leaves a Unix socket whose server is gone
//	socket served PATH        leaves one with a server, until the script ends
//	expand FILE…              puts variables' values into files
//	answers STATUS URL        waits until a GET of URL has this status
//	shows URL REGEXP          waits until the answer to a GET of URL has a line that matches; with ! until none has
//	sigterm COMMAND           sends SIGTERM to the kvsteer COMMAND that runs in the background
//	sighup COMMAND            sends SIGHUP to it
//	waits COMMAND ARG…        runs a command again and again until its exit status is 0
//	certificate DIR NAME HOST…  writes DIR/NAME.pem and DIR/NAME.key for these hosts, of the authority in DIR/ca.pem, one for each script
func TestScript(t *testing.T) {
	testscript.Run(t, testscript.Params{
		Dir: "testdata/script",
		Cmds: map[string]func(*testscript.TestScript, bool, []string){
			"exits": exits, "port": port, "socket": socket, "expand": expand, "answers": answers, "shows": shows, "sigterm": signalled("sigterm", syscall.SIGTERM), "sighup": signalled("sighup", syscall.SIGHUP),
			"waits": waits, "certificate": certificate,
		},
		Setup: func(e *testscript.Env) error {
			e.Values[authority{}] = new(*lab.Authority)
			path, err := exec.LookPath("kvsteer")
			e.Setenv("KVSTEER", path) // for scripts that change PATH
			return err
		},
		RequireExplicitExec: true,
	})
}

func use(ts *testscript.TestScript, neg bool, args []string, least int, usage string) {
	if neg || len(args) < least {
		ts.Fatalf("usage: %s", usage)
	}
}

func exits(ts *testscript.TestScript, neg bool, args []string) {
	use(ts, neg, args, 2, "exits CODE COMMAND ARG…")
	want, err := strconv.Atoi(args[0])
	ts.Check(err)
	got := 0
	if err := ts.Exec(args[1], args[2:]...); err != nil {
		exit := new(exec.ExitError)
		if !errors.As(err, &exit) {
			ts.Fatalf("%v", err)
		}
		got = exit.ExitCode()
	}
	if got != want {
		ts.Fatalf("exit status %d, want %d", got, want)
	}
}

func port(ts *testscript.TestScript, neg bool, args []string) {
	use(ts, neg, args, 2, "port free|taken NAME…")
	ports, err := lab.FreePorts(len(args) - 1)
	ts.Check(err)
	for i, name := range args[1:] {
		ts.Setenv(name, strconv.Itoa(ports[i]))
		if args[0] == "taken" {
			l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", ports[i]))
			ts.Check(err)
			ts.Defer(func() { l.Close() })
		}
	}
}

func socket(ts *testscript.TestScript, neg bool, args []string) {
	use(ts, neg, args, 2, "socket stale|served PATH")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Net: "unix", Name: ts.MkAbs(args[1])})
	ts.Check(err)
	if args[0] == "stale" {
		l.SetUnlinkOnClose(false)
		l.Close()
		return
	}
	ts.Defer(func() { l.Close() })
}

func expand(ts *testscript.TestScript, neg bool, args []string) {
	use(ts, neg, args, 1, "expand FILE…")
	for _, name := range args {
		text := os.Expand(ts.ReadFile(name), ts.Getenv)
		ts.Check(os.WriteFile(ts.MkAbs(name), []byte(text), 0o644))
	}
}

func answers(ts *testscript.TestScript, neg bool, args []string) {
	use(ts, neg, args, 2, "answers STATUS URL")
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	last := "no answer"
	for last != args[0] {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, args[1], nil)
		ts.Check(err)
		resp, err := http.DefaultClient.Do(req)
		if err == nil {
			last = fmt.Sprint(resp.StatusCode)
			resp.Body.Close()
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("GET %s: %s, want %s", args[1], last, args[0])
		case <-tick.C:
		}
	}
	http.DefaultClient.CloseIdleConnections()
}

func shows(ts *testscript.TestScript, neg bool, args []string) {
	use(ts, false, args, 2, "[!] shows URL REGEXP")
	pattern, err := regexp.Compile("(?m)" + args[1])
	ts.Check(err)
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	defer http.DefaultClient.CloseIdleConnections()
	for text := ""; ; {
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, args[0], nil)
		ts.Check(err)
		if resp, err := http.DefaultClient.Do(req); err == nil {
			body, err := io.ReadAll(io.LimitReader(resp.Body, 1<<20))
			resp.Body.Close()
			if text = string(body); err == nil && pattern.MatchString(text) != neg {
				return
			}
		}
		select {
		case <-ctx.Done():
			ts.Fatalf("GET %s: %q matches: %v, for 20 s; the answer:\n%s", args[0], args[1], neg, text)
		case <-tick.C:
		}
	}
}

// signalled returns a command that sends a signal to the kvsteer command that is named by its argument and runs in the background.
func signalled(name string, sig syscall.Signal) func(*testscript.TestScript, bool, []string) {
	return func(ts *testscript.TestScript, neg bool, args []string) {
		use(ts, neg, args, 1, name+" COMMAND")
		for _, cmd := range ts.BackgroundCmds() {
			if len(cmd.Args) > 1 && cmd.Args[1] == args[0] {
				ts.Check(cmd.Process.Signal(sig))
				return
			}
		}
		ts.Fatalf("no %s runs in the background", args[0])
	}
}

func waits(ts *testscript.TestScript, neg bool, args []string) {
	use(ts, neg, args, 1, "waits COMMAND ARG…")
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.Now().Add(20 * time.Second); ; <-tick.C {
		err := ts.Exec(args[0], args[1:]...)
		if err == nil {
			return
		}
		if time.Now().After(end) {
			ts.Fatalf("%v", err)
		}
	}
}

// authority is the key of a script's authority.
type authority struct{}

func certificate(ts *testscript.TestScript, neg bool, args []string) {
	use(ts, neg, args, 2, "certificate DIR NAME HOST…")
	a, dir := ts.Value(authority{}).(**lab.Authority), ts.MkAbs(args[0])
	if *a == nil {
		ts.Check(os.MkdirAll(dir, 0o755))
		var err error
		*a, err = lab.NewAuthority(dir, "ca")
		ts.Check(err)
	}
	_, _, err := (*a).Issue(args[1], args[2:]...)
	ts.Check(err)
}
