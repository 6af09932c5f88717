package schema

import (
	"bytes"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/kustomize/api/krusty"
	"sigs.k8s.io/kustomize/kyaml/filesys"
	"sigs.k8s.io/yaml"
)

// object is one object that kubectl would send to a cluster.
type object struct {
	APIVersion string `json:"apiVersion"`
	Kind       string `json:"kind"`
	Metadata   struct {
		Name      string            `json:"name"`
		Namespace string            `json:"namespace"`
		Labels    map[string]string `json:"labels"`
	} `json:"metadata"`
	text []byte // YAML
}

func (o object) String() string { return o.Kind + " " + o.Metadata.Name }

// group is the API group, "" for the core.
func (o object) group() string {
	group, _, ok := strings.Cut(o.APIVersion, "/")
	if !ok {
		return ""
	}
	return group
}

const manifests = "../kubernetes"

// kustomizations are the folders that kubectl apply -k takes, below manifests.
func kustomizations(t *testing.T) []string {
	t.Helper()
	var found []string
	err := filepath.WalkDir(manifests, func(path string, _ os.DirEntry, err error) error {
		if err == nil && filepath.Base(path) == "kustomization.yaml" {
			var k struct{ Kind string }
			if text, err := os.ReadFile(path); err != nil {
				return err
			} else if err := yaml.Unmarshal(text, &k); err != nil {
				return err
			} else if k.Kind == "Kustomization" {
				found = append(found, strings.TrimPrefix(filepath.Dir(path), manifests+"/"))
			}
		}
		return err
	})
	if err != nil || len(found) < 5 {
		t.Fatalf("kustomizations %q: %v", found, err)
	}
	return found
}

// build builds a kustomization as kubectl apply -k does.
func build(t *testing.T, dir string) []object {
	t.Helper()
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(filesys.MakeFsOnDisk(), filepath.Join(manifests, dir))
	if err != nil {
		t.Fatal(err)
	}
	var all []object
	for _, r := range resources.Resources() {
		text, err := r.AsYAML()
		if err != nil {
			t.Fatal(err)
		}
		o := object{text: text}
		if err := yaml.Unmarshal(text, &o); err != nil {
			t.Fatal(err)
		}
		all = append(all, o)
	}
	if len(all) < 3 {
		t.Fatalf("%s: only %v", dir, all)
	}
	return all
}

// TestKustomizations builds every kustomization, and holds each object to the schemas of what reads it: Kubernetes', Envoy Gateway's,
// the Gateway API's, Istio's.
func TestKustomizations(t *testing.T) {
	folder := t.TempDir()
	var files []string
	kinds := map[string]int{}
	for _, dir := range kustomizations(t) {
		for i, o := range build(t, dir) {
			kinds[o.Kind]++
			if err := strictly(o); err != nil {
				t.Errorf("%s: %s: %v", dir, o, err)
			}
			if !ofKubernetes(o) {
				continue
			}
			file := filepath.Join(folder, fmt.Sprintf("%s-%d-%s.yaml", strings.ReplaceAll(dir, "/", "-"), i, o.Kind))
			if err := os.WriteFile(file, o.text, 0o644); err != nil {
				t.Fatal(err)
			}
			files = append(files, file)
		}
	}
	for _, kind := range []string{
		"Deployment", "Service", "ConfigMap", "PodDisruptionBudget", "NetworkPolicy", "ServiceAccount", "Gateway", "HTTPRoute", "EnvoyExtensionPolicy",
		"BackendTrafficPolicy", "ClientTrafficPolicy", "EnvoyProxy", "EnvoyPatchPolicy", "EnvoyFilter", "DestinationRule", "BackendTLSPolicy",
	} {
		if kinds[kind] == 0 {
			t.Errorf("no %s was read", kind)
		}
	}
	if out, err := validate(t, files...); err != nil {
		t.Errorf("kubernetes-validate: %v\n%s", err, out)
	}
}

// validate holds files to the schemas of a release of Kubernetes.
func validate(t *testing.T, files ...string) (string, error) {
	t.Helper()
	binary := os.Getenv("KVSTEER_KUBERNETES_VALIDATE")
	if binary == "" {
		cmd := exec.Command("../../scripts/kubernetes.sh")
		cmd.Stderr = os.Stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("scripts/kubernetes.sh (or set KVSTEER_KUBERNETES_VALIDATE): %v", err)
		}
		binary = strings.TrimSpace(string(out))
	}
	out, err := exec.Command(binary, append([]string{"--strict", "--quiet"}, files...)...).CombinedOutput()
	return string(out), err
}

