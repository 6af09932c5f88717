package extproc

import (
	"context"
	"io"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	accesslogv3 "github.com/envoyproxy/go-control-plane/envoy/service/accesslog/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/emptypb"

	"github.com/kvsteer/kvsteer/internal/router"
)

// ends takes completions.
type ends struct {
	mu     sync.Mutex
	all    []router.Completion
	panics bool
}

func (e *ends) Complete(c router.Completion) {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.panics {
		panic(c.ID)
	}
	e.all = append(e.all, c)
}

func (e *ends) taken() []router.Completion {
	e.mu.Lock()
	defer e.mu.Unlock()
	return append([]router.Completion(nil), e.all...)
}

func (r *running) openLog(t *testing.T) accesslogv3.AccessLogService_StreamAccessLogsClient {
	t.Helper()
	st, err := accesslogv3.NewAccessLogServiceClient(r.conn).StreamAccessLogs(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st
}

func (r *running) logs(o logOutcome) float64 {
	return testutil.ToFloat64(r.metrics.logStreams.WithLabelValues(string(o)))
}

func TestAccessLogStream(t *testing.T) {
	var got ends
	r := run(t, listenTCP(t), Options{Decider: always(decided()), Completer: &got})
	st := r.openLog(t)
	first := entryOf(decided(), "10.0.0.11:8000", nil)
	other := entryOf(decided(), "10.0.0.12:8000", nil)
	for _, m := range []*accesslogv3.StreamAccessLogsMessage{{}, logOf(first, other), logOf(first)} {
		if err := st.Send(m); err != nil {
			t.Fatal(err)
		}
	}
	eventually(t, "three records", func() bool { return len(got.taken()) == 3 })
	want := router.Completion{ID: "r1-7", Pool: "chat", Upstream: "10.0.0.11:8000", Attempts: 1, Code: 200, Answered: true}
	second := want
	second.Upstream = "10.0.0.12:8000"
	if d := cmp.Diff([]router.Completion{want, second, want}, got.taken()); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
	if n := testutil.ToFloat64(r.metrics.openLogs); n != 1 {
		t.Errorf("%v access log streams open", n)
	}
	if n := testutil.ToFloat64(r.metrics.open); n != 0 {
		t.Errorf("%v external-processing streams open", n)
	}
	if _, err := st.CloseAndRecv(); err != nil {
		t.Errorf("end of the stream: %v", err)
	}
	eventually(t, "the end of the stream", func() bool { return r.logs(logEnded) == 1 && testutil.ToFloat64(r.metrics.openLogs) == 0 })
}

// sendRaw sends bytes as a message.
func sendRaw(t *testing.T, st grpc.ClientStream, raw []byte) {
	t.Helper()
	var m emptypb.Empty
	m.ProtoReflect().SetUnknown(raw)
	if err := st.SendMsg(&m); err != nil {
		t.Fatal(err)
	}
}

func TestAccessLogStreamEnds(t *testing.T) {
	record := encode(t, logOf(entryOf(decided(), "10.0.0.11:8000", nil)))
	var padded accesslogv3.StreamAccessLogsMessage
	if err := proto.Unmarshal(record, &padded); err != nil {
		t.Fatal(err)
	}
	padded.Identifier = &accesslogv3.StreamAccessLogsMessage_Identifier{LogName: big(maxLogMessage)}
	notUTF8 := logOf(entryOf(decided(), "10.0.0.11:8000", nil))
	notUTF8.GetHttpLogs().LogEntry[0].Request.Path = "PATH"
	broken := encode(t, notUTF8)
	for i := range broken {
		if string(broken[i:min(i+4, len(broken))]) == "PATH" {
			copy(broken[i:], "\xff\xfe\xfd\xfc")
		}
	}
	tests := []struct {
		name    string
		message []byte
		panics  bool
		taken   int
		outcome logOutcome
		code    codes.Code
	}{
		{"a header that is not UTF-8", broken, false, 1, logEnded, codes.OK},
		{"too large", encode(t, &padded), false, 0, logTooLarge, codes.ResourceExhausted},
		{"above gRPC's cap", []byte(big(3 << 20)), false, 0, logTooLarge, codes.ResourceExhausted},
		{"not a record", []byte{0x12, 2, 0x0a, 9}, false, 0, logMalformed, codes.InvalidArgument},
		{"panic", record, true, 0, logPanic, codes.Internal},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			got := ends{panics: tt.panics}
			r := run(t, listenTCP(t), Options{Decider: always(decided()), Completer: &got, MaxBody: 1 << 20})
			st := r.openLog(t)
			if tt.name == "above gRPC's cap" {
				_ = st.SendMsg(&accesslogv3.StreamAccessLogsMessage_Identifier{LogName: string(tt.message)})
			} else {
				sendRaw(t, st, tt.message)
			}
			_, err := st.CloseAndRecv()
			if status.Code(err) != tt.code {
				t.Errorf("end of the stream: %v, want %v", err, tt.code)
			}
			eventually(t, "the outcome", func() bool { return r.logs(tt.outcome) == 1 })
			if n := len(got.taken()); n != tt.taken {
				t.Errorf("%d records taken, want %d", n, tt.taken)
			}
			if n := testutil.ToFloat64(r.metrics.panics); (n == 1) != tt.panics {
				t.Errorf("%v panics counted", n)
			}
		})
	}
}

