package envoy

import (
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	leastv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	overridev3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	roundv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/round_robin/v3"
	metadatav3 "github.com/envoyproxy/go-control-plane/envoy/type/metadata/v3"
	"google.golang.org/protobuf/proto"
)

const (
	policyPrefix   = "envoy.load_balancing_policies."
	policyOverride = policyPrefix + "override_host"
)

// overrideAttempts are the hosts that one request may try: the first three of the list, or fewer and then what the fallback policy draws.
const overrideAttempts = 4

// ranked is where the override_host policy finds the list of endpoints.
func (b *builder) ranked() *metadatav3.MetadataKey {
	if b.Headers == HeadersGAIE {
		return metadataKey(GatewayNamespace, GatewayEndpoint)
	}
	return metadataKey(MetadataNamespace, KeyRanked)
}

// policy tries the endpoints of the list in turn, one an attempt, passing over those that the cluster does not hold. Without a list, and behind
// its end, hosts are drawn as Balance says. The list alone counts for the override: Envoy picks a host of it that fails Envoy's own health
// checks or is ejected.
func (b *builder) policy() *clusterv3.LoadBalancingPolicy {
	o := &overridev3.OverrideHost{
		OverrideHostSources: []*overridev3.OverrideHost_OverrideHostSource{{Metadata: b.ranked()}},
		FallbackPolicy:      b.policies(policyPrefix+"least_request", &leastv3.LeastRequest{}),
	}
	if b.Balance == RoundRobin {
		o.FallbackPolicy = b.policies(policyPrefix+"round_robin", &roundv3.RoundRobin{})
	}
	if b.readsServed() {
		o.SelectedHostKey = metadataKey(GatewayNamespace, GatewayServed)
	}
	return b.policies(policyOverride, o)
}

func (b *builder) policies(name string, config proto.Message) *clusterv3.LoadBalancingPolicy {
	return &clusterv3.LoadBalancingPolicy{Policies: []*clusterv3.LoadBalancingPolicy_Policy{{
		TypedExtensionConfig: &corev3.TypedExtensionConfig{Name: name, TypedConfig: b.pack(config)},
	}}}
}

// readsServed reports whether the router learns from the headers of the answer which endpoint gave it. Only the override_host policy says it, in
// 1.40 but not in 1.37.
func (b *builder) readsServed() bool {
	return b.Served && b.layout == LayoutOverride && b.Headers == HeadersGAIE && b.atLeast(minorServed)
}

// overridden is a cluster of a pool's endpoints that obeys the list.
func (b *builder) overridden(p Pool) *clusterv3.Cluster {
	c := b.endpoints(PoolCluster(p.Name), p)
	c.LoadBalancingPolicy = b.policy()
	return c
}

// ownClusters are the clusters of the reader's own that take the policy, with nothing but what they need.
func (b *builder) ownClusters() []*clusterv3.Cluster {
	if b.layout != LayoutOverride {
		return nil
	}
	var cs []*clusterv3.Cluster
	seen := map[string]bool{}
	for _, p := range b.Pools {
		if p.Cluster == "" || seen[p.Cluster] {
			continue
		}
		seen[p.Cluster] = true
		cs = append(cs, &clusterv3.Cluster{Name: p.Cluster, CircuitBreakers: unlimited(), LoadBalancingPolicy: b.policy()})
	}
	return cs
}

func metadataKey(namespace, key string) *metadatav3.MetadataKey {
	return &metadatav3.MetadataKey{Key: namespace, Path: []*metadatav3.MetadataKey_PathSegment{{
		Segment: &metadatav3.MetadataKey_PathSegment_Key{Key: key},
	}}}
}
