package lab

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"
)

// shell returns a lab whose programs are the shell.
func shell(t *testing.T) *Lab {
	t.Helper()
	l, err := New(Options{Kvsteer: "/bin/sh", Envoy: "/bin/sh", Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(l.Close)
	return l
}

// script writes an executable shell script.
func script(t *testing.T, text string) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "script")
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"+text), 0o755); err != nil {
		t.Fatal(err)
	}
	return path
}

func listen(t *testing.T) net.Listener {
	t.Helper()
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func port(l net.Listener) int { return l.Addr().(*net.TCPAddr).Port }

func TestNew(t *testing.T) {
	dir := t.TempDir()
	for name, o := range map[string]Options{
		"no kvsteer":       {Envoy: "/bin/sh", Dir: dir},
		"no Envoy":         {Kvsteer: "/bin/sh", Dir: dir},
		"kvsteer missing":  {Kvsteer: dir + "/none", Envoy: "/bin/sh", Dir: dir},
		"folder missing":   {Kvsteer: "/bin/sh", Envoy: "/bin/sh", Dir: dir + "/none"},
		"folder is a file": {Kvsteer: "/bin/sh", Envoy: "/bin/sh", Dir: "/bin/sh"},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
}

func TestEnvoyVersion(t *testing.T) {
	for _, tt := range []struct{ name, script, want string }{
		{"release", `echo; echo "$0  version: 7b8baff1758f0a584dcc3cb657b5032000bcb3d7/1.40.0/Clean/RELEASE/BoringSSL"`, "1.40.0"},
		{"development", `echo "envoy  version: 0000/1.41.0-dev/Modified/DEBUG/BoringSSL"`, "1.41.0-dev"},
		{"another program", `echo "curl 7.88.1"`, ""},
		{"short", `echo "envoy version: 7b8b"`, ""},
		{"nothing", `:`, ""},
		{"failure", `exit 3`, ""},
	} {
		t.Run(tt.name, func(t *testing.T) {
			got, err := EnvoyVersion(t.Context(), script(t, tt.script))
			if got != tt.want || (err == nil) != (tt.want != "") {
				t.Errorf("version %q, %v; want %q", got, err, tt.want)
			}
		})
	}
	if _, err := EnvoyVersion(t.Context(), "/none"); err == nil {
		t.Error("a binary that is not there gives no error")
	}
}

func TestPorts(t *testing.T) {
	ports, err := FreePorts(3)
	if err != nil || len(ports) != 3 || ports[0] == ports[1] || ports[1] == ports[2] || ports[0] == ports[2] {
		t.Fatalf("%v, %v; want three different ports", ports, err)
	}
	l := listen(t)
	port := port(l)
	if err := CheckPorts(port, 1); !errors.Is(err, ErrPortTaken) || !strings.Contains(err.Error(), fmt.Sprint(port)) {
		t.Errorf("taken: %v, want %v with the port", err, ErrPortTaken)
	}
	l.Close()
	if err := CheckPorts(port, 1); err != nil {
		t.Errorf("free again: %v", err)
	}
	for _, base := range []int{65536, -1, 1 << 20} {
		if err := CheckPorts(base, 1); err == nil || errors.Is(err, ErrPortTaken) {
			t.Errorf("port %d: %v, want another error than that it is taken", base, err)
		}
	}
}

func TestTail(t *testing.T) {
	var lines []string
	for i := range 1000 {
		lines = append(lines, fmt.Sprintf("line %d", i))
	}
	for _, tt := range []struct{ name, text, want string }{
		{"nothing", "", ""},
		{"one line", "end\n", "end"},
		{"no newline at the end", "a\nb", "a\nb"},
		{"blank lines around", "\n\na\n\n", "a"},
		{"twelve lines", strings.Join(lines[:12], "\n"), strings.Join(lines[:12], "\n")},
		{"more", strings.Join(lines, "\n") + "\n", strings.Join(lines[988:], "\n")},
		{"one long line", strings.Repeat("x", 10_000), strings.Repeat("x", 4096)},
	} {
		t.Run(tt.name, func(t *testing.T) {
			p := &Process{Log: filepath.Join(t.TempDir(), "log")}
			if err := os.WriteFile(p.Log, []byte(tt.text), 0o644); err != nil {
				t.Fatal(err)
			}
			if got := p.Tail(); got != tt.want {
				t.Errorf("tail %q, want %q", got, tt.want)
			}
		})
	}
	if got := (&Process{Log: "/none/none"}).Tail(); got != "" {
		t.Errorf("no log: %q", got)
	}
}

func TestProcess(t *testing.T) {
	never := func() bool { return false }
	t.Run("ready", func(t *testing.T) {
		l := shell(t)
		p, err := l.start("a", "/bin/sh", "-c", "echo up; exec sleep 60")
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), deadline)
		defer cancel()
		if err := p.until(ctx, "up", func() bool { return p.Tail() == "up" }); err != nil {
			t.Error(err)
		}
		if err := syscall.Kill(p.PID(), 0); err != nil {
			t.Errorf("process %d: %v", p.PID(), err)
		}
		l.Close()
		<-p.Ended()
		if err := p.Signal(syscall.SIGTERM); err != nil {
			t.Errorf("a signal after the end: %v", err)
		}
		if _, err := l.start("b", "/bin/sh"); err == nil {
			t.Error("a closed lab starts a process")
		}
		l.Close()
	})
	t.Run("ends early", func(t *testing.T) {
		p, err := shell(t).start("a", "/bin/sh", "-c", "echo port is taken; exit 1")
		if err != nil {
			t.Fatal(err)
		}
		err = p.until(t.Context(), "ready", never)
		if err == nil || !strings.Contains(err.Error(), "a ended before it was ready") || !strings.Contains(err.Error(), "port is taken") {
			t.Errorf("error %v, want the end of its log", err)
		}
	})
	t.Run("never ready", func(t *testing.T) {
		p, err := shell(t).start("a", "/bin/sleep", "60")
		if err != nil {
			t.Fatal(err)
		}
		why := errors.New("too slow")
		ctx, cancel := context.WithTimeoutCause(t.Context(), 30*time.Millisecond, why)
		defer cancel()
		if err := p.until(ctx, "ready", never); !errors.Is(err, why) {
			t.Errorf("error %v, want %v", err, why)
		}
		p.Kill()
		<-p.Ended()
	})
	t.Run("stopped processes end too", func(t *testing.T) {
		p, err := shell(t).start("a", "/bin/sleep", "60")
		if err != nil {
			t.Fatal(err)
		}
		if err := p.Signal(syscall.SIGSTOP); err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		p.Stop()
		if took := time.Since(began); took >= stopGrace {
			t.Errorf("it took %v: SIGTERM was not seen", took)
		}
	})
	t.Run("no such program", func(t *testing.T) {
		if _, err := shell(t).start("a", "/none"); err == nil {
			t.Error("no error")
		}
	})
}

