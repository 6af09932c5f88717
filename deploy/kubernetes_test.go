package deploy

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/config"
)

// workload is what these tests read of Deployments, and of the patch that adds a node; deploy/schema reads all of it.
type workload struct {
	Kind     string                `yaml:"kind"`
	Metadata struct{ Name string } `yaml:"metadata"`
	Spec     struct {
		Replicas int `yaml:"replicas"`
		Strategy struct {
			RollingUpdate struct {
				MaxUnavailable any `yaml:"maxUnavailable"`
			} `yaml:"rollingUpdate"`
		} `yaml:"strategy"`
		Template struct {
			Metadata struct {
				Labels map[string]string `yaml:"labels"`
			} `yaml:"metadata"`
			Spec podSpec `yaml:"spec"`
		} `yaml:"template"`
	} `yaml:"spec"`
}

type podSpec struct {
	Automount       *bool          `yaml:"automountServiceAccountToken"`
	Grace           int            `yaml:"terminationGracePeriodSeconds"`
	SecurityContext map[string]any `yaml:"securityContext"`
	InitContainers  []container    `yaml:"initContainers"`
	Containers      []container    `yaml:"containers"`
	Volumes         []struct {
		Name      string                `yaml:"name"`
		ConfigMap struct{ Name string } `yaml:"configMap"`
		Secret    struct {
			Name string `yaml:"secretName"`
		} `yaml:"secret"`
		EmptyDir map[string]any `yaml:"emptyDir"`
	} `yaml:"volumes"`
}

type container struct {
	Name    string   `yaml:"name"`
	Image   string   `yaml:"image"`
	Command []string `yaml:"command"`
	Args    []string `yaml:"args"`
	Restart string   `yaml:"restartPolicy"`
	Ports   []struct {
		Name string `yaml:"name"`
		Port int    `yaml:"containerPort"`
	} `yaml:"ports"`
	Env []struct {
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	} `yaml:"env"`
	Resources struct {
		Limits map[string]string `yaml:"limits"`
	} `yaml:"resources"`
	Startup         *probe         `yaml:"startupProbe"`
	Readiness       *probe         `yaml:"readinessProbe"`
	Liveness        *probe         `yaml:"livenessProbe"`
	SecurityContext map[string]any `yaml:"securityContext"`
	Mounts          []struct {
		Name     string `yaml:"name"`
		Path     string `yaml:"mountPath"`
		ReadOnly bool   `yaml:"readOnly"`
		SubPath  string `yaml:"subPath"`
	} `yaml:"volumeMounts"`
	Lifecycle struct {
		PreStop struct {
			Sleep struct{ Seconds int } `yaml:"sleep"`
		} `yaml:"preStop"`
	} `yaml:"lifecycle"`
}

type probe struct {
	HTTP struct {
		Path string `yaml:"path"`
		Port string `yaml:"port"`
	} `yaml:"httpGet"`
}

func (c container) port(name string) int {
	for _, p := range c.Ports {
		if p.Name == name {
			return p.Port
		}
	}
	return 0
}

func (c container) env(name string) string {
	for _, e := range c.Env {
		if e.Name == name {
			return e.Value
		}
	}
	return ""
}

// documents reads the documents of a YAML file of one kind.
func documents[T any](t *testing.T, file, kind string) []T {
	t.Helper()
	var found []T
	for text := range strings.SplitSeq(read(t, file), "\n---\n") {
		var head struct{ Kind string }
		if err := yaml.Unmarshal([]byte(text), &head); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		if head.Kind != kind {
			continue
		}
		var into T
		if err := yaml.Unmarshal([]byte(text), &into); err != nil {
			t.Fatalf("%s: %v", file, err)
		}
		found = append(found, into)
	}
	if len(found) == 0 {
		t.Fatalf("%s has no %s", file, kind)
	}
	return found
}

type kubeService struct {
	Metadata struct{ Name string } `yaml:"metadata"`
	Spec     struct {
		ClusterIP string            `yaml:"clusterIP"`
		NotReady  *bool             `yaml:"publishNotReadyAddresses"`
		Selector  map[string]string `yaml:"selector"`
		Ports     []struct {
			Name   string `yaml:"name"`
			Port   int    `yaml:"port"`
			Target any    `yaml:"targetPort"`
		} `yaml:"ports"`
	} `yaml:"spec"`
}

