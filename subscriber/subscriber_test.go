package subscriber

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"go.uber.org/goleak"
)

func TestMain(m *testing.M) {
	// The PUB side of zmq4, with which some tests publish, never ends this goroutine.
	goleak.VerifyTestMain(m, goleak.IgnoreAnyFunction("github.com/go-zeromq/zmq4.(*pubMWriter).run"))
}

// recorder is a folder that writes down what it is asked, and holds one block per batch since the last reset.
type recorder struct {
	mu     sync.Mutex
	calls  []string
	blocks int
}

func (r *recorder) fold(payload []byte, _ time.Time) (foldStats, error) {
	r.mu.Lock()
	defer r.mu.Unlock()
	if string(payload) == "bad" {
		r.calls = append(r.calls, "unreadable")
		return foldStats{}, errors.New("not a batch")
	}
	text := string(payload)
	if len(text) > 20 {
		text = fmt.Sprint(len(text), " bytes")
	}
	r.calls = append(r.calls, text)
	r.blocks++
	return foldStats{blocks: r.blocks, published: time.Now()}, nil
}

// witness, hashed and tick are not written down.
func (r *recorder) witness(Prompt, time.Time) foldStats { return foldStats{blocks: r.blocks} }
func (r *recorder) hashed(*Hashes, time.Time) foldStats { return foldStats{blocks: r.blocks} }
func (r *recorder) tick(time.Time) foldStats            { return foldStats{blocks: r.blocks} }

func (r *recorder) reset(cause Cause) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls, r.blocks = append(r.calls, "reset "+string(cause)), 0
}

func (r *recorder) connected(yes bool) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.calls = append(r.calls, fmt.Sprint("connected ", yes))
}

func (r *recorder) quiet(bool)   {}
func (r *recorder) history(bool) {}

func (r *recorder) have() []string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([]string(nil), r.calls...)
}

// await waits until as many calls as wanted are there and compares them.
func (r *recorder) await(t testing.TB, want ...string) {
	t.Helper()
	late := time.Now().Add(patience)
	eventually(t, "calls", func() bool { return len(r.have()) >= len(want) || time.Now().After(late.Add(-time.Second)) })
	diff(t, "calls", want, r.have())
}

// noSink is a Sink for tests that replace the fold. It counts resets.
type noSink struct{ resets *int }

func (noSink) Store(Tier, []uint64)  {}
func (noSink) Remove(Tier, []uint64) {}
func (noSink) Describe(Description)  {}
func (s noSink) Reset(Cause) {
	if s.resets != nil {
		*s.resets++
	}
}

// start runs a Subscriber with a recorder for its fold until the test ends or stop is called.
func start(t testing.TB, o Options, r *recorder) (s *Subscriber, stop func()) {
	t.Helper()
	o.Pool, o.Endpoint, o.Sink = "chat", "10.0.0.1:8000", noSink{}
	if o.Dial == "" {
		o.Listen = or(o.Listen, "tcp://127.0.0.1:0")
	}
	s, err := New(o)
	if err != nil {
		t.Fatal(err)
	}
	s.fold = r
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Errorf("Run: %v", err)
			}
		case <-time.After(patience):
			t.Error("Run has not returned")
		}
	})
	t.Cleanup(stop)
	return s, stop
}

