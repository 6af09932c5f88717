package router

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
)

func TestDraw(t *testing.T) {
	tests := []struct {
		name    string
		s       steering
		roll    int // of 100; −1: must not be asked
		want    Mode
		counts  bool
		shareOn int
	}{
		{"on", steering{ModeOn, 100}, -1, ModeOn, true, 100},
		{"on, half, lower", steering{ModeOn, 50}, 49, ModeOn, true, 50},
		{"on, half, upper", steering{ModeOn, 50}, 50, ModeObserve, false, 50},
		{"on, none", steering{ModeOn, 0}, 0, ModeObserve, false, 0},
		{"observe", steering{ModeObserve, 100}, -1, ModeObserve, true, 0},
		{"observe leaves the percentage alone", steering{ModeObserve, 0}, -1, ModeObserve, true, 0},
		{"off", steering{ModeOff, 100}, -1, ModeOff, true, 0},
	}
	for _, tt := range tests {
		m, counts := tt.s.draw(func(n int) int {
			if tt.roll < 0 || n != 100 {
				t.Errorf("%s: asked for one of %d", tt.name, n)
			}
			return tt.roll
		})
		if m != tt.want || counts != tt.counts {
			t.Errorf("%s: mode %v, counts %v; want %v, %v", tt.name, m, counts, tt.want, tt.counts)
		}
		shares := tt.s.shares()
		if shares[ModeOn] != tt.shareOn || shares[ModeOn]+shares[ModeObserve]+shares[ModeOff] != 100 {
			t.Errorf("%s: shares %v", tt.name, shares)
		}
	}
}

// Observe decides, charges and counts as on does, and says so; what a percentage leaves to Envoy leaves no trace.
func TestModes(t *testing.T) {
	a := address(0)
	prompt := run(1, 10*block)
	tests := []struct {
		name    string
		mode    Mode
		percent int
		want    Mode
		steers  bool
		charged bool
	}{
		{"on", ModeOn, 100, ModeOn, true, true},
		{"observe", ModeObserve, 100, ModeObserve, false, true},
		{"on for none", ModeOn, 0, ModeObserve, false, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(2))
			w.hold(a, block, plain, prompt[:4*block])
			w.mode("chat", tt.mode, tt.percent)
			d := w.r.Decide(t.Context(), given("llama", prompt))
			if d.Mode != tt.want || d.Steers() != tt.steers || d.Endpoint != a || d.Reason != ReasonPrefix || d.Matched != 4*block {
				t.Errorf("decision %+v", d)
			}
			charged := 0.0
			if tt.charged {
				charged = 6 * block
			}
			if got := w.loads(w.clock())[0].backlog; got != charged {
				t.Errorf("%v tokens charged, want %v", got, charged)
			}
		})
	}
}

// Nothing of a request is read while its pool is off: not even what is not JSON gets another reason.
func TestOffReadsNothing(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	w.hold(address(0), block, plain, run(1, 4*block))
	if w.r.Passes(Request{}) {
		t.Error("a request passes while its pool is on")
	}
	w.mode("chat", ModeOff, 100)
	if !w.r.Passes(Request{}) {
		t.Error("a request does not pass while its pool is off")
	}
	req := Request{Meta: openai.Meta{Method: "POST", Path: "/v1/completions"}, Body: []byte(`{"model":`)}
	if d := w.r.Decide(t.Context(), req); d.Reason != ReasonOff || d.Endpoint != "" || d.Rung != RungNone {
		t.Errorf("decision %+v", d)
	}
	if n := w.words.count(); n != 0 {
		t.Errorf("%d tokenizer calls", n)
	}
	w.mode("chat", ModeOn, 100)
	if d := w.r.Decide(t.Context(), req); d.Reason != Reason(openai.ReasonNotJSON) || d.Endpoint == "" {
		t.Errorf("decision after the pool is on again %+v", d)
	}
}

func TestPercentIsAShare(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	w.mode("chat", ModeOn, 30)
	steered := 0
	const n = 10_000
	for range n {
		if w.r.Decide(t.Context(), Request{Unread: true}).Steers() {
			steered++
		}
	}
	// Six standard deviations of a fair draw are 275.
	if steered < 3000-275 || steered > 3000+275 {
		t.Errorf("%d of %d steered at 30 percent", steered, n)
	}
}

