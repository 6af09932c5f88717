package watch

import (
	"context"
	"errors"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/fsnotify/fsnotify"
	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/kvsteer/kvsteer/internal/logtest"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

const deadline = 20 * time.Second

// folder is a temporary folder with helpers that fail the test.
type folder struct {
	t    *testing.T
	path string
}

func (f folder) at(name string) string { return filepath.Join(f.path, name) }

func (f folder) check(err error) {
	f.t.Helper()
	if err != nil {
		f.t.Fatal(err)
	}
}

func (f folder) write(name, text string) {
	f.t.Helper()
	f.check(os.MkdirAll(filepath.Dir(f.at(name)), 0o755))
	f.check(os.WriteFile(f.at(name), []byte(text), 0o644))
}

func (f folder) link(target, name string) {
	f.t.Helper()
	f.check(os.MkdirAll(filepath.Dir(f.at(name)), 0o755))
	f.check(os.Symlink(target, f.at(name)))
}

func (f folder) rename(from, to string) {
	f.t.Helper()
	f.check(os.Rename(f.at(from), f.at(to)))
}

func (f folder) remove(name string) {
	f.t.Helper()
	f.check(os.RemoveAll(f.at(name)))
}

// swap replaces a link as a kubelet does: a new one beside it, renamed over it.
func (f folder) swap(target, name string) {
	f.t.Helper()
	f.link(target, name+"_tmp")
	f.rename(name+"_tmp", name)
}

// started runs a watcher until the test ends. Each change is told on the channel.
func started(t *testing.T, w *Watcher) <-chan struct{} {
	t.Helper()
	changes := make(chan struct{}, 100)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, func() { changes <- struct{}{} }) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("run: %v", err)
			}
		case <-time.After(deadline):
			t.Error("Run goes on after its context ended")
		}
	})
	return changes
}

func told(t *testing.T, changes <-chan struct{}) {
	t.Helper()
	select {
	case <-changes:
	case <-time.After(deadline):
		t.Fatal("the change is not told")
	}
}

// TestChanges makes each change with a poll that is too slow to find it.
func TestChanges(t *testing.T) {
	tests := []struct {
		name string
		make func(folder)
		file string
		with []func(folder) // each is a change
	}{
		{
			"written in place", func(f folder) { f.write("a", "1") }, "a",
			[]func(folder){func(f folder) { f.write("a", "2") }, func(f folder) { f.write("a", "3") }},
		},
		{
			"replaced by a rename", func(f folder) { f.write("a", "1") }, "a",
			[]func(folder){
				func(f folder) { f.write("a.tmp", "2"); f.rename("a.tmp", "a") },
				func(f folder) { f.write("a.tmp", "3"); f.rename("a.tmp", "a") },
			},
		},
		{
			"moved to a backup, then written", func(f folder) { f.write("a", "1") }, "a",
			[]func(folder){func(f folder) { f.rename("a", "a~"); f.write("a", "2") }, func(f folder) { f.rename("a", "a~"); f.write("a", "3") }},
		},
		{
			"deleted and written", func(f folder) { f.write("a", "1") }, "a",
			[]func(folder){func(f folder) { f.remove("a"); f.write("a", "2") }},
		},
		{
			"not there at first", func(folder) {}, "a",
			[]func(folder){func(f folder) { f.write("a", "1") }, func(f folder) { f.write("a", "2") }},
		},
		{
			"its folder not there at first", func(folder) {}, "in/side/a",
			[]func(folder){func(f folder) { f.write("in/side/a", "1") }, func(f folder) { f.write("in/side/a", "2") }},
		},
		{
			"its folder replaced", func(f folder) { f.write("in/a", "1") }, "in/a",
			[]func(folder){
				func(f folder) { f.rename("in", "old"); f.write("in/a", "2") },
				func(f folder) { f.remove("in"); f.write("in/a", "3") },
				func(f folder) { f.write("in/a", "4") },
			},
		},
		{
			"a ConfigMap", func(f folder) {
				f.write("..1/a", "1")
				f.link("..1", "..data")
				f.link("..data/a", "a")
			}, "a",
			[]func(folder){
				func(f folder) { f.write("..2/a", "2"); f.swap("..2", "..data"); f.remove("..1") },
				func(f folder) { f.write("..3/a", "3"); f.swap("..3", "..data"); f.remove("..2") },
			},
		},
		{
			"a certificate client", func(f folder) {
				f.write("archive/site/cert1", "1")
				f.link("../../archive/site/cert1", "live/site/cert")
			}, "live/site/cert",
			[]func(folder){
				func(f folder) {
					f.write("archive/site/cert2", "2")
					f.swap("../../archive/site/cert2", "live/site/cert")
				},
				func(f folder) { f.write("archive/site/cert2", "in place") },
			},
		},
		{
			"a folder that is a link", func(f folder) {
				f.write("release-1/etc/a", "1")
				f.link(f.at("release-1"), "current")
			}, "current/etc/a",
			[]func(folder){
				func(f folder) { f.write("release-2/etc/a", "2"); f.swap(f.at("release-2"), "current") },
				func(f folder) { f.write("release-2/etc/a", "3") },
			},
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			f := folder{t, t.TempDir()}
			tt.make(f)
			w, err := New(Options{Paths: []string{f.at(tt.file)}, Poll: time.Hour, Settle: 10 * time.Millisecond})
			if err != nil {
				t.Fatal(err)
			}
			changes := started(t, w)
			for _, change := range tt.with {
				change(f)
				// A change made slowly enough may be told in two parts; the file's last content is what was seen last.
				told(t, changes)
			}
		})
	}
}

