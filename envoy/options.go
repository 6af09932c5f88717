package envoy

import (
	"errors"
	"fmt"
	"time"
)

// Options describe one Envoy in front of one router or several. The zero value of every field but Pools is a working default.
type Options struct {
	// Routers are where the external-processing servers listen: "unix:/absolute/path", "ip:port", or "name:port" for all addresses
	// that DNS gives. Requests are spread over those that answer their health checks. Prompts travel there, without RouterTLS in
	// clear text. Default 127.0.0.1:9002.
	Routers []string

	// RouterTLS is how Envoy reaches routers whose listener speaks TLS. The zero value is clear text.
	RouterTLS TLS

	// EngineTLS is how Envoy reaches engines that speak TLS, all of them alike. The zero value is clear text.
	EngineTLS TLS

	// EngineHTTP2 speaks HTTP/2 to engines, without EngineTLS by prior knowledge. Default HTTP/1.1.
	EngineHTTP2 bool

	// SecretsDir is the absolute path of a folder on Envoy's host that holds what [Secrets] gives. With it Envoy follows certificates
	// and keys that are replaced on disk; without it Envoy reads the files of both TLS fields once, at its start.
	SecretsDir string

	// AccessLogService has Envoy tell the routers of each request when it has ended, over the connection of the decisions.
	AccessLogService bool

	// DecisionHeader adds [HeaderDecision] to answers.
	DecisionHeader bool

	// StripHeaders are further request headers that Envoy removes from what clients send, before any filter: those that only a filter
	// of the reader's own may set. In either case, at most 64.
	StripHeaders []string

	// RankHeader lets the router set [HeaderRank], and removes it from what clients send.
	RankHeader bool

	// Listen is the address that clients use, ip:port; port 0 takes a free one. Default 127.0.0.1:8080.
	Listen string

	// Admin is Envoy's admin listener, ip:port on loopback: whoever reaches it can stop Envoy and read its configuration.
	// Port 0 takes a free one. Default 127.0.0.1:9901.
	Admin string

	// Version is the Envoy release that will read the configuration, as "1.40.0" or as `envoy --version` prints it. Empty means
	// unknown, which gives the layout that every supported release understands. See [LayoutFor].
	Version string

	// Layout is the shape of routes and clusters. Default: that of LayoutFor.
	Layout Layout

	// Body is how the filter shows bodies to the router. Default [BodyBuffered].
	Body Body

	// Headers is the vocabulary of the router's replies, which must be set to the same. Default [HeadersKvsteer].
	Headers Headers

	// Served has Envoy show the router the headers of answers with the endpoint that gave them, as the endpoint picker protocol wants it. Only the
	// override_host layout of Envoy 1.40 or newer can say it, so only there it counts, and only with [HeadersGAIE].
	Served bool

	// MessageTimeout is how long Envoy waits for the router before the request goes to the fallback. It must exceed the router's
	// own budget. From 10ms to 1m, default 1s. [BodyFullDuplex] has no such limit.
	MessageTimeout time.Duration

	// MaxBody is the largest request body in bytes; Envoy answers 413 beyond it. With [BodyFullDuplex] a larger one passes, but is not
	// sent again to another endpoint. From 1 MiB to 1 GiB, default 32 MiB.
	MaxBody int64

	// AllPaths routes every path to the engines instead of [InferencePaths] and GET /v1/models. Engines serve their metrics,
	// cache resets and adapter loading on the same port, most of it without asking for a key.
	AllPaths bool

	// AccessLog is the absolute path of the access log. Default: Envoy's standard output.
	AccessLog string

	// Balance spreads requests that come without a decision over the endpoints of a pool. Default [LeastRequest].
	Balance Balance

	Pools []Pool // at least one
}

// Pool is one set of endpoints that serve the same base weights.
type Pool struct {
	Name      string // letters, digits, - and _; at most 63
	Match     Match
	Fallback  Fallback
	Cluster   string   // cluster of the reader's own that is the fallback, in place of Fallback; [RenderFilter] only
	Endpoints []string // ip:port or [ip6]:port, each in one pool only; none where DNS gives them or nothing needs them: see Fallback
	DNS       string   // name:port, whose addresses are endpoints too, asked for by Envoy itself; "" for none
}

// TLS names the files of one side of a TLS connection, as absolute paths on Envoy's host.
type TLS struct {
	CAFile     string // authorities that the server's certificate is checked against, PEM
	ServerName string // name or IP address that the certificate must carry; a name is sent as SNI too
	CertFile   string // client certificate, PEM; empty for none
	KeyFile    string // key of CertFile, PEM
}

// On reports whether connections use TLS.
func (t TLS) On() bool { return t != TLS{} }

// Match says which requests belong to a pool by what Envoy knows without the body. Fields that are set must all apply.
type Match struct {
	Host        string // host of the request without a port, exact, letters in either case
	PathPrefix  string // whole leading path segments, as /chat; removed before the engine sees the path
	HeaderName  string // request header, with HeaderValue exactly as its value
	HeaderValue string
}

