package config

import (
	"fmt"
	"math"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Config is the whole configuration file.
type Config struct {
	Listen     string    `yaml:"listen" default:"127.0.0.1:9002" doc:"Where Envoy reaches the router: unix:PATH or ip:port. TCP off loopback needs tls, or insecure: true, because prompts travel here."`
	TLS        ServerTLS `yaml:"tls"`
	Insecure   bool      `yaml:"insecure" default:"false" doc:"Allows listen and admin.listen off loopback in clear text."`
	Reflection bool      `yaml:"reflection" default:"false" doc:"Serves gRPC reflection beside ext_proc, for tools such as grpcurl: it describes the services to whoever reaches the listener."`
	Admin      Admin     `yaml:"admin" doc:"The admin listener; admin: ip:port is short for admin.listen."`
	Budget     Duration  `yaml:"budget" default:"400ms" doc:"Longest time of one whole decision. Must be below envoy.message_timeout. Range: 1ms to 1m."`
	Warmup     Duration  `yaml:"warmup" default:"10s" doc:"Longest time after the start that the router's gRPC health and /readyz wait: it is SERVING when 90 % of the event sources are connected or their endpoints known to be down, 90 % of the nodes are connected and copied, and DNS has answered for every name. Range: 0s to 10m."`
	Notice     Duration  `yaml:"notice" default:"0s" doc:"How long a stop says NOT_SERVING before it refuses streams, so that an Envoy with further routers moves there first: with them, 5s. Range: 0s to 10m."`
	Drain      Duration  `yaml:"drain" default:"5s" doc:"Longest time that a stop waits for open ext_proc streams. Range: 0s to 10m."`
	StateDir   string    `yaml:"state_dir" doc:"Folder in which the router keeps what it knows of engines across a restart of its own; made if it is missing, and of this router alone. Only for endpoints with events.replay. Not set: nothing is kept."`
	Limits     Limits    `yaml:"limits"`
	Tokenize   Tokenize  `yaml:"tokenize"`
	Index      Index     `yaml:"index"`
	Probe      Probe     `yaml:"probe"`
	Engines    Engines   `yaml:"engines"`
	Headers    string    `yaml:"headers" default:"kvsteer" doc:"How decisions are told: kvsteer: headers of kvsteer's own. gaie: the endpoint-picker protocol of the Gateway API inference extension, for its gateways."`
	GAIE       GAIE      `yaml:"gaie"`

	Nodes      []NodeSource `yaml:"nodes" doc:"The nodes (kvsteer node) that tell of their engines and of what is in their caches."`
	Feed       Feed         `yaml:"feed"`
	DNSRefresh Duration     `yaml:"dns_refresh" default:"1s" doc:"Time between two questions for a DNS name of nodes or of a pool. An endpoint that DNS does not give any more gets nothing new after that time. Range: 100ms to 1h."`
	DNSServers []string     `yaml:"dns_servers" doc:"Name servers that are asked, in turn: ip:port. Not set: those of /etc/resolv.conf."`

	Pools []Pool `yaml:"pools" doc:"Sets of endpoints that serve the same base weights. At least one."`
	Envoy Envoy  `yaml:"envoy"`
}

// GAIE is how the endpoint-picker protocol is spoken, with headers: gaie.
type GAIE struct {
	Unavailable string `yaml:"unavailable" default:"error" doc:"A request for which no endpoint can be named: error: it is answered with 503, as the protocol has it. pass: it goes on without one. In mode observe or off it always goes on."`
	ShedBacklog int    `yaml:"shed_backlog" default:"0" doc:"Prompt tokens waiting at an endpoint; when every endpoint that a request may go to has more, it is answered with 429. 0 = never. Range: 0 to 1000000000."`
	List        bool   `yaml:"list" default:"false" doc:"Names up to 8 endpoints, by cost, instead of one: for gateways whose cluster tries them in turn (override_host); on with envoy.layout: override_host. A cluster of type ORIGINAL_DST needs one."`
	Served      bool   `yaml:"served" default:"false" doc:"Keeps each stream open until the response headers, in which the gateway tells who serves the request; for gateways that send response headers to the router and no access log. A gateway that sends whole responses through the router tells it anyway."`
}

// Endpoints is the number of endpoints of all pools that stand in the configuration.
func (c *Config) Endpoints() int {
	n := 0
	for _, p := range c.Pools {
		n += len(p.Endpoints)
	}
	return n
}

// ServerTLS is the TLS side of a listener. All files are read again when they change.
type ServerTLS struct {
	CertFile     string `yaml:"cert_file" doc:"PEM file with the listener's certificate chain; switches TLS on. Read again when it changes, as the other files are."`
	KeyFile      string `yaml:"key_file" doc:"PEM file with the key of cert_file."`
	ClientCAFile string `yaml:"client_ca_file" doc:"PEM file with the authorities of client certificates; switches mutual TLS on: a client without one of them is refused."`
}

// On reports whether the listener speaks TLS.
func (t ServerTLS) On() bool { return t != ServerTLS{} }

// ClientTLS is the TLS side of who connects. The zero value is clear text.
type ClientTLS struct {
	CAFile     string `yaml:"ca_file" doc:"PEM file with the authorities that the server's certificate is checked against; switches TLS on."`
	ServerName string `yaml:"server_name" doc:"Name sent as SNI and looked for in the server's certificate. Needed with ca_file."`
	CertFile   string `yaml:"cert_file" doc:"PEM file with a client certificate, for mutual TLS."`
	KeyFile    string `yaml:"key_file" doc:"PEM file with the key of cert_file."`
}

// On reports whether connections use TLS.
func (t ClientTLS) On() bool { return t != ClientTLS{} }

// Admin is the listener of metrics, health, state and commands.
type Admin struct {
	Listen    string    `yaml:"listen" default:"127.0.0.1:9003" doc:"Listener of /metrics, /healthz, /readyz and the admin calls: ip:port. Off loopback it needs token_file, and tls or insecure: true."`
	TokenFile string    `yaml:"token_file" doc:"File with a token that requests must bring as Authorization: Bearer; /healthz and /readyz need none. Read again when it changes."`
	Write     bool      `yaml:"write" default:"false" doc:"Allows calls that change something: mode, drain, undrain, reset."`
	TLS       ServerTLS `yaml:"tls"`
}

func (a *Admin) parse(text string) error {
	if _, err := netip.ParseAddrPort(text); err != nil {
		return fmt.Errorf("%q is not ip:port", text)
	}
	a.Listen = text
	return nil
}

// Engines is how Envoy and the router speak to all engines.
type Engines struct {
	TLS   ClientTLS `yaml:"tls"`
	HTTP2 bool      `yaml:"http2" default:"false" doc:"Envoy speaks HTTP/2 to the engines."`
}

// Limits bounds what one request and all requests together may take.
type Limits struct {
	Body         Size `yaml:"body" default:"32MiB" doc:"Longest request body: Envoy answers 413 beyond it. Range: 1MiB to 1GiB."`
	Bodies       Size `yaml:"bodies" default:"1GiB" doc:"Bytes of all bodies held by the router at one time; requests beyond it are routed by load without reading them. At least limits.body plus 1MiB."`
	PromptTokens int  `yaml:"prompt_tokens" default:"262144" doc:"Longest prompt that is matched exactly, in tokens; longer ones are matched by their text or routed by load. Range: 1 to 16777216."`
}

// Tokenize is how prompts become token ids.
type Tokenize struct {
	Timeout     Duration `yaml:"timeout" default:"250ms" doc:"Longest call of an engine's /tokenize or render endpoint. At most budget. Range: 1ms to 1m."`
	Render      bool     `yaml:"render" default:"true" doc:"Asks an engine's /v1/completions/render and /v1/chat/completions/render, which are exact in more cases than /tokenize, and /tokenize where an engine does not offer them."`
	Cache       Size     `yaml:"cache" default:"64MiB" doc:"Bytes of token ids kept for prompts seen before. Range: 0B (off) to 64GiB."`
	Concurrency int      `yaml:"concurrency" default:"64" doc:"Calls of /tokenize under way at one time; requests beyond it are matched by their text or routed by load at once. Range: 1 to 65536."`
}

// Index bounds the block index.
type Index struct {
	MaxBlocks    int `yaml:"max_blocks" default:"10000000" doc:"Distinct blocks held, about 40 bytes each; an endpoint whose blocks do not fit is not matched, and asked again later. While 31/32 are taken, a node that has more than half (or an engine that is followed directly) gives way to others. Range: 1000 to 1000000000."`
	MaxEndpoints int `yaml:"max_endpoints" default:"0" doc:"Endpoints of all pools that there may be at one time, each data-parallel rank counted, also after the configuration has changed under a running router; 0 = 64 more than at the start, and 512 more where some come from DNS or nodes. Range: 0 to 10000."`
}

// Probe is the health check of endpoints.
type Probe struct {
	Interval Duration `yaml:"interval" default:"2s" doc:"Time between two GET /health of an endpoint. Range: 10ms to 1h."`
}

// Pool is one set of endpoints that serve the same base weights.
type Pool struct {
	Name            string      `yaml:"name" doc:"Name in metrics, logs and Envoy's cluster names: letters, digits, '-' and '_'."`
	Models          []string    `yaml:"models" doc:"Served names of the base model, as requests give them in \"model\". At least one; a name belongs to one pool."`
	Adapters        []string    `yaml:"adapters" doc:"Served names of LoRA adapters that all engines of this pool serve. Those that engines tell of by themselves (adapters_refresh) need not stand here."`
	AdaptersRefresh Duration    `yaml:"adapters_refresh" default:"30s" doc:"Time between two GET /v1/models of an endpoint, which tell of its adapters: requests for them find this pool and go to endpoints that serve them. It is asked also when it comes back, and not as long as a node says what it serves. Range: 1s to 1h, or 0s (off: only the names in this file count)."`
	SaltHeader      string      `yaml:"salt_header" doc:"Request header with the cache salt, which counts before cache_salt of the body. Clients' own copies are removed by kvsteer envoy: a filter of yours must set it, and the engine must salt by it."`
	MaxModelLen     int         `yaml:"max_model_len" default:"0" doc:"Longest prompt the engines take, in tokens; 0 = as the engine says. A longer one is refused by the engine and not counted as load."`
	PrefillRate     int         `yaml:"prefill_rate" default:"8000" doc:"Estimated prefill speed of one endpoint, or of one data-parallel rank of it, in tokens per second: how fast charged load is taken to be worked off when no event confirms it. Range: 1 to 10000000."`
	APIKeyFile      string      `yaml:"api_key_file" doc:"File with the key for the engines' /tokenize, render endpoints and /v1/models, sent as Authorization: Bearer."`
	Mode            string      `yaml:"mode" default:"on" doc:"on: decisions are obeyed. observe: they are made and counted, and Envoy is told nothing. off: nothing is decided."`
	Percent         int         `yaml:"percent" default:"100" doc:"In mode on, the share of requests that are steered, in percent; the others are only observed. Range: 0 to 100."`
	Approximate     Approximate `yaml:"approximate"`
	Match           Match       `yaml:"match"`
	Fallback        Fallback    `yaml:"fallback" doc:"Where Envoy sends a request on its own when there is no decision: endpoints (any of this pool), none (answer 503), or {cluster: NAME}."`
	PinRank         bool        `yaml:"pin_rank" default:"false" doc:"Chooses the data-parallel rank of an endpoint too and tells the engine by the header X-data-parallel-rank. All endpoints must have the same events.ranks, 2 or more, and fallback cannot be a cluster."`
	Tiers           Tiers       `yaml:"tiers"`
	AdapterIDs      []AdapterID `yaml:"adapter_ids" doc:"Names of adapters by number, for engines whose events have no names (vLLM before 0.14): their blocks are not matched without."`
	HashSeed        string      `yaml:"hash_seed" doc:"PYTHONHASHSEED of the pool's engines, the same for all, as a text; empty = they are started without. With it the blocks that engines hold can be recognised again after a loss of events also where vLLM hashes with xxhash or xxhash_cbor, and before vLLM 0.29. At most 256 bytes."`
	Announced       string      `yaml:"announced" default:"auto" doc:"true: what nodes announce for this pool are endpoints of it. false: nodes only tell what is in the caches of its endpoints. auto: true where there are nodes and the pool has neither endpoints, dns nor srv."`
	DNS             string      `yaml:"dns" doc:"An endpoint at each address that DNS gives for a name: name:port. Asked again every dns_refresh."`
	SRV             string      `yaml:"srv" doc:"An endpoint at each address and port that DNS gives for a name's SRV records, such as _http._tcp.engines.example.org."`
	Endpoints       []Endpoint  `yaml:"endpoints" doc:"The engine replicas. At least one, unless they come from dns, srv or nodes."`
}

// Approximate is how prompts are matched by their text against the router's own past decisions, where exact matching is not possible.
type Approximate struct {
	CacheTokens int      `yaml:"cache_tokens" default:"400000" doc:"KV cache of one endpoint, or of one data-parallel rank of it, in tokens, as engines log it at their start: what was sent there longer ago than that many tokens is taken to be gone. 0 = no approximate matching. Range: 0 to 100000000."`
	Lifetime    Duration `yaml:"lifetime" default:"1h" doc:"Longest time that a prompt is taken to stay in an endpoint's cache without being used. Range: 1s to 24h."`
}

// Fallback is where Envoy sends a request of a pool without a decision.
type Fallback struct {
	To      string `yaml:"to" default:"endpoints" doc:"endpoints or none; fallback: endpoints is short for it."`
	Cluster string `yaml:"cluster" doc:"Name of a cluster of your own Envoy configuration that serves instead; only kvsteer envoy --filter-only prints a configuration that can name one."`
}

func (f *Fallback) parse(text string) error {
	if text != "endpoints" && text != "none" {
		return fmt.Errorf("%q is neither endpoints nor none (another cluster: {cluster: NAME})", text)
	}
	f.To = text
	return nil
}

// Match is what tells Envoy the pool of a request before anybody has read its body. Needed with several pools.
type Match struct {
	Host       string      `yaml:"host" doc:"Host header of this pool's requests."`
	PathPrefix string      `yaml:"path_prefix" doc:"Path prefix of this pool's requests, such as /chat; removed before the request reaches the engine."`
	Header     MatchHeader `yaml:"header"`
}

// MatchHeader is a request header that tells the pool.
type MatchHeader struct {
	Name  string `yaml:"name" doc:"Name of a request header."`
	Value string `yaml:"value" doc:"Its exact value."`
}

// Endpoint is one engine replica.
type Endpoint struct {
	Address string `yaml:"address" doc:"The engine's HTTP server: ip:port. Envoy follows this address, so names are not possible."`
	Drain   bool   `yaml:"drain" default:"false" doc:"Sends no new request to this endpoint."`
	Events  Events `yaml:"events"`
}

// Events is where an engine's KV cache events come from.
type Events struct {
	Listen string `yaml:"listen" doc:"tcp://ip:port that the router binds, on loopback, for an engine that connects to it."`
	Dial   string `yaml:"dial" doc:"tcp://ip:port that the engine binds. Such an engine publishes the token ids of every prompt to whoever reaches the port."`
	Replay string `yaml:"replay" doc:"tcp://ip:port that the engine's replay socket binds, of rank 0 as dial, for batches of events that were missed. Not set: what is missed costs what is known of the endpoint's cache."`
	Topic  string `yaml:"topic" doc:"Only messages whose topic starts with this text."`
	Ranks  int    `yaml:"ranks" default:"1" doc:"Data-parallel ranks of the endpoint. Each publishes at a port of its own: that of listen or dial plus the rank, or what the engine says in /kv_event_sources. Range: 1 to 64."`
}

// None reports whether no event source is configured: nothing is known of the endpoint but what it was sent.
func (e Events) None() bool { return e.Listen == "" && e.Dial == "" }

// Envoy is what kvsteer envoy prints into Envoy's own configuration.
type Envoy struct {
	Listen         string   `yaml:"listen" default:"127.0.0.1:8080" doc:"Where clients reach Envoy: ip:port."`
	Admin          string   `yaml:"admin" default:"127.0.0.1:9901" doc:"Envoy's admin listener: ip:port on loopback."`
	Version        string   `yaml:"version" doc:"Envoy's release, such as 1.40.0: with layout auto the composite layout is printed from 1.40 on; not set: the layout that works from 1.37 on."`
	Layout         string   `yaml:"layout" default:"auto" doc:"Shape of routes and clusters. auto: composite from 1.40 on, else compat. override_host: one cluster per pool that tries the router's list of endpoints in turn, which a cluster of your own can do too. docs/envoy.md compares them."`
	Body           string   `yaml:"body" default:"buffered" doc:"How Envoy shows request bodies to the router. buffered: Envoy holds each request until its body is there, and serves it whatever becomes of the router. full_duplex: it streams (FULL_DUPLEX_STREAMED); requests that the router was handed fail with it."`
	MessageTimeout Duration `yaml:"message_timeout" default:"1s" doc:"How long Envoy waits for the router before it routes on its own. Above budget. Not with body: full_duplex, where Envoy has no such timer. Range: 10ms to 1m."`
	AllPaths       bool     `yaml:"all_paths" default:"false" doc:"Routes every path to the engines instead of the inference paths only. Engines serve metrics and administration on the same port."`

	Routers          []string  `yaml:"routers" doc:"Where Envoy finds the routers, when that is not the listen address: ip:port, or name:port for all addresses that DNS gives; several for several routers."`
	RouterTLS        ClientTLS `yaml:"router_tls"`
	AccessLogService bool      `yaml:"access_log_service" default:"true" doc:"Envoy tells the router of each finished request, so that load is known exactly and failing endpoints are found."`
	DecisionHeader   bool      `yaml:"decision_header" default:"false" doc:"Adds the response header x-kvsteer-decision to answers, for debugging: it tells clients which engine served them and why."`
}

// Duration is a time.Duration written as Go does: 250ms, 2s, 1m30s.
type Duration time.Duration

// Std returns d as the standard library's type.
func (d Duration) Std() time.Duration { return time.Duration(d) }

func (d Duration) String() string { return time.Duration(d).String() }

func (d *Duration) parse(text string) error {
	v, err := time.ParseDuration(text)
	if err != nil {
		return fmt.Errorf("%q is not a duration such as 250ms, 2s or 1m30s", text)
	}
	*d = Duration(v)
	return nil
}

// Size is a number of bytes, written with a unit: 512B, 64KiB, 32MiB, 1GiB.
type Size int64

var units = []struct {
	suffix string
	bytes  int64
}{{"GiB", 1 << 30}, {"MiB", 1 << 20}, {"KiB", 1 << 10}, {"B", 1}}

// Bytes returns s as a plain number.
func (s Size) Bytes() int64 { return int64(s) }

func (s Size) String() string {
	for _, u := range units {
		if int64(s) >= u.bytes && int64(s)%u.bytes == 0 {
			return strconv.FormatInt(int64(s)/u.bytes, 10) + u.suffix
		}
	}
	return strconv.FormatInt(int64(s), 10) + "B"
}

func (s *Size) parse(text string) error {
	for _, u := range units {
		digits, ok := strings.CutSuffix(text, u.suffix)
		if !ok {
			continue
		}
		n, err := strconv.ParseInt(strings.TrimSpace(digits), 10, 64)
		if err != nil || n < 0 || n > math.MaxInt64/u.bytes {
			break
		}
		*s = Size(n * u.bytes)
		return nil
	}
	return fmt.Errorf("%q is not a size such as 512B, 64KiB, 32MiB or 1GiB", text)
}
