package schema

import (
	"maps"
	"slices"
	"strings"
	"testing"

	egv1a1 "github.com/envoyproxy/gateway/api/v1alpha1"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	netv1 "k8s.io/api/networking/v1"
	policyv1 "k8s.io/api/policy/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/util/intstr"
	gwapiv1 "sigs.k8s.io/gateway-api/apis/v1"
	"sigs.k8s.io/yaml"
)

// all reads the objects of a kind.
func all[T any](t *testing.T, objects []object, kind string) []T {
	t.Helper()
	var found []T
	for _, o := range objects {
		if o.Kind == kind {
			var into T
			if err := yaml.UnmarshalStrict(o.text, &into); err != nil {
				t.Fatal(err)
			}
			found = append(found, into)
		}
	}
	if len(found) == 0 {
		t.Fatalf("no %s", kind)
	}
	return found
}

// selects are the pods that a selector selects, as Deployments make them; it must be some.
func selects(t *testing.T, what string, selector *metav1.LabelSelector, deployments []appsv1.Deployment) []corev1.PodTemplateSpec {
	t.Helper()
	s, err := metav1.LabelSelectorAsSelector(selector)
	if err != nil {
		t.Fatal(err)
	}
	var found []corev1.PodTemplateSpec
	for _, d := range deployments {
		if s.Matches(labels.Set(d.Spec.Template.Labels)) {
			found = append(found, d.Spec.Template)
		}
	}
	if len(found) == 0 {
		t.Errorf("%s selects no pods: %v", what, selector)
	}
	return found
}

// ports are the ports of a pod's containers by name, and by themselves.
func ports(pod corev1.PodTemplateSpec) map[intstr.IntOrString]bool {
	known := map[intstr.IntOrString]bool{}
	for _, c := range slices.Concat(pod.Spec.InitContainers, pod.Spec.Containers) {
		for _, p := range c.Ports {
			known[intstr.FromString(p.Name)], known[intstr.FromInt32(p.ContainerPort)] = true, true
		}
	}
	return known
}

// secrets are those that a reader of README.md makes, by the example that wants them.
var secrets = map[string][]string{"example": {"kvsteer-tokens"}, "example-tls": {"kvsteer-tokens", "kvsteer-router-tls", "kvsteer-node-tls"}}

// TestExamplesAgree holds the objects of a whole site to each other: selectors, ports, volumes, references of policies and routes.
func TestExamplesAgree(t *testing.T) {
	for example, secrets := range secrets {
		t.Run(example, func(t *testing.T) { agree(t, build(t, example), secrets) })
	}
}

