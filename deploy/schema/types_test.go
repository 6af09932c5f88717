package schema

import (
	"encoding/json"
	"fmt"
	"strings"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	mutationrulesv3 "github.com/envoyproxy/go-control-plane/envoy/config/common/mutation_rules/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/access_loggers/grpc/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/buffer/v3"
	extprocv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/http/ext_proc/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/http/early_header_mutation/header_mutation/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/least_request/v3"
	overridehostv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/load_balancing_policies/override_host/v3"
	_ "github.com/envoyproxy/go-control-plane/envoy/extensions/upstreams/http/v3"
	"google.golang.org/protobuf/encoding/protojson"
	"google.golang.org/protobuf/proto"
	networkingv1 "istio.io/api/networking/v1"
	networkingv1alpha3 "istio.io/api/networking/v1alpha3"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// ofKubernetes reports whether an object is one that Kubernetes itself has a schema of.
func ofKubernetes(o object) bool {
	switch o.group() {
	case "", "apps", "policy", "networking.k8s.io":
		return true
	}
	return false
}

// strictly reads an object into the type of whoever reads it, and what it holds for Envoy into Envoy's messages. A field that they do not
// know is an error.
func strictly(o object) error {
	types := map[string]func() any{
		"v1/Namespace":                                        func() any { return new(corev1.Namespace) },
		"v1/ConfigMap":                                        func() any { return new(corev1.ConfigMap) },
		"v1/Service":                                          func() any { return new(corev1.Service) },
		"v1/ServiceAccount":                                   func() any { return new(corev1.ServiceAccount) },
		"apps/v1/Deployment":                                  func() any { return new(appsv1.Deployment) },
		"policy/v1/PodDisruptionBudget":                       func() any { return new(policyv1.PodDisruptionBudget) },
		"networking.k8s.io/v1/NetworkPolicy":                  func() any { return new(netv1.NetworkPolicy) },
		"gateway.networking.k8s.io/v1/Gateway":                func() any { return new(gwapiv1.Gateway) },
		"gateway.networking.k8s.io/v1/GatewayClass":           func() any { return new(gwapiv1.GatewayClass) },
		"gateway.networking.k8s.io/v1/BackendTLSPolicy":       func() any { return new(gwapiv1.BackendTLSPolicy) },
		"gateway.networking.k8s.io/v1/HTTPRoute":              func() any { return new(gwapiv1.HTTPRoute) },
		"gateway.envoyproxy.io/v1alpha1/EnvoyProxy":           func() any { return new(egv1a1.EnvoyProxy) },
		"gateway.envoyproxy.io/v1alpha1/EnvoyExtensionPolicy": func() any { return new(egv1a1.EnvoyExtensionPolicy) },
		"gateway.envoyproxy.io/v1alpha1/EnvoyPatchPolicy":     func() any { return new(egv1a1.EnvoyPatchPolicy) },
		"gateway.envoyproxy.io/v1alpha1/BackendTrafficPolicy": func() any { return new(egv1a1.BackendTrafficPolicy) },
		"gateway.envoyproxy.io/v1alpha1/ClientTrafficPolicy":  func() any { return new(egv1a1.ClientTrafficPolicy) },
		"networking.istio.io/v1alpha3/EnvoyFilter":            func() any { return new(networkingv1alpha3.EnvoyFilter) },
		"networking.istio.io/v1/DestinationRule":              func() any { return new(networkingv1.DestinationRule) },
	}
	make, ok := types[o.APIVersion+"/"+o.Kind]
	if !ok {
		return fmt.Errorf("no type is known for %s %s", o.APIVersion, o.Kind)
	}
	switch into := make().(type) {
	case *networkingv1alpha3.EnvoyFilter:
		if err := spec(o, into); err != nil {
			return err
		}
		return envoyFilter(into)
	case *egv1a1.EnvoyPatchPolicy:
		if err := yaml.UnmarshalStrict(o.text, into); err != nil {
			return err
		}
		return envoyPatches(into)
	case proto.Message:
		return spec(o, into)
	default:
		return yaml.UnmarshalStrict(o.text, into)
	}
}

// spec reads the spec of an object whose type is a protobuf message.
func spec(o object, into proto.Message) error {
	var outer struct {
		metav1.TypeMeta   `json:",inline"`
		metav1.ObjectMeta `json:"metadata"`
		Spec              json.RawMessage `json:"spec"`
	}
	if err := yaml.UnmarshalStrict(o.text, &outer); err != nil {
		return err
	}
	return protojson.Unmarshal(outer.Spec, into)
}

// envoyFilter reads the values of an EnvoyFilter's patches into the messages that Istio merges or adds them to. What is added as a whole
// must be valid by itself.
func envoyFilter(f *networkingv1alpha3.EnvoyFilter) error {
	for i, p := range f.ConfigPatches {
		var into interface {
			proto.Message
			ValidateAll() error
		}
		switch p.ApplyTo {
		case networkingv1alpha3.EnvoyFilter_NETWORK_FILTER:
			into = new(listenerv3.Filter)
		case networkingv1alpha3.EnvoyFilter_HTTP_FILTER:
			into = new(hcmv3.HttpFilter)
		case networkingv1alpha3.EnvoyFilter_HTTP_ROUTE:
			into = new(routev3.Route)
		case networkingv1alpha3.EnvoyFilter_CLUSTER:
			into = new(clusterv3.Cluster)
		default:
			return fmt.Errorf("configPatches[%d]: nothing is known of %v", i, p.ApplyTo)
		}
		value, err := protojson.Marshal(p.Patch.Value)
		if err != nil {
			return err
		}
		if err := protojson.Unmarshal(value, into); err != nil {
			return fmt.Errorf("configPatches[%d] (%v): %w", i, p.ApplyTo, err)
		}
		if p.Patch.Operation == networkingv1alpha3.EnvoyFilter_Patch_MERGE {
			continue
		}
		if err := into.ValidateAll(); err != nil {
			return fmt.Errorf("configPatches[%d] (%v): %w", i, p.ApplyTo, err)
		}
	}
	return nil
}

// envoyPatches reads the values of an EnvoyPatchPolicy's patches into the fields that they stand for.
func envoyPatches(p *egv1a1.EnvoyPatchPolicy) error {
	for i, patch := range p.Spec.JSONPatches {
		path := ""
		if patch.Operation.Path != nil {
			path = *patch.Operation.Path
		}
		value, into := patch.Operation.Value.Raw, proto.Message(nil)
		switch field := path[strings.LastIndex(path, "/")+1:]; field {
		case "mutation_rules":
			into = new(mutationrulesv3.HeaderMutationRules)
		case "forward_rules":
			into = new(extprocv3.HeaderForwardingRules)
		case "override_host_sources":
			into, value = new(overridehostv3.OverrideHost), []byte(`{"override_host_sources": `+string(value)+`}`)
		case "buffer_size_bytes":
			var size uint32
			if err := json.Unmarshal(value, &size); err != nil {
				return fmt.Errorf("jsonPatches[%d]: %w", i, err)
			}
			continue
		default:
			return fmt.Errorf("jsonPatches[%d]: nothing is known of %q", i, field)
		}
		if err := protojson.Unmarshal(value, into); err != nil {
			return fmt.Errorf("jsonPatches[%d]: %w", i, err)
		}
	}
	return nil
}