func TestCallsRefuse(t *testing.T) {
	w := newWorld(t, Options{}, chat(2))
	tests := []struct {
		name    string
		call    func() error
		unknown bool
	}{
		{"mode of no pool", func() error { return w.r.SetMode("nope", ModeOn, 100) }, true},
		{"no mode", func() error { return w.r.SetMode("chat", "sometimes", 100) }, false},
		{"percent below", func() error { return w.r.SetMode("chat", ModeOn, -1) }, false},
		{"percent above", func() error { return w.r.SetMode("chat", ModeOn, 101) }, false},
		{"drain nothing", func() error { return w.r.Drain("10.9.9.9:1", true) }, true},
		{"reset nothing", func() error { return w.r.Reset("") }, true},
	}
	before := w.r.State()
	for _, tt := range tests {
		if err := tt.call(); err == nil || errors.Is(err, ErrUnknown) != tt.unknown {
			t.Errorf("%s: error %v, unknown: want %v", tt.name, err, tt.unknown)
		}
	}
	if diff := cmp.Diff(before, w.r.State()); diff != "" {
		t.Errorf("refused calls changed something (- before, + after):\n%s", diff)
	}
}

// A mode set by a call lasts until the configuration says another one than before.
func TestModeOfTheConfiguration(t *testing.T) {
	with := func(mode string, unsteered int) pool.Config {
		c := chat(2)
		c.Mode, c.Unsteered = mode, unsteered
		return c
	}
	w := newWorld(t, Options{}, with("observe", 0))
	steps := []struct {
		name string
		do   func()
		want steering
	}{
		{"configured", func() {}, steering{ModeObserve, 100}},
		{"called", func() { w.mode("chat", ModeOff, 20) }, steering{ModeOff, 20}},
		{"the same configuration", func() { w.apply(with("observe", 0)) }, steering{ModeOff, 20}},
		{"another share", func() { w.apply(with("observe", 60)) }, steering{ModeObserve, 40}},
		{"another mode", func() { w.apply(with("", 60)) }, steering{ModeOn, 40}},
		{"called again", func() { w.mode("chat", ModeObserve, 100) }, steering{ModeObserve, 100}},
		{"gone and back", func() { w.apply(code()); w.apply(with("on", 60)) }, steering{ModeOn, 40}},
	}
	for _, st := range steps {
		st.do()
		if got := *w.r.fleet("chat").steering.Load(); got != st.want {
			t.Errorf("%s: %+v, want %+v", st.name, got, st.want)
		}
	}
}

func TestSuspectIsNeverFirst(t *testing.T) {
	w := newWorld(t, Options{}, chat(3))
	prompt := run(1, 100*block)
	for i := range 3 {
		w.hold(address(i), block, plain, prompt[:(i+1)*20*block])
	}
	suspect := func(i int) { w.r.all()[0].all()[i].endpoint.ReportMissed() }
	if d := w.r.Decide(t.Context(), given("llama", prompt)); d.Endpoint != address(2) {
		t.Fatalf("chose %s, not the best holder", d.Endpoint)
	}
	w.pass(time.Hour)
	suspect(2)
	d := w.r.Decide(t.Context(), given("llama", prompt))
	if d.Endpoint != address(1) || d.Second != address(0) || d.Matched != 40*block {
		t.Errorf("with the best holder suspect: %+v", d)
	}
	w.pass(time.Hour)
	suspect(1)
	if d := w.r.Decide(t.Context(), given("llama", prompt)); d.Endpoint != address(0) || d.Second != address(2) {
		t.Errorf("with two suspect: %+v", d)
	}
	w.pass(time.Hour)
	suspect(0)
	if d := w.r.Decide(t.Context(), given("llama", prompt)); d.Endpoint != address(2) || d.Second != address(1) {
		t.Errorf("with all suspect: %+v", d)
	}
}

// What comes to light while token ids are asked for counts too.
func TestSuspectDuringTheDecision(t *testing.T) {
	prompt := tokensOf(`"` + strings.Repeat("word ", 100) + `"`)
	req := completion(`"model":"llama","prompt":"` + strings.Repeat("word ", 100) + `"`)
	for _, tt := range []struct {
		name string
		do   func(w *world)
		want bool // the holder is chosen
	}{
		{"nothing", func(*world) {}, true},
		{"the other one is suspect", func(w *world) { w.r.at(address(1))[0].endpoint.ReportMissed() }, true},
		{"the holder is suspect", func(w *world) { w.r.at(address(0))[0].endpoint.ReportMissed() }, false},
		{"the holder drains", func(w *world) { w.drain(address(0)) }, false},
		{"both drain", func(w *world) { w.drain(address(0), address(1)) }, true},
	} {
		t.Run(tt.name, func(t *testing.T) {
			w := newWorld(t, Options{}, chat(2))
			w.hold(address(0), block, plain, prompt)
			w.words.during = func() { tt.do(w) }
			if d := w.r.Decide(t.Context(), req); (d.Endpoint == address(0)) != tt.want || d.Rung != RungExact || w.words.count() != 1 {
				t.Errorf("decision %+v", d)
			}
		})
	}
}