func agree(t *testing.T, objects []object, secrets []string) {
	deployments := all[appsv1.Deployment](t, objects, "Deployment")
	configs := map[string]corev1.ConfigMap{}
	for _, c := range all[corev1.ConfigMap](t, objects, "ConfigMap") {
		configs[c.Name] = c
	}
	for _, o := range objects {
		if o.Metadata.Namespace != "llm" && o.Kind != "Namespace" && o.Kind != "GatewayClass" {
			t.Errorf("%s is in namespace %q", o, o.Metadata.Namespace)
		}
	}
	for _, d := range deployments {
		selects(t, "Deployment "+d.Name, d.Spec.Selector, []appsv1.Deployment{d})
		pod := d.Spec.Template.Spec
		volumes := map[string]corev1.Volume{}
		for _, v := range pod.Volumes {
			volumes[v.Name] = v
			switch {
			case v.ConfigMap != nil && configs[v.ConfigMap.Name].Name == "":
				t.Errorf("Deployment %s: no ConfigMap %s", d.Name, v.ConfigMap.Name)
			case v.Secret != nil && !slices.Contains(secrets, v.Secret.SecretName):
				t.Errorf("Deployment %s: nobody makes the Secret %s", d.Name, v.Secret.SecretName)
			}
		}
		if pod.AutomountServiceAccountToken == nil || *pod.AutomountServiceAccountToken {
			t.Errorf("Deployment %s: pods get a token of the cluster", d.Name)
		}
		for _, c := range slices.Concat(pod.InitContainers, pod.Containers) {
			if c.Image == "kvsteer" || !strings.Contains(c.Image, "/") || strings.HasSuffix(c.Image, ":latest") {
				t.Errorf("Deployment %s: image %s", d.Name, c.Image)
			}
			for _, m := range c.VolumeMounts {
				if volumes[m.Name].Name == "" {
					t.Errorf("Deployment %s: no volume %s", d.Name, m.Name)
				}
			}
			for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
				if p != nil && !slices.ContainsFunc(c.Ports, func(own corev1.ContainerPort) bool { return own.Name == p.HTTPGet.Port.StrVal }) {
					t.Errorf("Deployment %s: container %s has no port %s for its probe", d.Name, c.Name, p.HTTPGet.Port.String())
				}
			}
		}
	}
	services := map[string]corev1.Service{}
	for _, s := range all[corev1.Service](t, objects, "Service") {
		services[s.Name] = s
		for _, pod := range selects(t, "Service "+s.Name, &metav1.LabelSelector{MatchLabels: s.Spec.Selector}, deployments) {
			for _, p := range s.Spec.Ports {
				if !ports(pod)[p.TargetPort] {
					t.Errorf("Service %s: its pods have no port %s", s.Name, p.TargetPort.String())
				}
			}
		}
	}
	for _, b := range all[policyv1.PodDisruptionBudget](t, objects, "PodDisruptionBudget") {
		selects(t, "PodDisruptionBudget "+b.Name, b.Spec.Selector, deployments)
	}
	reached := map[string]bool{}
	for _, p := range all[netv1.NetworkPolicy](t, objects, "NetworkPolicy") {
		for _, pod := range selects(t, "NetworkPolicy "+p.Name, &p.Spec.PodSelector, deployments) {
			for _, rule := range p.Spec.Ingress {
				if len(rule.From) == 0 || len(rule.Ports) == 0 {
					t.Errorf("NetworkPolicy %s lets everybody in, or everywhere", p.Name)
				}
				for _, port := range rule.Ports {
					if !ports(pod)[*port.Port] {
						t.Errorf("NetworkPolicy %s: its pods have no port %s", p.Name, port.Port.String())
					}
					reached[p.Spec.PodSelector.MatchLabels["app.kubernetes.io/component"]+p.Spec.PodSelector.MatchLabels["kvsteer-pool"]+port.Port.String()] = true
				}
			}
		}
	}
	if want := []string{"chat8000", "chat9010", "chat9011", "routeradmin", "routergrpc"}; !slices.Equal(slices.Sorted(maps.Keys(reached)), want) {
		t.Errorf("NetworkPolicies let somebody reach %v, want %v", slices.Sorted(maps.Keys(reached)), want)
	}

	// References of routes and policies.
	names := map[string]bool{}
	for _, o := range objects {
		names[o.String()] = true
	}
	backend := func(what string, name gwapiv1.ObjectName, port *gwapiv1.PortNumber) {
		s, ok := services[string(name)]
		if !ok || port == nil || !slices.ContainsFunc(s.Spec.Ports, func(p corev1.ServicePort) bool { return p.Port == *port }) {
			t.Errorf("%s: no Service %s with that port", what, name)
		}
	}
	rules := map[string]bool{}
	for _, r := range all[gwapiv1.HTTPRoute](t, objects, "HTTPRoute") {
		for _, p := range r.Spec.ParentRefs {
			if !names["Gateway "+string(p.Name)] {
				t.Errorf("HTTPRoute %s: no Gateway %s", r.Name, p.Name)
			}
		}
		for _, rule := range r.Spec.Rules {
			rules[string(*rule.Name)] = true
			for _, b := range rule.BackendRefs {
				backend("HTTPRoute "+r.Name, b.Name, b.Port)
			}
		}
	}
	targets := func(what string, refs []gwapiv1.LocalPolicyTargetReferenceWithSectionName) {
		if len(refs) == 0 {
			t.Errorf("%s has no target", what)
		}
		for _, r := range refs {
			if !names[string(r.Kind)+" "+string(r.Name)] || (r.SectionName != nil && !rules[string(*r.SectionName)]) {
				t.Errorf("%s: no %s %s", what, r.Kind, r.Name)
			}
		}
	}
	for _, p := range all[egv1a1.EnvoyExtensionPolicy](t, objects, "EnvoyExtensionPolicy") {
		targets("EnvoyExtensionPolicy", p.Spec.TargetRefs)
		for _, e := range p.Spec.ExtProc {
			for _, b := range e.BackendRefs {
				backend("EnvoyExtensionPolicy", b.Name, b.Port)
			}
		}
	}
	for _, p := range all[egv1a1.BackendTrafficPolicy](t, objects, "BackendTrafficPolicy") {
		targets("BackendTrafficPolicy", p.Spec.TargetRefs)
	}
	for _, p := range all[egv1a1.ClientTrafficPolicy](t, objects, "ClientTrafficPolicy") {
		targets("ClientTrafficPolicy", p.Spec.TargetRefs)
	}
	for _, p := range all[egv1a1.EnvoyProxy](t, objects, "EnvoyProxy") {
		for _, s := range p.Spec.Telemetry.AccessLog.Settings {
			for _, sink := range s.Sinks {
				if sink.ALS != nil {
					backend("EnvoyProxy", sink.ALS.BackendRefs[0].Name, sink.ALS.BackendRefs[0].Port)
				}
			}
		}
	}
	for _, g := range all[gwapiv1.Gateway](t, objects, "Gateway") {
		if !names["GatewayClass "+string(g.Spec.GatewayClassName)] || !names["EnvoyProxy "+g.Spec.Infrastructure.ParametersRef.Name] {
			t.Errorf("Gateway %s: no class %s, or no %v", g.Name, g.Spec.GatewayClassName, g.Spec.Infrastructure.ParametersRef)
		}
	}
}

