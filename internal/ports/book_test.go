package ports

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// world is a folder, and what else uses ports.
type world struct {
	t    *testing.T
	o    Options
	busy map[uint16]bool
	now  time.Time
}

func newWorld(t *testing.T) *world {
	w := &world{t: t, busy: map[uint16]bool{}, now: time.Date(2030, 1, 2, 3, 4, 5, 6, time.UTC)}
	w.o = Options{
		Dir: filepath.Join(t.TempDir(), "state"), First: 5557, Last: 5580, Taken: map[uint16]bool{},
		Busy: func(port uint16) bool { return w.busy[port] }, Now: func() time.Time { return w.now },
	}
	return w
}

func (w *world) pick(wants ...Want) Picked {
	w.t.Helper()
	p, err := New(w.o).Pick(wants)
	if err != nil {
		w.t.Fatal(err)
	}
	return p
}

// auto is an engine with ports for events and replays.
func auto(engine string, ranks int) Want {
	return Want{Engine: engine, Ranks: ranks, Events: true, Replay: true}
}

func TestPick(t *testing.T) {
	checked := func(engine string) Want {
		return Want{Engine: engine, Ranks: 1, Events: true, Replay: true, Check: true}
	}
	tests := []struct {
		name   string
		before []Want // picked earlier
		change func(w *world)
		wants  []Want
		of     map[string]Ports
		moved  []string
	}{
		{"in order", nil, nil, []Want{auto("a", 1), auto("b", 2)}, map[string]Ports{"a": {5557, 5558}, "b": {5559, 5561}}, nil},
		{"only events", nil, nil, []Want{{Engine: "a", Ranks: 1, Events: true}}, map[string]Ports{"a": {5557, 0}}, nil},
		{"kept, whatever the order", []Want{auto("a", 1), auto("b", 1)}, nil, []Want{auto("b", 1), auto("a", 1)}, map[string]Ports{"a": {5557, 5558}, "b": {5559, 5560}}, nil},
		{"others of the configuration", nil, func(w *world) { w.o.Taken[5558] = true }, []Want{auto("a", 2)}, map[string]Ports{"a": {5559, 5561}}, nil},
		{"somebody listens", nil, func(w *world) { w.busy[5557] = true }, []Want{auto("a", 1)}, map[string]Ports{"a": {5558, 5559}}, nil},
		{"a removed engine keeps its ports", []Want{auto("a", 1), auto("b", 1)}, nil, []Want{auto("b", 1), auto("c", 1)}, map[string]Ports{"b": {5559, 5560}, "c": {5561, 5562}}, nil},
		{"and has them when it is back", []Want{auto("a", 1), auto("b", 1)}, func(w *world) { w.pick(auto("b", 1)) }, []Want{auto("a", 1)}, map[string]Ports{"a": {5557, 5558}}, nil},
		{"for a week", []Want{auto("a", 1), auto("b", 1)}, func(w *world) { w.pick(auto("b", 1)); w.now = w.now.Add(keep + time.Second) }, []Want{auto("b", 1), auto("c", 1)}, map[string]Ports{"b": {5559, 5560}, "c": {5557, 5558}}, nil},
		{"or until there are no others, the last one first", []Want{auto("a", 1), auto("b", 1)}, func(w *world) {
			w.pick(auto("b", 1))
			w.now = w.now.Add(time.Hour)
			w.pick()
			w.o.Last = 5560
		}, []Want{auto("c", 1)}, map[string]Ports{"c": {5557, 5558}}, nil},
		{"a kept port that another process took", []Want{auto("a", 1), auto("b", 1)}, func(w *world) { w.busy[5557] = true }, []Want{checked("a"), checked("b")}, map[string]Ports{"a": {5561, 5558}, "b": {5559, 5560}}, []string{"a"}},
		{"which is not asked for", []Want{auto("a", 1)}, func(w *world) { w.busy[5557] = true }, []Want{auto("a", 1)}, map[string]Ports{"a": {5557, 5558}}, nil},
		{"the engine listens for replays", []Want{auto("a", 1)}, func(w *world) { w.busy[5558] = true }, []Want{checked("a")}, map[string]Ports{"a": {5557, 5558}}, nil},
		{"a kept port that the configuration has given away", []Want{auto("a", 1)}, func(w *world) { w.o.Taken[5558] = true }, []Want{auto("a", 1)}, map[string]Ports{"a": {5557, 5559}}, []string{"a"}},
		{"a kept port out of range", []Want{auto("a", 1)}, func(w *world) { w.o.First = 5558 }, []Want{auto("a", 1)}, map[string]Ports{"a": {5559, 5558}}, []string{"a"}},
		{"more ranks", []Want{auto("a", 1), auto("b", 1)}, nil, []Want{auto("a", 2), auto("b", 1)}, map[string]Ports{"a": {5557, 5561}, "b": {5559, 5560}}, []string{"a"}},
		{"fewer ranks", []Want{auto("a", 4)}, nil, []Want{auto("a", 2)}, map[string]Ports{"a": {5557, 5561}}, nil},
		{"no replay any more, and again", []Want{auto("a", 1)}, func(w *world) { w.pick(Want{Engine: "a", Ranks: 1, Events: true}) }, []Want{auto("a", 1)}, map[string]Ports{"a": {5557, 5558}}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			if tt.before != nil {
				w.pick(tt.before...)
			}
			if tt.change != nil {
				tt.change(w)
			}
			want := Picked{Of: tt.of, Moved: tt.moved}
			if diff := cmp.Diff(want, w.pick(tt.wants...)); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
			again := w.pick(tt.wants...)
			if want.Moved = nil; cmp.Diff(want, again) != "" {
				t.Errorf("asked again: %+v", again)
			}
		})
	}
}