// A message that is no protobuf at all is refused by gRPC's own decoder.
func TestAccessLogStreamNotProtobuf(t *testing.T) {
	var got ends
	r := run(t, listenTCP(t), Options{Decider: always(decided()), Completer: &got})
	st, err := r.conn.NewStream(t.Context(), &grpc.StreamDesc{ClientStreams: true},
		accesslogv3.AccessLogService_StreamAccessLogs_FullMethodName, grpc.ForceCodec(rawBytes{}))
	if err != nil {
		t.Fatal(err)
	}
	if err := st.SendMsg([]byte{0x12, 0xff}); err != nil {
		t.Fatal(err)
	}
	var reply []byte
	if err := st.RecvMsg(&reply); status.Code(err) != codes.Internal { // gRPC ends it before we do
		t.Errorf("end of the stream: %v", err)
	}
	eventually(t, "the outcome", func() bool { return r.logs(logMalformed) == 1 })
}

// rawBytes sends byte slices as they are.
type rawBytes struct{}

func (rawBytes) Marshal(v any) ([]byte, error) { return v.([]byte), nil }
func (rawBytes) Unmarshal([]byte, any) error   { return nil }
func (rawBytes) Name() string                  { return "proto" }

// Access log streams live as long as Envoy; a shutdown does not wait for them, and none is served after it has begun.
func TestAccessLogStreamsEndAtShutdown(t *testing.T) {
	var got ends
	release := make(chan struct{})
	deciding := make(chan struct{})
	slow := deciderFunc(func(context.Context, router.Request) router.Decision {
		close(deciding)
		<-release
		return decided()
	})
	r := run(t, listenTCP(t), Options{Decider: slow, Completer: &got, Drain: time.Hour})
	st := r.openLog(t)
	if err := st.Send(logOf(entryOf(decided(), "10.0.0.11:8000", nil))); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a record", func() bool { return len(got.taken()) == 1 })
	request := r.open(t.Context(), t)
	if err := request.Send(headersIn(true)); err != nil {
		t.Fatal(err)
	}
	<-deciding
	r.stop()
	if err := st.RecvMsg(new(accesslogv3.StreamAccessLogsResponse)); status.Code(err) != codes.Unavailable {
		t.Errorf("end of the stream at shutdown: %v", err)
	}
	close(release) // the decision under way is still sent
	if _, err := request.Recv(); err != nil {
		t.Errorf("the decision: %v", err)
	}
	select {
	case err := <-r.ended:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(deadline):
		t.Fatal("an access log stream holds up the shutdown")
	}
	if r.logs(logDrained) != 1 {
		t.Error("the stream is not counted as drained")
	}
}

func TestAccessLogStreamsAreBounded(t *testing.T) {
	var got ends
	s, err := New(Options{Decider: always(decided()), Completer: &got})
	if err != nil {
		t.Fatal(err)
	}
	a := &accessLog{service: &service{Server: s}}
	a.logStreams.Store(maxLogStreams)
	if o := a.take(nil); o != logRefused || a.logStreams.Load() != maxLogStreams {
		t.Errorf("outcome %q of one stream too many, %d counted", o, a.logStreams.Load())
	}
}

func TestNoAccessLogWithoutCompleter(t *testing.T) {
	r := run(t, listenTCP(t), Options{Decider: always(decided())})
	if _, err := r.openLog(t).CloseAndRecv(); status.Code(err) != codes.Unimplemented {
		t.Errorf("end of the stream: %v", err)
	}
}