// TestTLSIsEverywhere holds that nothing of kvsteer is in clear text in the example with TLS: each probe asks by TLS, no configuration says
// insecure, and Envoy checks the routers' certificate and shows its own.
func TestTLSIsEverywhere(t *testing.T) {
	objects := build(t, "example-tls")
	probes := 0
	for _, d := range all[appsv1.Deployment](t, objects, "Deployment") {
		for _, c := range slices.Concat(d.Spec.Template.Spec.InitContainers, d.Spec.Template.Spec.Containers) {
			if !strings.HasPrefix(c.Image, "registry.example.com/kvsteer:") {
				continue
			}
			for _, p := range []*corev1.Probe{c.StartupProbe, c.ReadinessProbe, c.LivenessProbe} {
				if p == nil {
					continue
				}
				if probes++; p.HTTPGet.Scheme != corev1.URISchemeHTTPS || p.HTTPGet.Path == "" {
					t.Errorf("%s: a probe of container %s asks by %q", d.Name, c.Name, p.HTTPGet.Scheme)
				}
			}
		}
	}
	if probes != 4 {
		t.Errorf("%d probes, want 3 of the router and 1 of the node", probes)
	}
	files := 0
	for _, c := range all[corev1.ConfigMap](t, objects, "ConfigMap") {
		for key, text := range c.Data {
			if files++; strings.Contains(text, "insecure") || strings.Count(text, "client_ca_file: /etc/kvsteer/tls/ca.crt") != 1 || strings.Count(text, "cert_file: /etc/kvsteer/tls/tls.crt") < 2 {
				t.Errorf("ConfigMap %s, %s:\n%s", c.Name, key, text)
			}
		}
	}
	if files != 2 {
		t.Errorf("%d configurations, want that of the routers and that of the nodes", files)
	}
	for _, p := range all[gwapiv1.BackendTLSPolicy](t, objects, "BackendTLSPolicy") {
		if ref := p.Spec.TargetRefs[0]; ref.Name != "kvsteer-router" || *ref.SectionName != "grpc" || p.Spec.Validation.Hostname != "kvsteer-router" {
			t.Errorf("BackendTLSPolicy %+v", p.Spec)
		}
	}
	for _, p := range all[egv1a1.EnvoyProxy](t, objects, "EnvoyProxy") {
		if p.Spec.BackendTLS == nil || p.Spec.BackendTLS.ClientCertificateRef.Name != "kvsteer-envoy-tls" || len(p.Spec.Telemetry.AccessLog.Settings) != 2 {
			t.Errorf("EnvoyProxy %+v", p.Spec)
		}
	}
}