// A folder too deep for the router's socket is told before anything is started.
func TestSocketPathIsChecked(t *testing.T) {
	dir := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	if err := os.Mkdir(dir, 0o755); err != nil {
		t.Fatal(err)
	}
	l, err := New(Options{Kvsteer: "/bin/false", Envoy: "/bin/false", Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, err = l.StartSite(t.Context(), SiteOptions{Pools: []PoolOptions{{Name: "chat", Model: "sim", Engines: 1}}})
	if err == nil || !strings.Contains(err.Error(), "socket") || len(l.processes) > 0 {
		t.Errorf("error %v, %d processes; want one about the socket before any is started", err, len(l.processes))
	}
}

func TestSitePorts(t *testing.T) {
	o := SiteOptions{Pools: []PoolOptions{{Engines: 4}, {Engines: 1}}}
	if got := (SiteOptions{Routers: 2, Pools: []PoolOptions{{Engines: 2, Replay: true, Ranks: 3}, {Engines: 1, Silent: true}}}).Ports(); got != 6+2*7+1 {
		t.Errorf("%d ports, want 21", got)
	}
	if got := (SiteOptions{Nodes: 3, Pools: []PoolOptions{{Engines: 6, Replay: true}}}).Ports(); got != 3+2*3+3*6 {
		t.Errorf("%d ports, want 27", got)
	}
	if got := o.Ports(); got != 3+2*5 {
		t.Errorf("%d ports, want 13", got)
	}
	free, err := sitePorts(o)
	if err != nil || len(free) != o.Ports() {
		t.Errorf("%d free ports, %v", len(free), err)
	}
	l := listen(t)
	defer l.Close()
	o.BasePort = port(l) - 1
	if _, err := sitePorts(o); err == nil {
		t.Error("a taken port gives no error")
	}
}
