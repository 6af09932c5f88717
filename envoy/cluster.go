package envoy

import (
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	compositev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/clusters/composite/v3"
	headermutationv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/header_mutation/v3"
	codecv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/upstream_codec/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
	"google.golang.org/protobuf/types/known/anypb"
)

const upstreamOptions = "envoy.extensions.upstreams.http.v3.HttpProtocolOptions"

func (b *builder) clusters() []*clusterv3.Cluster {
	if b.layout == LayoutOverride {
		return b.overrideClusters()
	}
	var cs []*clusterv3.Cluster
	for _, p := range b.Pools {
		if p.Fallback != FallbackNone {
			cs = append(cs, b.composite(PoolCluster(p.Name), b.members(p)))
		}
	}
	if b.needsDecision() {
		cs = append(cs, b.composite(ClusterNoFallback, b.choices()))
	}
	for i, name := range b.choices() {
		cs = append(cs, b.byDecision(name, b.Headers.Targets()[i]))
	}
	for _, p := range b.Pools {
		if p.Fallback == FallbackEndpoints {
			cs = append(cs, b.fallback(p))
		}
	}
	return append(cs, b.router())
}

// overrideClusters are the pools' endpoints, where the reader has no cluster of them, and the router's.
func (b *builder) overrideClusters() []*clusterv3.Cluster {
	var cs []*clusterv3.Cluster
	for _, p := range b.Pools {
		if p.Cluster == "" {
			cs = append(cs, b.overridden(p))
		}
	}
	return append(cs, b.router())
}

// choices are the clusters that dial what the router chose. The compat layout knows the first choice only: before 1.40 a member that
// finds no host ends the request, and there the headers are hidden (so gone) at the first attempt. So does the endpoint picker protocol, whose
// one header cannot be read by two clusters.
func (b *builder) choices() []string {
	if b.layout == LayoutComposite && b.Headers == HeadersKvsteer {
		return []string{ClusterPick, ClusterSecond}
	}
	return []string{ClusterPick}
}

// members are the clusters that a pool's decided requests try in turn, one an attempt. The fallback stands there twice because its
// first endpoint may be the dead first choice again, which Envoy does not know for the same host.
func (b *builder) members(p Pool) []string {
	return append(b.choices(), b.fallbackCluster(p), b.fallbackCluster(p))
}

// fallbackCluster is the cluster that serves the pool's requests without a decision.
func (b *builder) fallbackCluster(p Pool) string {
	switch {
	case p.Cluster != "":
		return p.Cluster
	case b.layout == LayoutOverride:
		return PoolCluster(p.Name)
	}
	return FallbackCluster(p.Name)
}

func (b *builder) composite(name string, members []string) *clusterv3.Cluster {
	config := &compositev3.ClusterConfig{}
	for _, m := range members {
		config.Clusters = append(config.Clusters, &compositev3.ClusterConfig_ClusterEntry{Name: m})
	}
	return &clusterv3.Cluster{
		Name:           name,
		ConnectTimeout: duration(connectTimeout),
		LbPolicy:       clusterv3.Cluster_CLUSTER_PROVIDED,
		ClusterDiscoveryType: &clusterv3.Cluster_ClusterType{ClusterType: &clusterv3.Cluster_CustomClusterType{
			Name:        "envoy.clusters.composite",
			TypedConfig: b.pack(config),
		}},
		CircuitBreakers:               unlimited(),
		TypedExtensionProtocolOptions: b.engineProtocol(b.layout == LayoutCompat),
	}
}

// byDecision dials the address that the router set in a header. In the composite layout the address has moved on to metadata: see
// [builder.moveTargets].
func (b *builder) byDecision(name, header string) *clusterv3.Cluster {
	lb := &clusterv3.Cluster_OriginalDstLbConfig{UseHttpHeader: true, HttpHeaderName: header}
	if b.layout == LayoutComposite {
		lb = &clusterv3.Cluster_OriginalDstLbConfig{MetadataKey: metadataKey(metadataTargets, header)}
	}
	return &clusterv3.Cluster{
		Name:                          name,
		ClusterDiscoveryType:          &clusterv3.Cluster_Type{Type: clusterv3.Cluster_ORIGINAL_DST},
		LbPolicy:                      clusterv3.Cluster_CLUSTER_PROVIDED,
		ConnectTimeout:                duration(connectTimeout),
		CleanupInterval:               duration(cleanupInterval),
		LbConfig:                      &clusterv3.Cluster_OriginalDstLbConfig_{OriginalDstLbConfig: lb},
		CircuitBreakers:               unlimited(),
		UpstreamConnectionOptions:     tcpKeepalive(),
		TransportSocket:               b.engineSocket(),
		TypedExtensionProtocolOptions: b.engineProtocol(false),
	}
}

func (b *builder) fallback(p Pool) *clusterv3.Cluster {
	c := b.endpoints(FallbackCluster(p.Name), p)
	c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	if b.Balance == RoundRobin {
		c.LbPolicy = clusterv3.Cluster_ROUND_ROBIN
	}
	return c
}

