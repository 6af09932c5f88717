package envoy

// Request headers that carry a decision from the router to Envoy. Envoy removes both from what clients send and hides both from
// engines, so they exist only between the external-processing filter and the choice of the upstream host.
const (
	HeaderTarget = "x-target-endpoint"   // first choice, ip:port or [ip6]:port
	HeaderSecond = "x-target-endpoint-2" // second choice, same form; absent when there is none
)

// HeaderRank is the request header by which vLLM takes the data-parallel rank that serves a request. A router sets it in pools whose
// decisions choose the rank; Envoy removes it from what clients send to any pool then, and otherwise passes it on.
const HeaderRank = "x-data-parallel-rank"

// HeaderDecision is the response header that shows a decision to clients, where the configuration asks for it.
const HeaderDecision = "x-kvsteer-decision"

// MetadataNamespace is the dynamic metadata namespace in which the router describes its decision. Envoy drops metadata of a
// namespace that the filter does not list under metadata_options.receiving_namespaces.untyped.
const MetadataNamespace = "kvsteer"

// metadataTargets holds the target headers, under their names, in the composite layout.
const metadataTargets = "kvsteer.target"

// Keys under [MetadataNamespace]. Values are strings but for the two token counts, which are numbers.
const (
	KeyDecisionID = "decision_id"
	KeyPool       = "pool"
	KeyMode       = "mode"
	KeyEndpoint   = "endpoint" // the choice, also where it was not to be obeyed
	KeyRung       = "rung"
	KeyReason     = "reason"
	KeyMatched    = "matched_tokens"
	KeyPrompt     = "prompt_tokens"
	KeyRank       = "rank"   // a number; only where decisions choose the data-parallel rank
	KeyRanked     = "ranked" // up to 8 endpoints by cost, joined by commas: the choice first; only where it is to be obeyed
)

// Names of the endpoint-picker protocol, which gateways of the Gateway API inference extension speak.
const (
	GatewayEndpoint        = "x-gateway-destination-endpoint"        // request header and metadata key: one endpoint, or several joined by commas
	GatewayServed          = "x-gateway-destination-endpoint-served" // metadata key of the response: the endpoint that answered
	GatewaySubset          = "x-gateway-destination-endpoint-subset" // metadata key: the endpoints that may be picked
	GatewayNamespace       = "envoy.lb"                              // of the first two
	GatewaySubsetNamespace = "envoy.lb.subset_hint"                  // of the third
)

// Cluster names. The two clusters that dial the address in a header are shared by all pools; each pool adds its own by
// [PoolCluster] and [FallbackCluster].
const (
	ClusterRouter = "kvsteer_router" // the external-processing server
	ClusterPick   = "kvsteer_pick"   // ORIGINAL_DST by HeaderTarget
	ClusterSecond = "kvsteer_pick_2" // ORIGINAL_DST by HeaderSecond, composite layout only

	// ClusterNoFallback is a composite of these without a fallback, for requests that only a decision can place.
	ClusterNoFallback = "kvsteer_no_fallback"
)

// clusterPrefix begins the names of all clusters of this package.
const clusterPrefix = "kvsteer_"

// PoolCluster is the cluster that a pool's route names: a composite, or in the override_host layout that of the endpoints themselves.
func PoolCluster(pool string) string { return clusterPrefix + "pool_" + pool }

// FallbackCluster is the cluster of a pool's endpoints that serves requests without a decision.
func FallbackCluster(pool string) string { return clusterPrefix + "fallback_" + pool }

// AccessLogName is the log name in the records that Envoy sends the router.
const AccessLogName = "kvsteer"

// Names of the listener, its statistics prefix (http.kvsteer.ext_proc.…) and the route table.
const (
	ListenerName = "kvsteer"
	StatPrefix   = "kvsteer"
	RouteTable   = "kvsteer"
)
