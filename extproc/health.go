package extproc

import (
	"context"

	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/service/ext_proc/v3"
	"google.golang.org/grpc/health"
	healthpb "google.golang.org/grpc/health/grpc_health_v1"
)

// serviceLive is the health service that asks whether the process answers at all.
const serviceLive = "liveness"

// readyServices are the names under which gateways and their probes ask whether requests can come, beside the empty one.
func readyServices() []string {
	return []string{extprocv3.ExternalProcessor_ServiceDesc.ServiceName, "readiness", "inference-extension"}
}

// checks answers health checks. Being alive does not depend on being ready.
type checks struct {
	*health.Server
	live *health.Server
}

func newChecks() *checks {
	c := &checks{Server: health.NewServer(), live: health.NewServer()}
	for _, name := range readyServices() {
		c.SetServingStatus(name, healthpb.HealthCheckResponse_SERVING)
	}
	c.live.SetServingStatus(serviceLive, healthpb.HealthCheckResponse_SERVING)
	return c
}

func (c *checks) of(r *healthpb.HealthCheckRequest) *health.Server {
	if r.GetService() == serviceLive {
		return c.live
	}
	return c.Server
}

// Check implements the gRPC health service.
func (c *checks) Check(ctx context.Context, r *healthpb.HealthCheckRequest) (*healthpb.HealthCheckResponse, error) {
	return c.of(r).Check(ctx, r)
}

// Watch implements the gRPC health service.
func (c *checks) Watch(r *healthpb.HealthCheckRequest, stream healthpb.Health_WatchServer) error {
	return c.of(r).Watch(r, stream)
}
