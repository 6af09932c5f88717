package extproc

import (
	"context"
	"slices"
	"testing"
	"testing/synctest"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/protobuf/types/known/structpb"

	"github.com/kvsteer/kvsteer/internal/router"
)

// filterMetadata puts one value into the metadata context of a message.
func filterMetadata(m *request, namespace, key string, value any) *request {
	v, err := structpb.NewValue(value)
	if err != nil {
		panic(err)
	}
	m.MetadataContext = &corev3.Metadata{FilterMetadata: map[string]*structpb.Struct{namespace: {Fields: map[string]*structpb.Value{key: v}}}}
	return m
}

func hinted(m *request, endpoints ...any) *request {
	if endpoints == nil {
		endpoints = []any{}
	}
	return filterMetadata(m, "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", endpoints)
}

func servedBy(endpoint string) *request {
	return filterMetadata(responseHeadersIn(), "envoy.lb", "x-gateway-destination-endpoint-served", endpoint)
}

// picker decides as a router with four endpoints does.
func picker(ready ...string) deciderFunc {
	return func(_ context.Context, r router.Request) router.Decision {
		d := router.Decision{ID: "r1-7", Pool: "chat", Rung: router.RungLoad, Reason: router.ReasonNoEndpoint}
		for _, addr := range ready {
			if r.Subset != nil && !r.Subset(addr) {
				continue
			}
			switch {
			case d.Endpoint == "":
				d.Endpoint, d.Reason = addr, router.ReasonNoMatch
			case d.Second == "":
				d.Second = addr
			}
			if len(d.Ranked) < r.Ranked {
				d.Ranked = append(d.Ranked, addr)
			}
		}
		if d.Endpoint == "" {
			d.Rung = router.RungNone
		}
		if r.Shed > 0 && d.Endpoint != "" {
			d.Endpoint, d.Second, d.Ranked, d.Overloaded = "", "", nil, true
		}
		return d
	}
}