// reaches holds that name:port leads to a headless Service, one address for each ready pod, and to that port of a container.
func reaches(t *testing.T, what, nameport string, services []kubeService, labels map[string]string, c container) {
	t.Helper()
	host, text, err := net.SplitHostPort(nameport)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	for _, s := range services {
		if s.Metadata.Name != host {
			continue
		}
		if s.Spec.ClusterIP != "None" || s.Spec.NotReady == nil || *s.Spec.NotReady {
			t.Errorf("%s: Service %s is not a headless one of ready pods", what, host)
		}
		for k, v := range s.Spec.Selector {
			if labels[k] != v && !strings.HasPrefix(k, "app.kubernetes.io/name") {
				t.Errorf("%s: Service %s selects %s=%s, the pods have %v", what, host, k, v, labels)
			}
		}
		for _, p := range s.Spec.Ports {
			if strconv.Itoa(p.Port) != text {
				continue
			}
			// DNS gives addresses alone: the port is that of the container.
			if slices.ContainsFunc(c.Ports, func(own struct {
				Name string `yaml:"name"`
				Port int    `yaml:"containerPort"`
			},
			) bool {
				return own.Port == p.Port && (fmt.Sprint(p.Target) == own.Name || fmt.Sprint(p.Target) == text)
			}) {
				return
			}
		}
		t.Errorf("%s: %s has no port %s of container %s", what, host, text, c.Name)
		return
	}
	t.Errorf("%s: no Service %s", what, host)
}

// hardened holds what a container of kvsteer may not do.
func hardened(t *testing.T, pod podSpec, c container) {
	t.Helper()
	both := map[string]any{}
	for _, from := range []map[string]any{pod.SecurityContext, c.SecurityContext} {
		for k, v := range from {
			both[k] = v
		}
	}
	delete(both, "fsGroup")
	want := map[string]any{
		"runAsNonRoot": true, "runAsUser": uint64(65532), "runAsGroup": uint64(65532), "allowPrivilegeEscalation": false, "readOnlyRootFilesystem": true,
		"capabilities": map[string]any{"drop": []any{"ALL"}}, "seccompProfile": map[string]any{"type": "RuntimeDefault"},
	}
	if diff := cmp.Diff(want, both); diff != "" {
		t.Errorf("%s: security context (-want +got):\n%s", c.Name, diff)
	}
	if c.Image != "kvsteer" {
		t.Errorf("%s: image %q, want the name that kustomizations replace", c.Name, c.Image)
	}
	for _, m := range c.Mounts {
		if m.SubPath != "" || (!m.ReadOnly && m.Name != "kvsteer-state") {
			t.Errorf("%s: %+v is not a whole folder to read", c.Name, m)
		}
	}
	// The collector begins to work hard before the kernel ends the process.
	soft, err := parseSize(c.env("GOMEMLIMIT"))
	hard, err2 := parseSize(strings.TrimSuffix(c.Resources.Limits["memory"], "i") + "iB")
	if err != nil || err2 != nil || soft < hard/2 || soft > hard*19/20 {
		t.Errorf("%s: GOMEMLIMIT %s of a limit of %s", c.Name, c.env("GOMEMLIMIT"), c.Resources.Limits["memory"])
	}
	if c.Resources.Limits["cpu"] != "" {
		t.Errorf("%s has a limit of processor time: throttled, it answers late", c.Name)
	}
}

func parseSize(text string) (int64, error) {
	for unit, bytes := range map[string]int64{"MiB": 1 << 20, "GiB": 1 << 30} {
		if n, ok := strings.CutSuffix(text, unit); ok {
			v, err := strconv.ParseInt(n, 10, 64)
			return v * bytes, err
		}
	}
	return 0, fmt.Errorf("%q is no size", text)
}

// mounted is the name of the ConfigMap, or of the Secret, in which a file of a container is a key.
func mounted(t *testing.T, pod podSpec, c container, file string) (from, key string) {
	t.Helper()
	for _, m := range c.Mounts {
		rest, ok := strings.CutPrefix(file, m.Path+"/")
		if !ok || strings.Contains(rest, "/") {
			continue
		}
		for _, v := range pod.Volumes {
			if v.Name == m.Name {
				return v.ConfigMap.Name + v.Secret.Name, rest
			}
		}
	}
	t.Fatalf("%s: nothing is mounted for %s", c.Name, file)
	return "", ""
}

