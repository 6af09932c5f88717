package envoy

import (
	"net"
	"strconv"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	upstreamv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	typev3 "github.com/envoyproxy/go-control-plane/envoy/type/v3"
)

// router is the cluster of all routers. One that does not answer must cost as few decisions as possible, and none at all must cost no
// time: requests then go to their fallback at once.
//
//	killed       the first refused connection ejects it, where there is another one
//	stopping     its health service says NOT_SERVING, which counts at the next check
//	hung         two checks without an answer: 4 s at most
//	all of them  no panic mode, so there is no host and the filter fails open without waiting for message_timeout
//
// In full duplex a request without an answer has no timer, and one whose body is on its way fails with its router. So there pings find the
// process that hangs, and the first refused connection ejects a lone router too: the next request falls back.
func (b *builder) router() *clusterv3.Cluster {
	ping := pingInterval
	if b.Body == BodyFullDuplex {
		ping = pingDuplex
	}
	c := &clusterv3.Cluster{
		Name:                 ClusterRouter,
		ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC},
		ConnectTimeout:       duration(routerTimeout),
		CommonLbConfig: &clusterv3.Cluster_CommonLbConfig{
			HealthyPanicThreshold: &typev3.Percent{Value: 0},
			UpdateMergeWindow:     duration(0), // the default holds back all changes of health but the first for 1 s
		},
		HealthChecks: []*corev3.HealthCheck{{
			Timeout:            duration(time.Second),
			Interval:           duration(routerInterval),
			NoTrafficInterval:  duration(routerInterval),
			UnhealthyThreshold: u32(2),
			HealthyThreshold:   u32(1),
			HealthChecker:      &corev3.HealthCheck_GrpcHealthCheck_{GrpcHealthCheck: &corev3.HealthCheck_GrpcHealthCheck{}},
		}},
		CircuitBreakers: unlimited(),
		TransportSocket: b.routerSocket(),
		TypedExtensionProtocolOptions: b.protocol(&upstreamv3.HttpProtocolOptions{
			UpstreamProtocolOptions: &upstreamv3.HttpProtocolOptions_ExplicitHttpConfig_{ExplicitHttpConfig: http2(ping)},
		}),
	}
	var as []*corev3.Address
	for _, r := range b.Routers {
		as = append(as, routerAddress(r))
		if isName(r) {
			c.ClusterDiscoveryType = &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STRICT_DNS}
			c.DnsLookupFamily = clusterv3.Cluster_V4_PREFERRED // one family: the same router at two addresses would be asked twice as often
		}
	}
	if b.severalRouters() {
		c.LbPolicy = clusterv3.Cluster_LEAST_REQUEST
	}
	if b.severalRouters() || b.Body == BodyFullDuplex {
		c.OutlierDetection = ejectRefusing()
	}
	c.LoadAssignment = assignment(ClusterRouter, as)
	return c
}

// severalRouters counts a name as several, for it may stand for as many.
func (b *builder) severalRouters() bool { return len(b.Routers) > 1 || isName(b.Routers[0]) }

// ejectRefusing leaves a router out from its first refused or broken connection on, until a health check succeeds. What a router
// answers is no reason: errors of streams are counted and go to the fallback.
func ejectRefusing() *clusterv3.OutlierDetection {
	return &clusterv3.OutlierDetection{
		SplitExternalLocalOriginErrors:         true,
		ConsecutiveLocalOriginFailure:          u32(1),
		EnforcingConsecutiveLocalOriginFailure: u32(100),
		EnforcingLocalOriginSuccessRate:        u32(0),
		EnforcingConsecutive_5Xx:               u32(0),
		EnforcingConsecutiveGatewayFailure:     u32(0),
		EnforcingSuccessRate:                   u32(0),
		Interval:                               duration(routerInterval),
		BaseEjectionTime:                       duration(2 * routerInterval),
		MaxEjectionTime:                        duration(2 * routerInterval),
		MaxEjectionPercent:                     u32(100),
	}
}

// routerAddress takes a validated unix:/path, ip:port or name:port.
func routerAddress(s string) *corev3.Address {
	if file, unix := unixPath(s); unix {
		return &corev3.Address{Address: &corev3.Address_Pipe{Pipe: &corev3.Pipe{Path: file}}}
	}
	if !isName(s) {
		return socketAddress(s)
	}
	host, port, _ := net.SplitHostPort(s)
	n, _ := strconv.ParseUint(port, 10, 16)
	return &corev3.Address{Address: &corev3.Address_SocketAddress{SocketAddress: &corev3.SocketAddress{
		Address:       host,
		PortSpecifier: &corev3.SocketAddress_PortValue{PortValue: uint32(n)},
	}}}
}
