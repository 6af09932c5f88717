package envoy

import (
	"net/netip"
	"slices"
	"strings"
	"time"

	bootstrapv3 "github.com/envoyproxy/go-control-plane/envoy/config/bootstrap/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	"google.golang.org/protobuf/types/known/durationpb"
	"google.golang.org/protobuf/types/known/structpb"
	"google.golang.org/protobuf/types/known/wrapperspb"
)

const (
	// A prefill of hundreds of thousands of tokens sends nothing for minutes, and Envoy counts that as idle.
	streamIdleTimeout = 600 * time.Second

	// uvicorn, the web server of vLLM and SGLang, closes idle connections after 5 s. A request on a connection that the engine is
	// closing is a 503 that Envoy does not retry, so Envoy lets go of it first.
	upstreamIdleTimeout = 3 * time.Second

	connectTimeout  = time.Second            // to engines
	routerTimeout   = 250 * time.Millisecond // to connect to the router
	routerInterval  = time.Second            // of health checks of routers
	pingInterval    = 30 * time.Second       // of HTTP/2, whose answer may take 5 s
	pingDuplex      = 3 * time.Second        // likewise, to routers in full duplex
	cleanupInterval = 60 * time.Second       // of addresses that no request named for so long

	// Circuit breakers are raised out of the way: the defaults (1,024 requests, 3 retries) turn load into 503s, and how much an
	// engine gets is the router's business.
	noLimit = 100_000

	// maxProgram bounds a regular expression, in RE2 instructions: one per character or so.
	maxProgram = 1000

	internalPrefix = "x-envoy-" // Envoy obeys such headers (retries, timeouts) also when clients send them
)

// scope is how much of a configuration is rendered.
type scope int

const (
	whole      scope = iota // all that Envoy needs to start
	filterOnly              // the pieces that another configuration lacks
)

// builder makes the parts of one configuration.
type builder struct {
	Options
	layout Layout
	scope  scope
	err    error // first failure to pack a message
}

// newBuilder checks the options.
func newBuilder(o Options, s scope) (*builder, error) {
	if err := o.validate(s); err != nil {
		return nil, err
	}
	layout, err := o.choose()
	if err != nil {
		return nil, err
	}
	return &builder{Options: o.withDefaults(), layout: layout, scope: s}, nil
}

func (b *builder) bootstrap() *bootstrapv3.Bootstrap {
	boot := &bootstrapv3.Bootstrap{
		Admin:          &bootstrapv3.Admin{Address: socketAddress(b.Admin)},
		LayeredRuntime: b.runtime(),
		StaticResources: &bootstrapv3.Bootstrap_StaticResources{
			Listeners: b.listeners(),
			Clusters:  b.clusters(),
		},
	}
	if b.secrets() {
		boot.Node = &corev3.Node{Id: "kvsteer", Cluster: "kvsteer"}
	}
	return boot
}

func (b *builder) runtime() *bootstrapv3.LayeredRuntime {
	return &bootstrapv3.LayeredRuntime{Layers: []*bootstrapv3.RuntimeLayer{{
		Name: "kvsteer",
		LayerSpecifier: &bootstrapv3.RuntimeLayer_StaticLayer{StaticLayer: &structpb.Struct{Fields: map[string]*structpb.Value{
			"re2.max_program_size.error_level": structpb.NewNumberValue(maxProgram),
		}}},
	}}}
}

// pack wraps a typed extension config.
func (b *builder) pack(m proto.Message) *anypb.Any {
	a, err := anypb.New(m)
	if err != nil && b.err == nil {
		b.err = err
	}
	return a
}

// clientHeaders are removed from what clients send: those that the router alone may set, and those that a filter of the reader's own may.
func (b *builder) clientHeaders() []string {
	hs := b.Headers.Targets()
	if b.Headers == HeadersGAIE {
		hs = append(hs, GatewaySubset, GatewayServed) // metadata to us, but headers to other endpoint pickers
	}
	if b.RankHeader {
		hs = append(hs, HeaderRank)
	}
	for _, h := range b.StripHeaders {
		if h = strings.ToLower(h); !slices.Contains(hs, h) {
			hs = append(hs, h)
		}
	}
	return hs
}

// settable are the headers that the router may set. In the override_host layout the choice comes in metadata alone.
func (b *builder) settable() []string {
	var hs []string
	if b.layout != LayoutOverride {
		hs = b.Headers.Targets()
	}
	if b.RankHeader {
		hs = append(hs, HeaderRank)
	}
	return hs
}

// secretHeaders may hold credentials. The router needs none, so it is sent none.
func secretHeaders() []string {
	return []string{"authorization", "proxy-authorization", "cookie", "x-api-key", "api-key", "x-goog-api-key"}
}

// socketAddress takes a validated ip:port.
func socketAddress(s string) *corev3.Address {
	a := netip.MustParseAddrPort(s)
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       a.Addr().String(),
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(a.Port())},
	}}}
}

func duration(d time.Duration) *durationpb.Duration { return durationpb.New(d) }

func u32(v uint32) *wrapperspb.UInt32Value { return wrapperspb.UInt32(v) }

func yes() *wrapperspb.BoolValue { return wrapperspb.Bool(true) }