// A decision that was not sent is taken back: by the client's leaving while it was made, or before the reply.
func TestUndeliveredDecisions(t *testing.T) {
	want := []router.Completion{{ID: "r1-7", Pool: "chat", Undelivered: true}}
	t.Run("client left during the decision", func(t *testing.T) {
		var got ends
		f := newFake()
		left := deciderFunc(func(context.Context, router.Request) router.Decision {
			f.cancel()
			return decided()
		})
		done := f.serve(newService(t, Options{Decider: left, Completer: &got}))
		f.in <- headersIn(true)
		if o := <-done; o != outcomeAborted {
			t.Errorf("outcome %q", o)
		}
		if d := cmp.Diff(want, got.taken()); d != "" {
			t.Errorf("told (-want +got):\n%s", d)
		}
	})
	t.Run("client left before the reply", func(t *testing.T) {
		var got ends
		f := newFake()
		done := f.serve(newService(t, Options{Decider: always(decided()), Completer: &got}))
		f.in <- headersIn(true)
		f.cancel() // nobody takes the reply
		if o := <-done; o != outcomeAborted {
			t.Errorf("outcome %q", o)
		}
		if d := cmp.Diff(want, got.taken()); d != "" {
			t.Errorf("told (-want +got):\n%s", d)
		}
	})
	t.Run("sent", func(t *testing.T) {
		var got ends
		f := newFake()
		done := f.serve(newService(t, Options{Decider: always(decided()), Completer: &got}))
		f.in <- headersIn(true)
		<-f.out
		if o := <-done; o != outcomeRouted || len(got.taken()) != 0 {
			t.Errorf("outcome %q, told %v", o, got.taken())
		}
	})
}

// receive is what gRPC's stream ends with.
func TestReceiveEnds(t *testing.T) {
	tests := []struct {
		err  error
		want logOutcome
	}{
		{io.EOF, logEnded},
		{status.Error(codes.Canceled, "the connection is gone"), logEnded},
		{status.Error(codes.Unavailable, "the connection is gone"), logEnded},
		{status.Error(codes.ResourceExhausted, "too long"), logTooLarge},
		{status.Error(codes.Internal, "unmarshal"), logMalformed},
	}
	for _, tt := range tests {
		a := &accessLog{service: &service{}}
		if got := a.receive(failing{err: tt.err}, new(atomic.Int64)); got != tt.want {
			t.Errorf("%v: %q, want %q", tt.err, got, tt.want)
		}
	}
}

type failing struct {
	grpc.ServerStream
	err error
}

func (f failing) RecvMsg(any) error { return f.err }

// What has come before a shutdown is taken, for a bounded time.
func TestAccessLogIsReadAtShutdown(t *testing.T) {
	for name, tt := range map[string]struct {
		records int
		took    time.Duration
	}{
		"none":           {0, logQuiet},
		"some":           {25, 4 * logQuiet},
		"without an end": {1 << 20, logRest},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var got ends
				s, err := New(Options{Decider: always(decided()), Completer: &got})
				if err != nil {
					t.Fatal(err)
				}
				a := &accessLog{service: &service{Server: s, ending: make(chan struct{})}}
				close(a.ending)
				raw, err := proto.Marshal(logOf(entryOf(decided(), "10.0.0.11:8000", nil)))
				if err != nil {
					t.Fatal(err)
				}
				st := &busyLog{left: tt.records, raw: raw, ended: make(chan struct{})}
				began := time.Now()
				o := a.take(st)
				took := time.Since(began)
				taken := len(got.taken())
				close(st.ended)
				synctest.Wait()
				if o != logDrained || took != tt.took || taken != min(tt.records, int(logRest/time.Millisecond)-1) && taken != min(tt.records, int(logRest/time.Millisecond)) {
					t.Errorf("outcome %q, %d of %d records taken in %v, want %v", o, taken, tt.records, took, tt.took)
				}
			})
		})
	}
}

// busyLog has records that each take a millisecond to be received.
type busyLog struct {
	grpc.ServerStream
	left  int
	raw   []byte
	ended chan struct{}
}

func (b *busyLog) RecvMsg(m any) error {
	if b.left == 0 {
		<-b.ended
		return io.EOF
	}
	select {
	case <-time.After(time.Millisecond):
	case <-b.ended:
		return io.EOF
	}
	b.left--
	return proto.Unmarshal(b.raw, m.(proto.Message))
}
