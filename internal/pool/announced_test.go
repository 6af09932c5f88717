package pool

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"
)

// TestAnnounced holds that what is announced of an endpoint takes the place of its own answers, also before there is one, and that it is asked when nothing is
// announced any more.
func TestAnnounced(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.serve(one, "own")
		f.serve(two, "own")
		late := refreshed(one, two)
		late.AdaptersAfter = 3 * time.Second
		s, stop := f.start(t, Options{Pools: []Config{late}})
		defer stop()
		asked := func(addr string) (n int) { f.do(func() { n = f.asked[addr] }); return n }
		names := func() []string { return s.Pools()[0].Adapters()[1:] } // one is configured

		s.Announce("chat", one, &Announced{Version: "9.9"})
		pass(2900 * time.Millisecond)
		if e := find(s, "chat", one); asked(one)+asked(two) != 0 || len(names()) > 0 || e.Version() != "9.9" {
			t.Errorf("within the time: asked %d and %d times, adapters %q", asked(one), asked(two), names())
		}
		pass(time.Hour)
		if _, known := find(s, "chat", one).Serves("own"); asked(one) != 0 || asked(two) < 100 || known || !slices.Equal(names(), []string{"own"}) {
			t.Errorf("an hour later: asked %d and %d times, adapters %q", asked(one), asked(two), names())
		}

		long := string(make([]byte, maxServed+1))
		s.Announce("chat", one, &Announced{Known: true, Told: Told{Models: []string{"alias", "llama"}, ModelLen: 512, Adapters: []Adapter{
			{Name: "art", Path: "p"}, {"law", "q", "alias"}, {"far", "r", "else"}, {long, "s", "llama"}, {"", "t", ""},
		}}})
		pass(time.Second)
		if got, want := names(), []string{"art", "law", "own"}; !slices.Equal(got, want) {
			t.Errorf("adapters %q, want %q", got, want)
		}
		told, ok := s.Pools()[0].Told(0)
		if e := find(s, "chat", one); !ok || told.ModelLen != 512 || e.AdapterPath("law") != "q" || !slices.Equal(told.Models, []string{"alias", "llama"}) {
			t.Errorf("told %+v, path %q", told, e.AdapterPath("law"))
		}

		// A configuration under which only its own names count, and an endpoint that comes with it.
		s.Announce("chat", three, &Announced{Known: true, Told: Told{Models: []string{"llama"}, Adapters: []Adapter{{Name: "new"}}}})
		off := refreshed(one, three)
		off.AdaptersRefresh = 0
		if err := s.Apply([]Config{off}); err != nil {
			t.Fatal(err)
		}
		pass(time.Hour)
		if got := names(); len(got) > 0 || asked(one)+asked(three) != 0 {
			t.Errorf("adapters %q, want none; asked %d times", got, asked(one)+asked(three))
		}

		// Nothing is announced any more.
		if err := s.Apply([]Config{refreshed(one, three)}); err != nil {
			t.Fatal(err)
		}
		pass(time.Second)
		if got, want := names(), []string{"art", "law", "new"}; !slices.Equal(got, want) || asked(one)+asked(three) != 0 {
			t.Errorf("adapters %q, want %q; asked %d times", got, want, asked(one)+asked(three))
		}
		s.Announce("chat", one, nil)
		pass(time.Second)
		if got, want := names(), []string{"new", "own"}; !slices.Equal(got, want) || asked(one) != 1 || asked(three) != 0 {
			t.Errorf("adapters %q, want %q; asked %d and %d times", got, want, asked(one), asked(three))
		}
	})
}

// TestUnanswered tells an engine that gives no answer from one that is not there.
func TestUnanswered(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.serve(one)
		s, stop := f.start(t, Options{Pools: []Config{refreshed(one)}})
		defer stop()
		e := find(s, "chat", one)
		for _, step := range []struct {
			name   string
			status int
			down   bool
			want   bool
		}{{"an answer", 0, false, false}, {"refused", 401, false, true}, {"an answer again", 0, false, false}, {"no engine", 0, true, false}, {"failing", 500, false, true}} {
			f.do(func() { f.status[one], f.down[one] = step.status, step.down })
			pass(2 * round)
			if got := e.Unanswered(); got != step.want {
				t.Errorf("%s: unanswered %t, want %t", step.name, got, step.want)
			}
		}
	})
}