// What is kept is told without a trace, and only as far as it suits what is wanted now.
func TestKept(t *testing.T) {
	w := newWorld(t)
	kept := func(wants ...Want) map[string]Ports {
		t.Helper()
		k, err := New(w.o).Kept(wants)
		if err != nil {
			t.Fatal(err)
		}
		return k
	}
	if got := kept(auto("a", 1)); len(got) > 0 {
		t.Errorf("without a file: %v", got)
	}
	if _, err := os.Stat(w.o.Dir); !os.IsNotExist(err) {
		t.Errorf("the folder was made: %v", err)
	}
	w.pick(auto("a", 1), auto("b", 2), Want{Engine: "c", Ranks: 1, Events: true})
	before, err := os.ReadFile(New(w.o).Path())
	if err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name  string
		wants []Want
		want  map[string]Ports
	}{
		{"as picked", []Want{auto("b", 2), auto("a", 1)}, map[string]Ports{"a": {5557, 5558}, "b": {5559, 5561}}},
		{"fewer ranks", []Want{auto("b", 1)}, map[string]Ports{"b": {5559, 5561}}},
		{"more ranks", []Want{auto("a", 2)}, map[string]Ports{}},
		{"another engine", []Want{auto("d", 1)}, map[string]Ports{}},
		{"only events", []Want{{Engine: "a", Ranks: 1, Events: true}}, map[string]Ports{"a": {Events: 5557}}},
		{"no port for replays yet", []Want{auto("c", 1)}, map[string]Ports{}},
	} {
		if diff := cmp.Diff(tt.want, kept(tt.wants...)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.name, diff)
		}
	}
	w.o.Taken[5558] = true
	if got := kept(auto("a", 1)); len(got) > 0 {
		t.Errorf("a port that the configuration has given away: %v", got)
	}
	if after, err := os.ReadFile(New(w.o).Path()); err != nil || string(after) != string(before) {
		t.Errorf("the file is another one, or %v", err)
	}
	if err := os.WriteFile(New(w.o).Path(), []byte("{"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := New(w.o).Kept([]Want{auto("a", 1)}); !errors.Is(err, errDamaged) {
		t.Errorf("of a damaged file: %v", err)
	}
}

func TestPickRefused(t *testing.T) {
	w := newWorld(t)
	w.o.Last = 5559
	if _, err := New(w.o).Pick([]Want{auto("a", 2)}); err == nil || !strings.Contains(err.Error(), "engine a needs 2 ports in a row, and of 5557-5559 no more are free") {
		t.Errorf("error %v", err)
	}
	if _, err := os.Stat(New(w.o).Path()); !os.IsNotExist(err) {
		t.Errorf("a file is left: %v", err)
	}
	w.o.Dir = "/dev/null/x"
	if _, err := New(w.o).Pick([]Want{auto("a", 1)}); err == nil {
		t.Error("no error")
	}
}

// A file that is not what was written is set aside, and the ports are picked anew.
func TestDamaged(t *testing.T) {
	tests := []struct{ name, text string }{
		{"empty", ""},
		{"half", `{"version": 1, "engines": [{"eng`},
		{"a later version", `{"version": 2, "engines": []}`},
		{"no version", `{"engines": []}`},
		{"an engine without a name", `{"version": 1, "engines": [{"ranks": 1, "events": 5557}]}`},
		{"an engine twice", `{"version": 1, "engines": [{"engine": "a", "ranks": 1, "events": 5557}, {"engine": "a", "ranks": 1, "events": 5558}]}`},
		{"a port twice", `{"version": 1, "engines": [{"engine": "a", "ranks": 2, "events": 5557}, {"engine": "b", "ranks": 1, "events": 5558}]}`},
		{"no ranks", `{"version": 1, "engines": [{"engine": "a", "events": 5557}]}`},
		{"too many ranks", `{"version": 1, "engines": [{"engine": "a", "ranks": 65, "events": 5557}]}`},
		{"beyond the last port", `{"version": 1, "engines": [{"engine": "a", "ranks": 2, "events": 65535}]}`},
		{"huge", `{"version": 1, "engines": []}` + strings.Repeat(" ", maxFile)},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t)
			path := New(w.o).Path()
			if err := errors.Join(os.MkdirAll(w.o.Dir, 0o700), os.WriteFile(path, []byte(tt.text), 0o600)); err != nil {
				t.Fatal(err)
			}
			got := w.pick(auto("a", 1))
			if got.Of["a"] != (Ports{5557, 5558}) || !errors.Is(got.Damaged, errDamaged) {
				t.Errorf("%+v", got)
			}
			if text, err := os.ReadFile(path + ".damaged"); err != nil || string(text) != tt.text {
				t.Errorf("set aside: %.40q, %v", text, err)
			}
			if again := w.pick(auto("a", 1)); again.Damaged != nil {
				t.Error(again.Damaged)
			}
		})
	}
}

