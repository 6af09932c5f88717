package envoy

// Body is how the filter shows request bodies to the router.
type Body string

// The values of Body; empty means BodyBuffered.
const (
	// BodyBuffered holds each request until its body is there. Whatever becomes of the router, the request goes on.
	BodyBuffered Body = "buffered"

	// BodyFullDuplex hands the body to the router as it arrives, and passes on what comes back: what Envoy calls FULL_DUPLEX_STREAMED.
	// A body that the router has been handed is lost with it, so such a request fails with 500, and only the idle timeout or a failing
	// health check ends one that waits for a router that hangs.
	BodyFullDuplex Body = "full_duplex"
)

// Headers is the vocabulary in which the router tells its choice.
type Headers string

// The values of Headers; empty means HeadersKvsteer.
const (
	HeadersKvsteer Headers = "kvsteer" // HeaderTarget, HeaderSecond and KeyRanked
	HeadersGAIE    Headers = "gaie"    // GatewayEndpoint, in the header and under GatewayNamespace: the endpoint picker protocol
)

// Targets are the headers that carry the choice, the first choice's first.
func (h Headers) Targets() []string {
	if h == HeadersGAIE {
		return []string{GatewayEndpoint}
	}
	return []string{HeaderTarget, HeaderSecond}
}

// reservedHeaders are those of every vocabulary, and those that are removed from what clients send: none of them can tell a pool.
func reservedHeaders() []string {
	return append(HeadersKvsteer.Targets(), GatewayEndpoint, GatewaySubset, GatewayServed, HeaderRank)
}