// generated are the files that a kustomization makes a ConfigMap of, by their keys.
func generated(t *testing.T, dir, name string) []string {
	t.Helper()
	var k struct {
		ConfigMaps []struct {
			Name  string   `yaml:"name"`
			Files []string `yaml:"files"`
		} `yaml:"configMapGenerator"`
	}
	if err := yaml.Unmarshal([]byte(read(t, filepath.Join(dir, "kustomization.yaml"))), &k); err != nil {
		t.Fatal(err)
	}
	for _, m := range k.ConfigMaps {
		if m.Name == name {
			return m.Files
		}
	}
	return nil
}

// here copies a configuration so that its files are this host's.
func here(t *testing.T, file string, replace ...string) string {
	t.Helper()
	dir := t.TempDir()
	for _, token := range []string{"admin", "feed"} {
		if err := os.WriteFile(filepath.Join(dir, token), []byte("a-token-of-these-tests-alone\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := strings.NewReplacer(append(replace, "/etc/kvsteer/tokens", dir, "/var/lib/kvsteer", filepath.Join(dir, "state"))...).Replace(read(t, file))
	copied := filepath.Join(dir, filepath.Base(file))
	if err := os.WriteFile(copied, []byte(text), 0o644); err != nil {
		t.Fatal(err)
	}
	return copied
}

func portOf(t *testing.T, address string) int {
	t.Helper()
	_, text, err := net.SplitHostPort(address)
	if err != nil {
		t.Fatal(err)
	}
	n, err := strconv.Atoi(text)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// TestKubernetesRouter holds the routers' Deployment, Services and configuration to each other.
func TestKubernetesRouter(t *testing.T) {
	const dir = "kubernetes/router"
	d := documents[workload](t, dir+"/deployment.yaml", "Deployment")[0]
	pod := d.Spec.Template.Spec
	c := pod.Containers[0]
	hardened(t, pod, c)
	if d.Spec.Replicas < 2 || d.Spec.Strategy.RollingUpdate.MaxUnavailable != uint64(0) || pod.Automount == nil || *pod.Automount {
		t.Errorf("%d replicas, %+v, token mounted: %v", d.Spec.Replicas, d.Spec.Strategy, pod.Automount)
	}
	file := c.Args[2]
	from, key := mounted(t, pod, c, file)
	if c.Args[0] != "serve" || c.Args[1] != "--config" || !slices.Contains(generated(t, dir, from), key) {
		t.Fatalf("args %q: no ConfigMap %s with %s is generated", c.Args, from, key)
	}
	out := run(t, ".", kvsteer(t), "serve", "--check", "--config", here(t, filepath.Join(dir, key)))
	if !strings.Contains(out, "is good: 1 pool") {
		t.Errorf("serve --check says:\n%s", out)
	}
	cfg, err := config.Load(filepath.Join(dir, key))
	if err != nil {
		t.Fatal(err)
	}
	for name, at := range map[string]string{"grpc": cfg.Listen, "admin": cfg.Admin.Listen} {
		if c.port(name) != portOf(t, at) || !strings.HasPrefix(at, "0.0.0.0:") {
			t.Errorf("port %s is %d, the router listens at %s", name, c.port(name), at)
		}
	}
	for name, p := range map[string]*probe{"/healthz": c.Startup, "/readyz": c.Readiness, "/healthz ": c.Liveness} {
		if p == nil || p.HTTP.Path != strings.TrimSpace(name) || p.HTTP.Port != "admin" {
			t.Errorf("probe %+v, want %s of the admin listener", p, name)
		}
	}
	// The kubelet kills after the grace period: notice and drain must fit, with time to spare. Envoy takes 2 s to notice.
	if least := time.Duration(cfg.Notice) + time.Duration(cfg.Drain) + 10*time.Second; time.Duration(pod.Grace)*time.Second < least || time.Duration(cfg.Notice) < 3*time.Second {
		t.Errorf("grace period %d s, notice %v, drain %v", pod.Grace, time.Duration(cfg.Notice), time.Duration(cfg.Drain))
	}
	for _, token := range []string{cfg.Admin.TokenFile, cfg.Feed.TokenFile} {
		if from, _ := mounted(t, pod, c, token); from != "kvsteer-tokens" {
			t.Errorf("%s comes from %q", token, from)
		}
	}
	services := documents[kubeService](t, dir+"/service.yaml", "Service")
	reaches(t, "envoy.routers", cfg.Envoy.Routers[0], services, d.Spec.Template.Metadata.Labels, c)
}

// nodeFile is what these tests read of a node's configuration.
type nodeFile struct {
	Listen string `yaml:"listen"`
	Pools  []struct {
		Name     string   `yaml:"name"`
		Models   []string `yaml:"models"`
		HashSeed string   `yaml:"hash_seed"`
		Engines  []struct {
			Address string `yaml:"address"`
		} `yaml:"engines"`
	} `yaml:"pools"`
}

// TestKubernetesEngines holds the engines' Deployments, their nodes, Services and configurations to each other and to the routers'.
func TestKubernetesEngines(t *testing.T) {
	router, err := config.Load("kubernetes/router/kvsteer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	patch := documents[workload](t, "kubernetes/node/sidecar.yaml", "Deployment")[0].Spec.Template.Spec
	node := patch.InitContainers[0]
	hardened(t, podSpec{}, node)
	if node.Restart != "Always" || node.Startup != nil || node.Readiness != nil || node.Liveness == nil || node.Liveness.HTTP.Port != "node-admin" {
		t.Errorf("the node is no sidecar that engines do not wait for: %+v", node)
	}
	for _, kind := range []string{"vllm", "sglang"} {
		t.Run(kind, func(t *testing.T) {
			dir := "kubernetes/engines/" + kind
			d := documents[workload](t, dir+"/deployment.yaml", "Deployment")[0]
			pod := d.Spec.Template.Spec
			engine := pod.Containers[0]
			from, key := mounted(t, patch, node, node.Args[2])
			if node.Args[0] != "node" || !slices.Contains(generated(t, dir, from), key) {
				t.Fatalf("args %q: no ConfigMap %s with %s is generated", node.Args, from, key)
			}
			copied := here(t, filepath.Join(dir, key))
			if out := run(t, ".", kvsteer(t), "node", "--check", "--config", copied); !strings.Contains(out, "is good") {
				t.Errorf("node --check says:\n%s", out)
			}
			var cfg nodeFile
			if err := yaml.Unmarshal([]byte(read(t, filepath.Join(dir, key))), &cfg); err != nil {
				t.Fatal(err)
			}
			if portOf(t, cfg.Listen) != node.port("feed") {
				t.Errorf("the node listens at %s, port feed is %d", cfg.Listen, node.port("feed"))
			}
			pool, own := router.Pools[0], cfg.Pools[0]
			if own.Name != pool.Name || !slices.Equal(own.Models, pool.Models) || d.Spec.Template.Metadata.Labels["kvsteer-pool"] != pool.Name {
				t.Errorf("pool %s %q, the routers' is %s %q", own.Name, own.Models, pool.Name, pool.Models)
			}
			if seed := engine.env("PYTHONHASHSEED"); seed != own.HashSeed || (kind == "vllm" && seed != pool.HashSeed) {
				t.Errorf("hash seed %q of the engine, %q of the node, %q of the routers", seed, own.HashSeed, pool.HashSeed)
			}
			services := documents[kubeService](t, dir+"/service.yaml", "Service")
			labels := d.Spec.Template.Metadata.Labels
			reaches(t, "nodes[0].dns", router.Nodes[0].DNS, services, labels, node)
			reaches(t, "pools[0].dns", pool.DNS, services, labels, engine)
			if own.Engines[0].Address != fmt.Sprintf(":%d", engine.port("http")) {
				t.Errorf("the node's engine is at %q, port http is %d", own.Engines[0].Address, engine.port("http"))
			}
			// A pod that is to end is out of DNS, and so of the routers, well before the engine gets its signal.
			if wait := engine.Lifecycle.PreStop.Sleep.Seconds; time.Duration(wait)*time.Second < 5*time.Duration(router.DNSRefresh) || pod.Grace < wait+60 {
				t.Errorf("the engine ends %d s after its pod is told to, of %d s, with DNS asked every %v", wait, pod.Grace, time.Duration(router.DNSRefresh))
			}
			engineArgs(t, copied, engine)
		})
	}
}

// engineArgs holds an engine's arguments to what kvsteer engine-args prints for the node's configuration.
func engineArgs(t *testing.T, file string, engine container) {
	t.Helper()
	out := run(t, ".", kvsteer(t), "engine-args", "--config", file, "--format", "container")
	var want container
	if err := yaml.NewDecoder(strings.NewReader(out)).Decode(&want); err != nil && !errors.Is(err, io.EOF) {
		t.Fatalf("%v\n%s", err, out)
	}
	if len(want.Args) < 6 {
		t.Fatalf("engine-args prints only %q", out)
	}
	has := func(name string, values []string) bool {
		i := slices.Index(engine.Args, name)
		return i >= 0 && len(engine.Args) >= i+1+len(values) && slices.Equal(engine.Args[i+1:i+1+len(values)], values)
	}
	for i := 0; i < len(want.Args); {
		j := i + 1
		for j < len(want.Args) && !strings.HasPrefix(want.Args[j], "--") {
			j++
		}
		if !has(want.Args[i], want.Args[i+1:j]) {
			t.Errorf("the engine lacks %q", want.Args[i:j])
		}
		i = j
	}
	for _, e := range want.Env {
		if engine.env(e.Name) != e.Value {
			t.Errorf("%s=%s, want %s", e.Name, engine.env(e.Name), e.Value)
		}
	}
}

// TestKubernetesTLS holds the configurations with TLS to those without: they differ in TLS alone, and the program takes them.
func TestKubernetesTLS(t *testing.T) {
	plain, err := config.Load("kubernetes/router/kvsteer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	secured, err := config.Load("kubernetes/tls/kvsteer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if secured.Insecure || secured.Feed.Insecure || secured.TLS.ClientCAFile == "" || !secured.Admin.TLS.On() || secured.Feed.TLS.CertFile == "" {
		t.Errorf("something is in clear text: %+v, %+v, %+v", secured.TLS, secured.Admin, secured.Feed)
	}
	plain.Insecure, plain.Feed.Insecure, plain.TLS, plain.Admin.TLS, plain.Feed.TLS = false, false, secured.TLS, secured.Admin.TLS, secured.Feed.TLS
	if diff := cmp.Diff(plain, secured); diff != "" {
		t.Errorf("the routers' configurations differ in more than TLS (-plain +tls):\n%s", diff)
	}
	var nodes [2]map[string]any
	for i, file := range []string{"kubernetes/engines/vllm/node.yaml", "kubernetes/tls/node.yaml"} {
		if err := yaml.Unmarshal([]byte(read(t, file)), &nodes[i]); err != nil {
			t.Fatal(err)
		}
		for _, key := range []string{"tls", "admin", "insecure"} {
			delete(nodes[i], key)
		}
	}
	if diff := cmp.Diff(nodes[0], nodes[1]); diff != "" {
		t.Errorf("the nodes' configurations differ in more than TLS (-plain +tls):\n%s", diff)
	}
	certificates := t.TempDir()
	selfSigned(t, certificates)
	for command, file := range map[string]string{"serve": "kubernetes/tls/kvsteer.yaml", "node": "kubernetes/tls/node.yaml"} {
		if out := run(t, ".", kvsteer(t), command, "--check", "--config", here(t, file, "/etc/kvsteer/tls", certificates)); !strings.Contains(out, "is good") {
			t.Errorf("%s --check says:\n%s", command, out)
		}
	}
}

// selfSigned writes a certificate that is its own authority, under the names that Secrets have.
func selfSigned(t *testing.T, dir string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour), DNSNames: []string{"kvsteer-router", "kvsteer-node"},
		IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageDigitalSignature | x509.KeyUsageCertSign,
	}
	certificate, err := x509.CreateCertificate(rand.Reader, template, template, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	private, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	chain := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: certificate})
	for name, content := range map[string][]byte{"tls.crt": chain, "ca.crt": chain, "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: private})} {
		if err := os.WriteFile(filepath.Join(dir, name), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}