// TestChangeBetweenNewAndRun holds that nothing is missed by who reads the files after New.
func TestChangeBetweenNewAndRun(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("a", "1")
	w, err := New(Options{Paths: []string{f.at("a")}, Poll: time.Hour})
	if err != nil {
		t.Fatal(err)
	}
	f.write("a", "2")
	told(t, started(t, w))
}

// TestPoll has no announcements: the poll finds changes, and why it must is said once.
func TestPoll(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("a", "1")
	f.write("b", "1")
	log := new(logtest.Buffer)
	w, err := New(Options{
		Paths: []string{f.at("a"), f.at("b")}, Poll: 5 * time.Millisecond, Log: slog.New(slog.NewTextHandler(log, nil)),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.notify = func() (*fsnotify.Watcher, error) { return nil, errors.New("too many open files") }
	changes := started(t, w)
	for _, text := range []string{"2", "3"} {
		f.write("b", text)
		told(t, changes)
	}
	if got := log.String(); strings.Count(got, "does not announce") != 1 || !strings.Contains(got, "too many open files") {
		t.Errorf("log:\n%s", got)
	}
}

// TestLook holds what counts as a change, file system aside.
func TestLook(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("a", "1")
	f.write("b", "1")
	log := new(logtest.Buffer)
	w, err := New(Options{Paths: []string{f.at("a"), f.at("b"), f.at("a")}, Log: slog.New(slog.NewTextHandler(log, nil))})
	if err != nil {
		t.Fatal(err)
	}
	steps := []struct {
		name    string
		do      func()
		changed bool
		warns   int // in all
	}{
		{"nothing", func() {}, false, 0},
		{"the same bytes again", func() { f.write("a", "1") }, false, 0},
		{"other bytes", func() { f.write("a", "2") }, true, 0},
		{"nothing after that", func() {}, false, 0},
		{"both", func() { f.write("a", "3"); f.write("b", "2") }, true, 0},
		{"gone", func() { f.remove("a") }, false, 1},
		{"still gone", func() {}, false, 1},
		{"one gone, the other changed", func() { f.write("b", "3") }, true, 1},
		{"back with the old bytes", func() { f.write("a", "3") }, false, 1},
		{"gone again", func() { f.remove("a") }, false, 2},
		{"back with others", func() { f.write("a", "4") }, true, 2},
		{"a folder in its place", func() { f.remove("a"); f.write("a/x", "") }, false, 3},
		{"empty", func() { f.remove("a"); f.write("a", "") }, true, 3},
		{"a link to itself", func() { f.remove("a"); f.link("a", "a") }, false, 4},
		{"far too long", func() {
			f.remove("a")
			f.write("a", "")
			f.check(os.Truncate(f.at("a"), maxFile+1))
		}, false, 4},
	}
	for _, s := range steps {
		s.do()
		if got := w.look(); got != s.changed {
			t.Errorf("%s: changed %v, want %v", s.name, got, s.changed)
		}
		if got := strings.Count(log.String(), "level=WARN"); got != s.warns {
			t.Errorf("%s: %d warnings, want %d:\n%s", s.name, got, s.warns, log)
		}
	}
}

// TestBusyFolder writes another file of the folder all the time: the change is told nevertheless.
func TestBusyFolder(t *testing.T) {
	f := folder{t, t.TempDir()}
	f.write("a", "1")
	w, err := New(Options{Paths: []string{f.at("a")}, Poll: time.Hour, Settle: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	changes := started(t, w)
	ctx, cancel := context.WithCancel(t.Context())
	var busy sync.WaitGroup
	busy.Go(func() {
		tick := time.NewTicker(2 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			_ = os.WriteFile(f.at("other"), nil, 0o644)
			<-tick.C
		}
	})
	f.write("a", "2")
	told(t, changes)
	cancel()
	busy.Wait()
	if n := len(changes); n != 0 {
		t.Errorf("%d further changes told", n)
	}
}

func TestWay(t *testing.T) {
	real, err := filepath.EvalSymlinks(t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	f := folder{t, real}
	f.write("plain/a", "")
	f.link("..data/a", "map/a")
	f.link("..1", "map/..data")
	f.write("map/..1/a", "")
	f.link(f.at("plain"), "abs")
	f.link("loop", "loop")
	f.link("../plain/./a", "up/a")
	f.link("nowhere/b", "dangling")
	tests := []struct {
		path string
		want []string
	}{
		{"plain/a", []string{"plain"}},
		{"plain/missing", []string{"plain"}},
		{"plain/missing/more/a", []string{"plain"}},
		{"plain/a/under-a-file", []string{"plain"}},
		{"map/a", []string{"map", "map", "map/..1"}},
		{"abs/a", []string{"", "plain"}},
		{"up/a", []string{"up", "plain"}},
		{"dangling", []string{"", ""}},
	}
	for _, tt := range tests {
		var want []string
		for _, dir := range tt.want {
			want = append(want, f.at(dir))
		}
		if diff := cmp.Diff(want, way(f.at(tt.path))); diff != "" {
			t.Errorf("way to %s, -want +got:\n%s", tt.path, diff)
		}
	}
	if got := way(f.at("loop")); len(got) > maxLinks+1 {
		t.Errorf("a link to itself: %d folders", len(got))
	}
}

func TestNewRefuses(t *testing.T) {
	for name, o := range map[string]Options{
		"no files":        {},
		"an empty path":   {Paths: []string{"a", ""}},
		"negative poll":   {Paths: []string{"a"}, Poll: -1},
		"negative settle": {Paths: []string{"a"}, Settle: -1},
	} {
		if _, err := New(o); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}