// Who asks for what is kept writes nothing, and needs no right to.
func TestReadOnly(t *testing.T) {
	w := newWorld(t)
	first := w.pick(auto("a", 1))
	path := New(w.o).Path()
	before, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(w.o.Dir, lockName)); err != nil {
		t.Fatal(err)
	}
	w.now = w.now.Add(time.Hour)
	if diff := cmp.Diff(first, w.pick(auto("a", 1))); diff != "" {
		t.Errorf("(-first +second):\n%s", diff)
	}
	after, err := os.Stat(path)
	if err != nil || !os.SameFile(before, after) {
		t.Errorf("the file was written again: %v", err)
	}
	if _, err := os.Stat(filepath.Join(w.o.Dir, lockName)); !os.IsNotExist(err) {
		t.Errorf("the lock was taken: %v", err)
	}
}

// Two that pick at a time agree.
func TestTogether(t *testing.T) {
	w := newWorld(t)
	w.o.Last = 65535
	const engines = 20
	var wg sync.WaitGroup
	for i := range engines {
		wg.Go(func() {
			b := New(w.o)
			var wants []Want
			for e := range engines { // each in an order of its own
				wants = append(wants, auto(fmt.Sprint((i+e)%engines), 1))
			}
			if _, err := b.Pick(wants); err != nil {
				t.Error(err)
			}
		})
	}
	wg.Wait()
	entries, err := New(w.o).read()
	if err != nil || len(entries) != engines {
		t.Errorf("%d engines, %v", len(entries), err)
	}
	left, err := filepath.Glob(filepath.Join(w.o.Dir, "*.part"))
	if err != nil || len(left) > 0 {
		t.Errorf("left behind: %v, %v", left, err)
	}
}

// A lock that is held for ever is given up on.
func TestLocked(t *testing.T) {
	w := newWorld(t)
	w.pick(auto("a", 1))
	f, err := os.Open(filepath.Join(w.o.Dir, lockName))
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if _, err := New(w.o).lock(50 * time.Millisecond); !errors.Is(err, syscall.EWOULDBLOCK) {
		t.Errorf("error %v", err)
	}
}

// The file says what people look for, and of what was left only so much.
func TestFile(t *testing.T) {
	w := newWorld(t)
	w.o.First, w.o.Last = 1024, 65535
	var many []Want
	for i := range maxKept + 10 {
		many = append(many, Want{Engine: fmt.Sprintf("e%04d", i), Ranks: 1, Events: true})
	}
	w.pick(many...)
	w.pick(auto("a", 2))
	text, err := os.ReadFile(New(w.o).Path())
	if err != nil {
		t.Fatal(err)
	}
	var file struct {
		Version int
		Engines []map[string]any
	}
	if err := json.Unmarshal(text, &file); err != nil {
		t.Fatal(err)
	}
	if len(file.Engines) != maxKept+1 || file.Version != 1 {
		t.Fatalf("version %d with %d engines", file.Version, len(file.Engines))
	}
	want := map[string]any{"engine": "a", "ranks": 2.0, "events": 2048.0, "replay": 2050.0}
	if diff := cmp.Diff(want, file.Engines[0]); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	if file.Engines[1]["unused_since"] != "2030-01-02T03:04:05Z" {
		t.Errorf("%v", file.Engines[1])
	}
}

func TestBusy(t *testing.T) {
	l, err := net.Listen("tcp4", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	port := uint16(l.Addr().(*net.TCPAddr).Port)
	if !busy(port) {
		t.Error("a port with a listener is free")
	}
	l.Close()
	if busy(port) {
		t.Error("a port without one is not")
	}
}