// pick is what a reply names: by the header, and by dynamic metadata.
func pick(r *response) (header, md string) {
	c := r.GetRequestHeaders().GetResponse()
	if c == nil {
		c = r.GetRequestBody().GetResponse()
	}
	for _, h := range c.GetHeaderMutation().GetSetHeaders() {
		if h.GetHeader().GetKey() == "x-gateway-destination-endpoint" {
			header = string(h.GetHeader().GetRawValue())
		}
	}
	return header, r.GetDynamicMetadata().GetFields()["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue()
}

// TestEndpointPickerProtocol speaks the protocol as its specification (version 1.0.0) words it; each row is one of its demands, in our words.
func TestEndpointPickerProtocol(t *testing.T) {
	const a, b, c = "10.0.0.1:8000", "10.0.0.2:8000", "[fd00::3]:8000"
	tests := []struct {
		name   string
		g      Gateway
		d      Decider
		in     *request // default: headers of a request without a body
		pick   string   // named by the header and by the metadata alike
		status int      // of an immediate response
	}{
		// Destination endpoint.
		{name: "the picked endpoint is named in a header and in metadata under envoy.lb, both alike", d: picker(a), pick: a},
		{name: "an endpoint is written ip:port, an IPv6 one too", d: picker(c), pick: c},
		{name: "several endpoints are joined by commas, the first choice first", g: Gateway{List: true}, d: picker(a, b, c), pick: a + "," + b + "," + c},
		{name: "a list of one", g: Gateway{List: true}, d: picker(a), pick: a},
		{name: "one endpoint where a list is not wanted", d: picker(a, b, c), pick: a},
		{name: "without a ready endpoint the answer is 503", d: picker(), status: 503},
		{name: "so it is where a list is wanted", g: Gateway{List: true}, d: picker(), status: 503},
		{name: "so it is where the pick is no address", d: picker("engine:8000"), status: 503},
		{name: "a request that is to be dropped under load is answered with 429", g: Gateway{Shed: 1000}, d: picker(a), status: 429},
		{name: "but 503 without a ready endpoint", g: Gateway{Shed: 1000}, d: picker(), status: 503},
		{name: "what fails is not ready", d: deciderFunc(func(context.Context, router.Request) router.Decision { panic("decider") }), status: 503},

		// Endpoint subset.
		{name: "only endpoints of the subset are picked", d: picker(a, b), in: hinted(headersIn(true), b), pick: b},
		{name: "all of them may be", g: Gateway{List: true}, d: picker(a, b, c), in: hinted(headersIn(true), c, b, "10.9.9.9:1"), pick: b + "," + c},
		{name: "none of the subset is eligible: 503", d: picker(a, b), in: hinted(headersIn(true), c), status: 503},
		{name: "the port counts", d: picker(a), in: hinted(headersIn(true), "10.0.0.1:8001"), status: 503},
		{name: "the subset is empty: 503", d: picker(a, b), in: hinted(headersIn(true)), status: 503},
		{name: "a subset that cannot be read: 503", d: picker(a, b), in: hinted(headersIn(true), 1, true, "none"), status: 503},
		{name: "a subset of another type: 503", d: picker(a, b), in: filterMetadata(headersIn(true), "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", 5), status: 503},
		{name: "a subset in one text", d: picker(a, b), in: filterMetadata(headersIn(true), "envoy.lb.subset_hint", "x-gateway-destination-endpoint-subset", "10.9.9.9:1, "+b), pick: b},
		{name: "a subset of hosts", d: picker(a, b, c), in: hinted(headersIn(true), "fd00::3"), pick: c},
		{name: "another spelling of an address", d: picker(c), in: hinted(headersIn(true), "[fd00:0::0003]:8000"), pick: c},
		{name: "no subset in the namespace: any endpoint of the pool", d: picker(a, b), in: filterMetadata(headersIn(true), "envoy.lb.subset_hint", "other", []any{}), pick: a},
		{name: "a subset in another namespace is none", d: picker(a, b), in: filterMetadata(headersIn(true), "envoy.lb", "x-gateway-destination-endpoint-subset", []any{b}), pick: a},

		// What the operator has asked for instead.
		{name: "unavailable: pass", g: Gateway{Pass: true}, d: picker()},
		{name: "mode observe", d: always(router.Decision{ID: "r1-7", Mode: router.ModeObserve, Endpoint: a})},
		{name: "mode off", d: always(router.Decision{ID: "r1-7", Mode: router.ModeOff})},
		{name: "mode observe under load", d: always(router.Decision{ID: "r1-7", Mode: router.ModeObserve, Overloaded: true})},
	}
	for _, tt := range tests {
		for _, mode := range []string{"headers", "buffered", "full duplex"} {
			t.Run(mode+"/"+tt.name, func(t *testing.T) {
				tt.g.On, tt.g.Leave = true, true
				s := newService(t, Options{Gateway: tt.g, Decider: tt.d})
				in := headersIn(true)
				if tt.in != nil {
					in = tt.in
				}
				messages := []*request{in, bodyIn(true, "{}")}
				in.GetRequestHeaders().EndOfStream = mode == "headers"
				in.ProtocolConfig.RequestBodyMode = buffered
				switch mode {
				case "headers":
					messages = messages[:1]
				case "full duplex":
					in.ProtocolConfig.RequestBodyMode = fullDuplex
				}
				script := &script{messages: messages}
				o := s.converse(script)
				replies := slices.Concat(script.replies...)
				if mode == "buffered" {
					replies = replies[1:] // that lets the body come
				}
				if len(replies) == 0 {
					t.Fatal("no reply")
				}
				r := replies[0]
				header, md := pick(r)
				if header != tt.pick || md != tt.pick {
					t.Errorf("picked %q by the header and %q by the metadata, want %q", header, md, tt.pick)
				}
				status := int(r.GetImmediateResponse().GetStatus().GetCode())
				if status != tt.status {
					t.Errorf("answered with %d, want %d", status, tt.status)
				}
				want := map[bool]outcome{true: outcomeRouted, false: outcomeUnrouted}[tt.pick != ""]
				if tt.status != 0 {
					want = outcomeRefused
				}
				if o != want {
					t.Errorf("outcome %q, want %q", o, want)
				}
				if status != 0 {
					if len(replies) != 1 {
						t.Errorf("%d replies", len(replies))
					}
					return
				}
				c := r.GetRequestHeaders().GetResponse()
				if c == nil {
					c = r.GetRequestBody().GetResponse()
				}
				if tt.pick == "" && !slices.Equal(c.GetHeaderMutation().GetRemoveHeaders(), []string{"x-gateway-destination-endpoint"}) {
					t.Errorf("a client's own pick stays: %v", c)
				}
				if target(r) != "" || !c.GetClearRouteCache() {
					t.Errorf("reply %v", r)
				}
				if mode == "full duplex" && (len(replies) != 2 || string(streamedOf(replies[1]).GetBody()) != "{}") {
					t.Errorf("replies %v", replies)
				}
			})
		}
	}
}

// The gateway tells in the response phase who serves the request.
func TestServedEndpoint(t *testing.T) {
	const a, b = "10.0.0.1:8000", "10.0.0.2:8000"
	moved := []router.Completion{{ID: "r1-7", Pool: "chat", Serving: true, Upstream: b}}
	response := says(responseHeadersIn(), emptyReply(responseHeadersIn()))
	by := func(endpoint string) step { return says(servedBy(endpoint), emptyReply(responseHeadersIn())) }
	tests := []struct {
		name  string
		in    *request
		leave bool
		steps []step // after the decision
		end   func(*fake)
		told  []router.Completion
		by    server
	}{
		{name: "by the choice", steps: []step{by(a)}, by: servedByChoice},
		{name: "by another one", steps: []step{by(b)}, told: moved, by: servedByAnother},
		{name: "not told", steps: []step{response}, by: servedByUnknown},
		{name: "not an address", steps: []step{by("engine:8000")}, by: servedByUnknown},
		{name: "trailers of the request come first", steps: []step{says(trailersIn(), emptyReply(trailersIn())), by(b)}, told: moved, by: servedByAnother},
		{name: "the response is to be sent back", in: bothDuplexIn(true), steps: []step{
			by(b), says(responseBodyIn(false, "ab"), responseChunk(false, "ab")), says(responseBodyIn(true, "c"), responseChunk(true, "c")),
		}, told: moved, by: servedByAnother},
		{name: "the client leaves", end: closeStream},
		{name: "the client is gone", end: cancelStream},
		{name: "a drain ends the wait", end: func(f *fake) { close(f.closing) }},
		{name: "nobody waits", leave: true},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var got ends
			s := newService(t, Options{Gateway: Gateway{On: true, Leave: tt.leave}, Decider: picker(a, b), Completer: &got})
			if tt.in == nil {
				tt.in = headersIn(true)
			}
			d := picker(a, b)(t.Context(), router.Request{})
			want, _ := (&Gateway{}).answer(headersPhase, d, false)
			if o := play(t, s, append([]step{says(tt.in, want)}, tt.steps...), tt.end); o != outcomeRouted {
				t.Errorf("outcome %q", o)
			}
			if diff := cmp.Diff(tt.told, got.taken()); diff != "" {
				t.Errorf("told (-want +got):\n%s", diff)
			}
			for _, by := range []server{servedByChoice, servedByAnother, servedByUnknown} {
				if n := testutil.ToFloat64(s.metrics.served.WithLabelValues(string(by))); (n == 1) != (by == tt.by) {
					t.Errorf("%v served by %s", n, by)
				}
			}
		})
	}
}