// Fallback says what serves a pool's requests that come without a decision.
type Fallback string

// The values of Fallback; empty means FallbackEndpoints.
const (
	FallbackEndpoints Fallback = "endpoints" // the pool's endpoints, balanced by Envoy: it needs Endpoints or DNS
	FallbackNone      Fallback = "none"      // nothing: such requests are answered with 503
)

// Balance is how Envoy spreads requests by itself.
type Balance string

// The values of Balance; empty means LeastRequest.
const (
	LeastRequest Balance = "least_request"
	RoundRobin   Balance = "round_robin"
)

// Defaults and bounds of Options.
const (
	DefaultRouter         = "127.0.0.1:9002"
	DefaultListen         = "127.0.0.1:8080"
	DefaultAdmin          = "127.0.0.1:9901"
	DefaultMessageTimeout = time.Second
	DefaultMaxBody        = 32 << 20

	minMessageTimeout = 10 * time.Millisecond
	maxMessageTimeout = time.Minute
	minMaxBody        = 1 << 20 // Envoy takes a smaller limit of a virtual host for its default, 1 MiB
	maxMaxBody        = 1 << 30
	maxPools          = 256
	maxRouters        = 64
	maxName           = 63
	maxStripped       = 64
	maxPathPrefix     = 128 // keeps the regular expressions of the routes below maxProgram
	maxUnixPath       = 107 // sun_path of Linux less its terminating zero
)

// OptionError is one unusable option. Validate joins them, so errors.As finds the first and a caller that maps keys back to its
// own source of options unwraps all.
type OptionError struct {
	Key   string // as in listen or pools[1].match.host
	Value string
	Want  string // the allowed range and, where it is not plain, the reason
}

func (e *OptionError) Error() string { return fmt.Sprintf("%s: %q: want %s", e.Key, e.Value, e.Want) }

// withDefaults fills what is empty.
func (o Options) withDefaults() Options {
	def := func(s *string, v string) {
		if *s == "" {
			*s = v
		}
	}
	def(&o.Listen, DefaultListen)
	def(&o.Admin, DefaultAdmin)
	def((*string)(&o.Balance), string(LeastRequest))
	def((*string)(&o.Body), string(BodyBuffered))
	def((*string)(&o.Headers), string(HeadersKvsteer))
	if len(o.Routers) == 0 {
		o.Routers = []string{DefaultRouter}
	}
	if o.MessageTimeout == 0 {
		o.MessageTimeout = DefaultMessageTimeout
	}
	if o.MaxBody == 0 {
		o.MaxBody = DefaultMaxBody
	}
	pools := make([]Pool, len(o.Pools))
	for i, p := range o.Pools {
		if p.Cluster == "" {
			def((*string)(&p.Fallback), string(FallbackEndpoints))
		}
		p.Match = p.Match.canonical()
		pools[i] = p
	}
	o.Pools = pools
	return o
}

// Validate reports every option that Render refuses, joined, each an [*OptionError].
func (o Options) Validate() error { return o.validate(whole) }

// ValidateFilter reports every option that RenderFilter refuses, as Validate does.
func (o Options) ValidateFilter() error { return o.validate(filterOnly) }

func (o Options) validate(s scope) error {
	o = o.withDefaults()
	var c checker
	c.routers(o.Routers)
	c.tls("router_tls", o.RouterTLS)
	c.tls("engine_tls", o.EngineTLS)
	if o.SecretsDir != "" {
		c.file("secrets_dir", o.SecretsDir)
	}
	if s == whole {
		c.listen(o.Listen)
		c.admin(o.Admin)
	}
	layout, err := o.choose()
	if err != nil {
		c.errs = append(c.errs, err)
	}
	if o.Body != BodyBuffered && o.Body != BodyFullDuplex {
		c.bad("body", o.Body, "%s or %s", BodyBuffered, BodyFullDuplex)
	}
	if o.Headers != HeadersKvsteer && o.Headers != HeadersGAIE {
		c.bad("headers", o.Headers, "%s or %s", HeadersKvsteer, HeadersGAIE)
	}
	if o.MessageTimeout < minMessageTimeout || o.MessageTimeout > maxMessageTimeout {
		c.bad("message_timeout", o.MessageTimeout, "%v to %v", minMessageTimeout, maxMessageTimeout)
	}
	if o.MaxBody < minMaxBody || o.MaxBody > maxMaxBody {
		c.bad("max_body", o.MaxBody, "%d to %d bytes", minMaxBody, maxMaxBody)
	}
	if s == whole {
		c.accessLog(o.AccessLog)
	}
	if o.Balance != LeastRequest && o.Balance != RoundRobin {
		c.bad("balance", o.Balance, "%s or %s", LeastRequest, RoundRobin)
	}
	c.stripped(o)
	c.pools(o.Pools, s)
	c.keys(o.Pools)
	if layout == LayoutOverride {
		c.overridden(o.Pools)
	}
	return errors.Join(c.errs...)
}