func TestSequenceResets(t *testing.T) {
	tests := []struct {
		name   string
		stream []byte
		want   []string
	}{
		{"in order", concat(live(0, "a"), live(1, "b")), []string{"a", "b"}},
		{"joined late", concat(live(84, "a"), live(85, "b")), []string{"a", "b"}},
		{"gap", concat(live(0, "a"), live(2, "c")), []string{"a", "reset gap", "c"}},
		{"restart", concat(live(84, "a"), live(0, "b")), []string{"a", "reset backwards", "b"}},
		{"repeated", concat(live(4, "a"), live(4, "b"), live(5, "c")), []string{"a", "reset backwards", "c"}},
		{"two gaps", concat(live(0, "a"), live(2, "c"), live(4, "d")), []string{"a", "reset gap", "c", "reset gap", "d"}},
		{"two unreadable batches", concat(live(0, "bad"), live(1, "bad")), []string{"unreadable", "reset unreadable", "unreadable", "reset unreadable"}},
		{"unreadable batch", concat(live(0, "a"), live(1, "bad"), live(2, "c")), []string{"a", "unreadable", "reset unreadable", "c"}},
		{"unreadable first batch", concat(live(0, "bad"), live(1, "c")), []string{"unreadable", "reset unreadable", "c"}},
		{"message without sequence", concat(live(0, "a"), message("x"), live(9, "c")), []string{"a", "reset unreadable", "c"}},
		{"such a message with nothing heard", concat(message("x"), message("x"), live(9, "c")), []string{"c"}},
		{"heartbeat", concat(live(0, "a"), frame(flagCommand, "\x04PING\x00\x00"), live(1, "b")), []string{"a", "b"}},
		{"unknown command", concat(live(0, "a"), frame(flagCommand, "\x01X"), live(1, "b")), []string{"a", "b"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var r recorder
			s, stop := start(t, Options{}, &r)
			p := dialPublisher(t, s)
			p.handshake()
			p.write(tt.stream)
			want := append([]string{"connected true"}, tt.want...)
			r.await(t, want...)
			stop()
			last := want[len(want)-1]
			want = append(want, "connected false")
			if !strings.HasPrefix(last, "reset") {
				want = append(want, "reset disconnect")
			}
			r.await(t, want...)
		})
	}
}

func TestTopicIsSubscribed(t *testing.T) {
	for _, topic := range []string{"", "kv@10.0.0.1:8000"} {
		var r recorder
		s, _ := start(t, Options{Topic: topic}, &r)
		if got := dialPublisher(t, s).handshake(); got != topic {
			t.Errorf("subscribed to %q, want %q", got, topic)
		}
	}
}

func TestPingIsAnswered(t *testing.T) {
	var r recorder
	s, _ := start(t, Options{}, &r)
	p := dialPublisher(t, s)
	p.handshake()
	p.write(frame(flagCommand, "\x04PING\x00\x0actx"))
	if flags, body := p.readFrame(); flags != flagCommand || body != "\x04PONGctx" {
		t.Errorf("got frame %x %q", flags, body)
	}
}

func TestMetrics(t *testing.T) {
	reg := prometheus.NewPedanticRegistry()
	var r recorder
	s, stop := start(t, Options{Metrics: NewMetrics(reg)}, &r)
	p := dialPublisher(t, s)
	p.handshake()
	p.write(concat(live(0, "a"), live(1, "b"), live(3, "c")))
	r.await(t, "connected true", "a", "b", "reset gap", "c")

	problems, err := testutil.GatherAndLint(reg)
	if err != nil || len(problems) > 0 {
		t.Errorf("lint: %v, %v", problems, err)
	}
	if n, err := testutil.GatherAndCount(reg); err != nil || n == 0 {
		t.Errorf("series: %d, %v", n, err)
	}
	eventually(t, "three batches counted", func() bool {
		return testutil.ToFloat64(s.o.Metrics.batches.WithLabelValues("chat", "10.0.0.1:8000", "0")) == 3
	})
	stop()
	if n, err := testutil.GatherAndCount(reg); err != nil || n != 0 {
		t.Errorf("series after Run: %d, %v", n, err)
	}
}