// A stream that waits for a response holds no body.
func TestAttendHoldsNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newService(t, Options{Gateway: Gateway{On: true}, Decider: picker("10.0.0.1:8000")})
		for _, in := range []*request{headersIn(false), duplexIn(false), headersIn(false, "content-length", "100000")} {
			f := newFake()
			done := f.serve(s)
			f.in <- in
			if requestMode(in) == buffered {
				<-f.out
			}
			f.in <- bodyIn(true, big(100_000))
			if requestMode(in) == fullDuplex {
				<-f.out
				<-f.out
			}
			<-f.out
			synctest.Wait()
			if n := testutil.ToFloat64(s.metrics.held); n != 0 {
				t.Errorf("%v bytes held", n)
			}
			f.in <- servedBy("10.0.0.1:8000")
			<-f.out
			if o := <-done; o != outcomeRouted {
				t.Errorf("outcome %q", o)
			}
		}
	})
}

// A ranked list is for whoever reads it in our own metadata.
func TestRankedMetadata(t *testing.T) {
	for _, g := range []bool{false, true} {
		s := newService(t, Options{Gateway: Gateway{On: g, Leave: true}, Ranked: true, Decider: picker("10.0.0.1:8000", "10.0.0.2:8000")})
		c := &script{messages: []*request{headersIn(true)}}
		s.converse(c)
		md := c.replies[0][0].GetDynamicMetadata().GetFields()
		if got := md["kvsteer"].GetStructValue().GetFields()["ranked"].GetStringValue(); got != "10.0.0.1:8000,10.0.0.2:8000" {
			t.Errorf("gateway %v: ranked %q", g, got)
		}
		if got := md["envoy.lb"].GetStructValue().GetFields()["x-gateway-destination-endpoint"].GetStringValue(); g && got != "10.0.0.1:8000" {
			t.Errorf("picked %q", got)
		}
	}
	s := newService(t, Options{Ranked: true, Decider: always(router.Decision{Mode: router.ModeObserve, Endpoint: "10.0.0.1:8000", Ranked: []string{"10.0.0.1:8000"}})})
	c := &script{messages: []*request{headersIn(true)}}
	s.converse(c)
	if _, ok := c.replies[0][0].GetDynamicMetadata().GetFields()["kvsteer"].GetStructValue().GetFields()["ranked"]; ok {
		t.Error("a decision that is only observed is ranked")
	}
}