// endpoints is a cluster of a pool's endpoints, without a policy.
func (b *builder) endpoints(name string, p Pool) *clusterv3.Cluster {
	c := &clusterv3.Cluster{
		Name:                 name,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       duration(connectTimeout),
		// Panic mode spreads requests over all endpoints, healthy or not; at 1 % it begins when none is healthy.
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{HealthyPanicThreshold: &typev3.Percent{Value: 1}},
		HealthChecks: []*corev3.HealthCheck{{
			Timeout:            duration(3 * time.Second),
			Interval:           duration(2 * time.Second),
			NoTrafficInterval:  duration(2 * time.Second),
			UnhealthyThreshold: u32(2),
			HealthyThreshold:   u32(1),
			HealthChecker: &corev3.HealthCheck_HttpHealthCheck_{
				HttpHealthCheck: &corev3.HealthCheck_HttpHealthCheck{Path: "/health", CodecClientType: b.engineCodec()},
			},
		}},
		CircuitBreakers:               unlimited(),
		UpstreamConnectionOptions:     tcpKeepalive(),
		TransportSocket:               b.engineSocket(),
		TypedExtensionProtocolOptions: b.engineProtocol(b.layout == LayoutCompat),
	}
	as := addresses(p.Endpoints)
	if p.DNS != "" {
		as = append(as, routerAddress(p.DNS))
		c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
		c.DnsLookupFamily = clusterv3.Cluster_ALL
		c.IgnoreHealthOnHostRemoval = true // else what DNS does not give any more is used until it fails its checks
	}
	c.LoadAssignment = assignment(name, as)
	return c
}

// engineProtocol is HTTP/1.1 or HTTP/2 with the idle timeout. With hide it removes the decision's headers when the host is chosen; Envoy runs
// such filters of the cluster that a route names and none of a composite's members. What they remove is gone for the next attempt.
func (b *builder) engineProtocol(hide bool) map[string]*anypb.Any {
	explicit := &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_HttpProtocolOptions{
			HttpProtocolOptions: &corev3.Http1ProtocolOptions{},
		},
	}
	if b.EngineHTTP2 {
		explicit = http2(pingInterval)
	}
	o := &upstreamv3.HttpProtocolOptions{
		CommonHttpProtocolOptions: &corev3.HttpProtocolOptions{IdleTimeout: duration(upstreamIdleTimeout)},
		UpstreamProtocolOptions:   &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: explicit},
	}
	if hide {
		mutation := &headermutationv3.HeaderMutation{Mutations: &headermutationv3.Mutations{RequestMutations: removals(b.Headers.Targets())}}
		o.HttpFilters = []*hcmv3.HttpFilter{
			{
				Name:       "envoy.filters.http.header_mutation",
				ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: b.pack(mutation)},
			},
			{
				Name:       "envoy.filters.http.upstream_codec",
				ConfigType: &hcmv3.HttpFilter_TypedConfig{TypedConfig: b.pack(&codecv3.UpstreamCodec{})},
			},
		}
	}
	return b.protocol(o)
}

// http2 notices a peer that died without a word by pings.
func http2(interval time.Duration) *upstreamv3.HttpProtocolOptions_ExplicitHttpConfig {
	return &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig{
		ProtocolConfig: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_Http2ProtocolOptions{
			Http2ProtocolOptions: &corev3.Http2ProtocolOptions{ConnectionKeepalive: &corev3.KeepaliveSettings{
				Interval: duration(interval),
				Timeout:  duration(5 * time.Second),
			}},
		},
	}
}

// engineCodec is the protocol of health checks, which do not look at the cluster's.
func (b *builder) engineCodec() typev3.CodecClientType {
	if b.EngineHTTP2 {
		return typev3.CodecClientType_HTTP2
	}
	return typev3.CodecClientType_HTTP1
}

func (b *builder) protocol(o *upstreamv3.HttpProtocolOptions) map[string]*anypb.Any {
	return map[string]*anypb.Any{upstreamOptions: b.pack(o)}
}

func unlimited() *clusterv3.CircuitBreakers {
	return &clusterv3.CircuitBreakers{Thresholds: []*clusterv3.CircuitBreakers_Thresholds{{
		MaxConnections:     u32(noLimit),
		MaxPendingRequests: u32(noLimit),
		MaxRequests:        u32(noLimit),
		MaxRetries:         u32(noLimit),
	}}}
}

// tcpKeepalive notices a host that died without a word while a request waits for its answer, after about a minute.
func tcpKeepalive() *clusterv3.UpstreamConnectionOptions {
	return &clusterv3.UpstreamConnectionOptions{TcpKeepalive: &corev3.TcpKeepalive{
		KeepaliveTime:     u32(30),
		KeepaliveInterval: u32(10),
		KeepaliveProbes:   u32(3),
	}}
}

func addresses(endpoints []string) []*corev3.Address {
	as := make([]*corev3.Address, len(endpoints))
	for i, e := range endpoints {
		as[i] = socketAddress(e)
	}
	return as
}

func assignment(cluster string, as []*corev3.Address) *endpointv3.ClusterLoadAssignment {
	group := &endpointv3.LocalityLbEndpoints{}
	for _, a := range as {
		group.LbEndpoints = append(group.LbEndpoints, &endpointv3.LbEndpoint{
			HostIdentifier: &endpointv3.LbEndpoint_Endpoint{Endpoint: &endpointv3.Endpoint{Address: a}},
		})
	}
	return &endpointv3.ClusterLoadAssignment{ClusterName: cluster, Endpoints: []*endpointv3.LocalityLbEndpoints{group}}
}