// TestObjectsAreReadStrictly holds that a misspelt field is found at every depth, and whoever reads the object.
func TestObjectsAreReadStrictly(t *testing.T) {
	objects := map[string]object{}
	for _, dir := range kustomizations(t) {
		for _, o := range build(t, dir) {
			objects[o.String()] = o
		}
	}
	for _, c := range []struct {
		object, before, add string // what is added before the first line that begins with before, at its depth
	}{
		{"Deployment kvsteer-router", "replicas:", "replica: 2"},
		{"Deployment kvsteer-router", "readOnlyRootFilesystem:", "readOnlyRoot: true"},
		{"Deployment kvsteer-router", "minReadySeconds:", "minReadySecond: 1"},
		{"Deployment chat", "restartPolicy: Always", "restartPolice: Always"},
		{"Service chat-engines", "publishNotReadyAddresses:", "publishNotReady: true"},
		{"PodDisruptionBudget kvsteer-router", "maxUnavailable:", "maxUnavailables: 1"},
		{"NetworkPolicy kvsteer-router", "podSelector:", "podSelectors: {}"},
		{"HTTPRoute chat", "parentRefs:", "parentRef: []"},
		{"Gateway llm", "gatewayClassName:", "gatewayClass: x"},
		{"EnvoyExtensionPolicy chat", "extProc:", "extProcs: []"},
		{"EnvoyExtensionPolicy chat", "processingMode:", "processingModes: {}"},
		{"BackendTrafficPolicy chat", "loadBalancer:", "loadBalancers: {}"},
		{"ClientTrafficPolicy llm", "timeout:", "timeouts: {}"},
		{"EnvoyProxy llm", "telemetry:", "telemetries: {}"},
		{"EnvoyPatchPolicy kvsteer", "jsonPatches:", "jsonPatch: []"},
		{"EnvoyPatchPolicy kvsteer", "disallow_all: true", "disallow_every: true"},
		{"EnvoyPatchPolicy kvsteer", "disallowed_headers:", "disallowed_header: {}"},
		{"EnvoyFilter kvsteer", "configPatches:", "configPatch: []"},
		{"EnvoyFilter kvsteer", "failure_mode_allow:", "failure_mode: true"},
		{"EnvoyFilter kvsteer", "early_header_mutation_extensions:", "early_header_mutations: []"},
		{"EnvoyFilter kvsteer", "num_retries:", "retries: 3"},
		{"EnvoyFilter kvsteer", "grpc_health_check:", "grpc_health: {}"},
		{"EnvoyFilter kvsteer", "override_host_sources:", "override_hosts: []"},
		{"BackendTLSPolicy kvsteer-router", "validation:", "validations: {}"},
		{"DestinationRule chat", "trafficPolicy:", "trafficPolicies: {}"},
	} {
		t.Run(c.object+"/"+c.add, func(t *testing.T) {
			o, ok := objects[c.object]
			if !ok {
				t.Fatalf("no such object; there are %d", len(objects))
			}
			lines := strings.Split(string(o.text), "\n")
			at := slices.IndexFunc(lines, func(l string) bool { return strings.HasPrefix(strings.TrimLeft(l, " -"), c.before) })
			if at < 0 {
				t.Fatalf("no line begins with %q:\n%s", c.before, o.text)
			}
			depth := len(lines[at]) - len(strings.TrimLeft(lines[at], " -"))
			changed := o
			// Behind the line where it begins an item of a list or of a sequence of keys, so the added key stands in the same mapping.
			changed.text = []byte(strings.Join(slices.Insert(lines, at, lines[at][:depth]+c.add), "\n"))
			changed.text = bytes.Replace(changed.text, []byte("\n"+lines[at][:depth]+c.before), []byte("\n"+strings.Repeat(" ", depth)+c.before), 1)
			if !bytes.Contains(changed.text, []byte(c.add)) {
				t.Fatal("nothing was added")
			}
			var any map[string]any
			if err := yaml.Unmarshal(changed.text, &any); err != nil {
				t.Fatalf("no YAML: %v\n%s", err, changed.text)
			}
			if err := strictly(changed); err == nil {
				t.Error("an unknown field is accepted by the types")
			}
			if !ofKubernetes(o) {
				return
			}
			file := filepath.Join(t.TempDir(), "object.yaml")
			if err := os.WriteFile(file, changed.text, 0o644); err != nil {
				t.Fatal(err)
			}
			if out, err := validate(t, file); err == nil {
				t.Errorf("kubernetes-validate accepts an unknown field: %s", out)
			}
		})
	}
}

// TestReadmeKustomization builds what README.md shows for engines of one's own: the component adds a node to their pods.
func TestReadmeKustomization(t *testing.T) {
	text, err := os.ReadFile(manifests + "/README.md")
	if err != nil {
		t.Fatal(err)
	}
	_, block, _ := strings.Cut(string(text), "```yaml\n")
	block, _, ok := strings.Cut(block, "```")
	if !ok {
		t.Fatal("README.md shows no kustomization")
	}
	disk, memory := filesys.MakeFsOnDisk(), filesys.MakeFsInMemory()
	copied := map[string]string{
		"/node/kustomization.yaml": manifests + "/node/kustomization.yaml", "/node/sidecar.yaml": manifests + "/node/sidecar.yaml",
		"/own/site/deployment.yaml": manifests + "/engines/vllm/deployment.yaml", "/own/site/node.yaml": manifests + "/engines/vllm/node.yaml",
	}
	for to, from := range copied {
		content, err := disk.ReadFile(from)
		if err != nil {
			t.Fatal(err)
		}
		if err := memory.WriteFile(to, content); err != nil {
			t.Fatal(err)
		}
	}
	if err := memory.WriteFile("/own/site/kustomization.yaml", []byte(block)); err != nil {
		t.Fatal(err)
	}
	resources, err := krusty.MakeKustomizer(krusty.MakeDefaultOptions()).Run(memory, "/own/site")
	if err != nil {
		t.Fatal(err)
	}
	out, err := resources.AsYaml()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"name: kvsteer-node\n", "restartPolicy: Always", "image: registry.example.com/kvsteer:devel", "kind: ConfigMap", "node.yaml: "} {
		if !strings.Contains(string(out), want) {
			t.Errorf("it has no %q:\n%s", want, out)
		}
	}
}