// Every name that gateways and probes ask for is answered; being alive does not depend on being ready.
func TestHealthNames(t *testing.T) {
	ready := make(chan struct{})
	r := run(t, listenTCP(t), Options{Decider: always(decided()), Ready: ready})
	checks := healthpb.NewHealthClient(r.conn)
	status := func(name string) healthpb.HealthCheckResponse_ServingStatus {
		m, err := checks.Check(t.Context(), &healthpb.HealthCheckRequest{Service: name})
		if err != nil {
			return healthpb.HealthCheckResponse_SERVICE_UNKNOWN
		}
		return m.GetStatus()
	}
	names := []string{"", extprocv3.ExternalProcessor_ServiceDesc.ServiceName, "readiness", "inference-extension"}
	eventually(t, "alive", func() bool { return status("liveness") == healthpb.HealthCheckResponse_SERVING })
	for _, name := range names {
		if got := status(name); got != healthpb.HealthCheckResponse_NOT_SERVING {
			t.Errorf("%q before it is ready: %v", name, got)
		}
	}
	close(ready)
	for _, name := range names {
		eventually(t, name, func() bool { return status(name) == healthpb.HealthCheckResponse_SERVING })
	}
	if got := status("other"); got != healthpb.HealthCheckResponse_SERVICE_UNKNOWN {
		t.Errorf("a name of none: %v", got)
	}
	watch, err := checks.Watch(t.Context(), &healthpb.HealthCheckRequest{Service: "liveness"})
	if err != nil {
		t.Fatal(err)
	}
	if m, err := watch.Recv(); err != nil || m.GetStatus() != healthpb.HealthCheckResponse_SERVING {
		t.Errorf("watched: %v, %v", m, err)
	}
}