// TestObserver follows what the fold tells the Sink into the metrics.
func TestObserver(t *testing.T) {
	resets := 0
	s, err := New(Options{Pool: "chat", Endpoint: "e", Listen: "tcp://127.0.0.1:0", Sink: noSink{&resets}})
	if err != nil {
		t.Fatal(err)
	}
	s.series = s.o.Metrics.series("chat", "e", 0)
	o, m := observer{s}, s.o.Metrics
	count := func(v vec) int { return testutil.CollectAndCount(v) }

	o.Describe(Description{Connected: true})
	if got := testutil.ToFloat64(m.connected); got != 1 || count(m.problem) != 0 {
		t.Errorf("connected %v, problems %d", got, count(m.problem))
	}
	o.Describe(Description{Problem: ProblemHybrid})
	o.Describe(Description{Problem: ProblemMirrorFull})
	if got := testutil.ToFloat64(m.problem.WithLabelValues("chat", "e", "0", string(ProblemMirrorFull))); got != 1 || count(m.problem) != 1 {
		t.Errorf("problem %v, problems %d", got, count(m.problem))
	}
	o.Describe(Description{})
	if got := testutil.ToFloat64(m.connected); got != 0 || count(m.problem) != 0 {
		t.Errorf("connected %v, problems %d", got, count(m.problem))
	}
	o.Reset(CauseUnreadable) // nothing announced: counted, and kept from the Sink
	o.Store(Any, []uint64{1})
	o.Reset(CauseUnreadable)
	o.Reset(CauseUnreadable)
	if got := testutil.ToFloat64(m.resets.WithLabelValues("chat", "e", "0", "unreadable")); got != 3 || resets != 1 {
		t.Errorf("resets %v counted, %d for the Sink, want 3, 1", got, resets)
	}
}

