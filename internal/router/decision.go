package router

import "github.com/kvsteer/kvsteer/internal/openai"

// Request is what the router reads of one HTTP request. It holds no reference that outlives Decide.
type Request struct {
	Meta   openai.Meta              // method, path and content headers
	Host   string                   // :authority
	Header func(name string) string // value of a request header, "" when absent; nil means no headers
	Body   []byte                   // whole body; nil for a request without one
	Unread bool                     // the body exceeds a byte cap and was not read: routed by load, pool by Envoy's own key
}

// Decision says where one request goes and why. An empty Endpoint means that Envoy's own fallback decides.
type Decision struct {
	ID       string // unique among routers: names its router
	Pool     string // "" when no pool could be told
	Endpoint string // first choice, ip:port
	Second   string // second choice, ip:port, "" when there is none
	Reason   Reason // closed set
	Matched  int    // leading prompt tokens that Endpoint holds
	Prompt   int    // prompt tokens, 0 when not known
}

// Reason says why a decision came out as it did; one of a closed set.
type Reason string