func TestOptions(t *testing.T) {
	tests := []struct {
		name string
		o    Options
		want string // "" = valid
	}{
		{"listen", Options{Listen: "tcp://127.0.0.1:5557"}, ""},
		{"listen IPv6", Options{Listen: "tcp://[::1]:5557"}, ""},
		{"listen localhost", Options{Listen: "tcp://localhost:0"}, ""},
		{"listen everywhere, insecure", Options{Listen: "tcp://*:5557", InsecureListen: true}, ""},
		{"dial", Options{Dial: "tcp://10.0.0.11:5557"}, ""},
		{"dial a name", Options{Dial: "tcp://engine.example:5557"}, ""},
		{"neither", Options{}, `Listen "", Dial "": exactly one of them must be set`},
		{"both", Options{Listen: "tcp://127.0.0.1:1", Dial: "tcp://10.0.0.1:1"}, `Listen "tcp://127.0.0.1:1", Dial "tcp://10.0.0.1:1": exactly one of them must be set`},
		{"listen everywhere", Options{Listen: "tcp://*:5557"}, `Listen "tcp://*:5557": not a loopback address: other hosts could announce blocks in the engine's name`},
		{"listen on 0.0.0.0", Options{Listen: "tcp://0.0.0.0:5557"}, `Listen "tcp://0.0.0.0:5557": not a loopback address: other hosts could announce blocks in the engine's name`},
		{"listen on a name", Options{Listen: "tcp://node-1:5557"}, `Listen "tcp://node-1:5557": not a loopback address: other hosts could announce blocks in the engine's name`},
		{"another scheme", Options{Dial: "udp://10.0.0.1:1"}, `Dial "udp://10.0.0.1:1": must begin with tcp://`},
		{"no port", Options{Dial: "tcp://10.0.0.1"}, `Dial "tcp://10.0.0.1": must have the form tcp://host:port`},
		{"port too large", Options{Dial: "tcp://10.0.0.1:65536"}, `Dial "tcp://10.0.0.1:65536": port "65536" must be a number between 0 and 65535`},
		{"dial port 0", Options{Dial: "tcp://10.0.0.1:0"}, `Dial "tcp://10.0.0.1:0": port must not be 0`},
		{"dial everywhere", Options{Dial: "tcp://0.0.0.0:1"}, `Dial "tcp://0.0.0.0:1": must name the engine's host`},
		{"dial a star", Options{Dial: "tcp://*:1"}, `Dial "tcp://*:1": must name the engine's host`},
		{"frame above message", Options{Dial: "tcp://h:1", Limits: Limits{Message: 2048, Frame: 4096}}, "Limits.Frame 4096: must be between 1024 and 2048"},
		{
			"buffer below message",
			Options{Dial: "tcp://h:1", Limits: Limits{Message: 1 << 20, Buffered: 1 << 19}},
			fmt.Sprintf("Limits.Buffered 524288: must be between 1048576 and %d", int(^uint(0)>>1)),
		},
		{"a medium twice", Options{Dial: "tcp://h:1", Media: map[string]MediumRule{"CPU": {}, "cpu": {}}}, `Media: "cpu": there twice, in different cases`},
		{"a lifetime on the device", Options{Dial: "tcp://h:1", Media: map[string]MediumRule{"hbm": {Medium: MediumDevice, Lifetime: 1}}}, `Media: "hbm": a lifetime is for host and disk`},
		{"no medium", Options{Dial: "tcp://h:1", Media: map[string]MediumRule{"x": {Medium: 9}}}, `Media: "x": unknown medium 9`},
		{"a negative lifetime", Options{Dial: "tcp://h:1", Media: map[string]MediumRule{"x": {Medium: MediumHost, Lifetime: -1}}}, `Media: "x": lifetime -1ns is negative`},
		{"media and adapters", Options{Dial: "tcp://h:1", Media: map[string]MediumRule{"x": {Medium: MediumHost, Lifetime: 1}}, Demote: 1, Adapters: map[int64]string{1: "a"}}, ""},
		{"demoted for less than no time", Options{Dial: "tcp://h:1", Demote: -1}, "Demote -1ns: must not be negative"},
		{"an adapter without a name", Options{Dial: "tcp://h:1", Adapters: map[int64]string{7: ""}}, "Adapters: id 7 has an empty name"},
		{
			"several",
			Options{Dial: "tcp://h:1", MaxBlocks: -1, BackoffMin: time.Second, BackoffMax: time.Millisecond},
			"MaxBlocks -1: must be between 1 and 1073741824\nBackoffMax 1ms: must not be below BackoffMin 1s",
		},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			tt.o.Sink = noSink{}
			_, err := New(tt.o)
			got := ""
			if err != nil {
				got = err.Error()
			}
			if tt.want != "" {
				tt.want = "subscriber options: " + tt.want
			}
			diff(t, "error", tt.want, got)
		})
	}
	if _, err := New(Options{Listen: "tcp://127.0.0.1:0"}); err == nil {
		t.Error("no Sink: no error")
	}
}

func TestListenAddressTaken(t *testing.T) {
	var r recorder
	s, _ := start(t, Options{}, &r)
	eventually(t, "listening", func() bool { return s.Addr() != "" })
	other, err := New(Options{Listen: s.Addr(), Endpoint: "10.0.0.2:8000", Sink: noSink{}})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Run(t.Context()); err == nil {
		t.Error("Run on a taken address: no error")
	}
}

func TestLogLinesAreFew(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out strings.Builder
		s := &Subscriber{lines: make(map[string]*pace)}
		s.o.Log = slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{
			ReplaceAttr: func(_ []string, a slog.Attr) slog.Attr {
				if a.Key == slog.TimeKey {
					return slog.Attr{}
				}
				return a
			},
		}))
		for range 2 {
			for range 100 {
				s.line(slog.LevelInfo, "change")
				s.line(slog.LevelWarn, "trouble", "n", 1)
			}
			_ = wait(t.Context(), 30*time.Second)
		}
		diff(t, "log", `level=INFO msg=change
level=WARN msg=trouble n=1
level=INFO msg=change
level=INFO msg=change
level=INFO msg=change left_out=97
level=WARN msg=trouble n=1 left_out=99
`, out.String())
	})
}
