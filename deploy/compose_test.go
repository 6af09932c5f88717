package deploy

import (
	"debug/elf"
	"errors"
	"flag"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/goccy/go-yaml"

	"github.com/kvsteer/kvsteer/internal/config"
)

var update = flag.Bool("update", false, "write compose/envoy.yaml again")

// composeFile is what tests read of the compose file; deploy/schema reads all of it.
type composeFile struct {
	Services map[string]service `yaml:"services"`
	Networks struct {
		Site struct {
			IPAM struct {
				Config []struct {
					Subnet string `yaml:"subnet"`
				} `yaml:"config"`
			} `yaml:"ipam"`
		} `yaml:"site"`
	} `yaml:"networks"`
	Volumes map[string]any `yaml:"volumes"`
}

type service struct {
	Image string `yaml:"image"`
	Build struct {
		Context    string `yaml:"context"`
		Dockerfile string `yaml:"dockerfile"`
	} `yaml:"build"`
	Command     []string          `yaml:"command"`
	Environment map[string]string `yaml:"environment"`
	Volumes     []string          `yaml:"volumes"`
	Ports       []string          `yaml:"ports"`
	NetworkMode string            `yaml:"network_mode"`
	Networks    struct {
		Site struct {
			Address string `yaml:"ipv4_address"`
		} `yaml:"site"`
	} `yaml:"networks"`
	Privileged bool   `yaml:"privileged"`
	Grace      string `yaml:"stop_grace_period"`
}

func (s service) address() string { return s.Networks.Site.Address }

// mount returns the file of this repository, below compose/, that stands at a path of the container.
func (s service) mount(t *testing.T, at string) string {
	t.Helper()
	for _, v := range s.Volumes {
		parts := strings.Split(v, ":")
		if len(parts) > 1 && (parts[1] == at || strings.HasPrefix(at, parts[1]+"/")) {
			return filepath.Join("compose", parts[0], strings.TrimPrefix(at, parts[1]))
		}
	}
	t.Fatalf("nothing is mounted at %s: %q", at, s.Volumes)
	return ""
}

func compose(t *testing.T) composeFile {
	t.Helper()
	var c composeFile
	if err := yaml.Unmarshal([]byte(read(t, "compose/compose.yaml")), &c); err != nil {
		t.Fatal(err)
	}
	if len(c.Services) != 9 {
		t.Fatalf("%d services", len(c.Services))
	}
	return c
}

// TestComposeNetwork holds that addresses are in the subnet and unique, and what is published, and where.
func TestComposeNetwork(t *testing.T) {
	c := compose(t)
	subnet, err := netip.ParsePrefix(c.Networks.Site.IPAM.Config[0].Subnet)
	if err != nil || !subnet.Addr().IsPrivate() {
		t.Fatalf("subnet %s is not a private one: %v", subnet, err)
	}
	owner := map[string]string{}
	published := map[string]bool{}
	for name, s := range c.Services {
		if host, ok := strings.CutPrefix(s.NetworkMode, "service:"); ok {
			if _, ok := c.Services[host]; !ok || len(s.Ports) > 0 || s.address() != "" {
				t.Errorf("%s shares the network of %q, which has to be there and to publish for it", name, host)
			}
		} else {
			addr, err := netip.ParseAddr(s.address())
			gateway := subnet.Addr().Next()
			if err != nil || !subnet.Contains(addr) || addr == gateway || owner[s.address()] != "" {
				t.Errorf("%s: address %q is not a free one of %s", name, s.address(), subnet)
			}
			owner[s.address()] = name
		}
		for _, p := range s.Ports {
			if !regexp.MustCompile(`^127\.0\.0\.1:\d+:\d+$`).MatchString(p) {
				t.Errorf("%s publishes %q, which is not on loopback", name, p)
			}
			published[p[strings.LastIndex(p, ":")+1:]] = true
		}
		if strings.HasSuffix(s.Image, ":latest") || !strings.Contains(s.Image, ":") || s.Privileged {
			t.Errorf("%s: image %q is not pinned, or privileged", name, s.Image)
		}
		for _, v := range s.Volumes {
			parts := strings.Split(v, ":")
			if _, named := c.Volumes[parts[0]]; named {
				continue
			}
			if _, err := os.Stat(filepath.Join("compose", parts[0])); err != nil || len(parts) != 3 || parts[2] != "ro" {
				t.Errorf("%s: volume %q is no file of the repository that is mounted read-only: %v", name, v, err)
			}
		}
	}
	if want := map[string]bool{"8080": true, "9090": true, "3000": true}; len(published) != len(want) || !published["8080"] || !published["9090"] || !published["3000"] {
		t.Errorf("ports %v are published, want %v", published, want)
	}
}

// composeRouters are the routers, which share their configuration.
var composeRouters = []string{"router-1", "router-2"}

// TestComposeRouters holds that the routers' configuration is good and agrees with the services.
func TestComposeRouters(t *testing.T) {
	c := compose(t)
	const file = "compose/kvsteer.yaml"
	cfg, err := config.Load(file)
	if err != nil {
		t.Fatal(err)
	}
	var routers []string
	for _, name := range composeRouters {
		s := c.Services[name]
		if got := s.Command; len(got) != 3 || got[0] != "serve" || got[1] != "--config" || s.mount(t, got[2]) != file {
			t.Fatalf("%s: command %q", name, got)
		}
		routers = append(routers, s.address()+cfg.Listen[strings.LastIndex(cfg.Listen, ":"):])
		if grace, err := time.ParseDuration(s.Grace); err != nil || grace < time.Duration(cfg.Notice)+time.Duration(cfg.Drain)+5*time.Second {
			t.Errorf("%s is killed after %q: %v", name, s.Grace, err)
		}
	}
	if !slices.Equal(cfg.Envoy.Routers, routers) {
		t.Errorf("envoy.routers %q, the routers are at %q", cfg.Envoy.Routers, routers)
	}
	if cfg.Envoy.Admin != "127.0.0.1:9901" || !strings.HasSuffix(cfg.Envoy.Listen, ":8080") || cfg.Envoy.Version != "1.40.0" ||
		!strings.HasSuffix(c.Services["envoy"].Image, ":v"+cfg.Envoy.Version) {
		t.Errorf("envoy section %+v, image %s", cfg.Envoy, c.Services["envoy"].Image)
	}
	token := c.Services["router-1"].mount(t, cfg.Admin.TokenFile)
	if out := run(t, ".", kvsteer(t), "serve", "--check", "--config", onHost(t, file, cfg.Admin.TokenFile, token)); !strings.Contains(out, "is good: 1 pool, 2 endpoints") || strings.Contains(out, "note:") {
		t.Errorf("serve --check says:\n%s", out)
	}
	// A router that prometheus may read has its token.
	prometheus := c.Services["prometheus"]
	if got := prometheus.mount(t, "/etc/prometheus/kvsteer.token"); got != token {
		t.Errorf("Prometheus has the token %s, the routers %s", got, token)
	}
}

// TestComposeNodes holds that each engine has a node in its network, to which it connects, and that the routers look for both.
func TestComposeNodes(t *testing.T) {
	c := compose(t)
	cfg, err := config.Load("compose/kvsteer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	const file = "compose/node.yaml"
	var node struct {
		Listen string `yaml:"listen"`
		Admin  struct {
			Token string `yaml:"token_file"`
		} `yaml:"admin"`
		Pools []struct {
			Name    string   `yaml:"name"`
			Models  []string `yaml:"models"`
			Engines []struct {
				Address string `yaml:"address"`
				Events  struct{ Listen, Replay string }
			} `yaml:"engines"`
		} `yaml:"pools"`
	}
	if err := yaml.Unmarshal([]byte(read(t, file)), &node); err != nil {
		t.Fatal(err)
	}
	pool, engine := node.Pools[0], node.Pools[0].Engines[0]
	if pool.Name != cfg.Pools[0].Name || !slices.Equal(pool.Models, cfg.Pools[0].Models) {
		t.Errorf("pool %s %q of the nodes, %s %q of the routers", pool.Name, pool.Models, cfg.Pools[0].Name, cfg.Pools[0].Models)
	}
	var endpoints, nodes []string
	for _, n := range []string{"1", "2"} {
		e, s := c.Services["engine-"+n], c.Services["node-"+n]
		endpoints = append(endpoints, e.address()+engine.Address)
		nodes = append(nodes, e.address()+node.Listen[strings.LastIndex(node.Listen, ":"):])
		for flag, want := range map[string]string{
			"--listen": "0.0.0.0" + engine.Address, "--events-connect": engine.Events.Listen, "--replay-bind": engine.Events.Replay, "--model": pool.Models[0],
		} {
			if i := slices.Index(e.Command, flag); e.Command[0] != "engine" || i < 0 || e.Command[i+1] != want {
				t.Errorf("engine-%s: command %q, want %s %s", n, e.Command, flag, want)
			}
		}
		if s.NetworkMode != "service:engine-"+n || s.Command[0] != "node" || s.mount(t, s.Command[2]) != file || s.mount(t, node.Admin.Token) != c.Services["router-1"].mount(t, cfg.Admin.TokenFile) {
			t.Errorf("node-%s: %+v", n, s)
		}
	}
	var known []string
	for _, e := range cfg.Pools[0].Endpoints {
		known = append(known, e.Address)
	}
	if !slices.Equal(known, endpoints) {
		t.Errorf("endpoints %q, engines %q", known, endpoints)
	}
	known = nil
	for _, n := range cfg.Nodes {
		known = append(known, n.Address)
	}
	if !slices.Equal(known, nodes) {
		t.Errorf("nodes %q, they are at %q", known, nodes)
	}
	token := c.Services["node-1"].mount(t, node.Admin.Token)
	if out := run(t, ".", kvsteer(t), "node", "--check", "--config", onHost(t, file, node.Admin.Token, token)); !strings.Contains(out, "is good") {
		t.Errorf("node --check says:\n%s", out)
	}
}

// onHost is a copy of a configuration in which the token's path is this host's.
func onHost(t *testing.T, file, path, token string) string {
	t.Helper()
	full, err := filepath.Abs(token)
	if err != nil {
		t.Fatal(err)
	}
	copied := filepath.Join(t.TempDir(), filepath.Base(file))
	if err := os.WriteFile(copied, []byte(strings.ReplaceAll(read(t, file), path, full)), 0o644); err != nil {
		t.Fatal(err)
	}
	return copied
}

// TestComposeEnvoy holds that Envoy's configuration is what kvsteer envoy prints, and that Envoy takes it.
func TestComposeEnvoy(t *testing.T) {
	c := compose(t)
	file := c.Services["envoy"].mount(t, "/etc/envoy/envoy.yaml")
	want := run(t, ".", kvsteer(t), "envoy", "--config", "compose/kvsteer.yaml")
	if *update {
		if err := os.WriteFile(file, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if read(t, file) != want {
		t.Errorf("%s is not what kvsteer envoy prints: go test ./deploy -run TestComposeEnvoy -update writes it again", file)
	}
	run(t, ".", program(t, "KVSTEER_ENVOY_1_40", "envoy.sh", "1.40.0"), "--mode", "validate", "-c", file, "-l", "error")
}

// TestComposePrometheus holds that Prometheus takes its configuration, as the container sees it, and finds the others where they are.
func TestComposePrometheus(t *testing.T) {
	c := compose(t)
	s := c.Services["prometheus"]
	if s.NetworkMode != "service:envoy" || !slices.Contains(s.Command, "--config.file=/etc/prometheus/prometheus.yml") {
		t.Errorf("network %q, command %q", s.NetworkMode, s.Command)
	}
	dir := t.TempDir()
	for _, name := range []string{"prometheus.yml", "rules.yml", "kvsteer.token"} {
		text := strings.ReplaceAll(read(t, s.mount(t, "/etc/prometheus/"+name)), "/etc/prometheus/", dir+"/")
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	run(t, dir, promtool(t), "check", "config", "--lint=all", "--lint-fatal", "prometheus.yml")
	cfg, err := config.Load("compose/kvsteer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	text := read(t, "compose/prometheus.yml")
	want := []string{cfg.Envoy.Admin, "job_name: kvsteer\n", "job_name: kvsteer-node", "metrics_path: /stats/prometheus"}
	for _, name := range composeRouters {
		want = append(want, c.Services[name].address()+":9003")
	}
	for _, n := range cfg.Nodes {
		want = append(want, strings.TrimSuffix(n.Address, "9010")+"9011")
	}
	for _, e := range cfg.Pools[0].Endpoints {
		want = append(want, e.Address)
	}
	for _, w := range want {
		if !strings.Contains(text, w) {
			t.Errorf("prometheus.yml does not name %s", w)
		}
	}
}

// TestComposeGrafana holds that Grafana finds Prometheus, its provisioning and the dashboard.
func TestComposeGrafana(t *testing.T) {
	c := compose(t)
	s := c.Services["grafana"]
	if got, want := s.Environment["PROMETHEUS_URL"], "http://"+c.Services["envoy"].address()+":9090"; got != want {
		t.Errorf("Grafana looks for Prometheus at %s, want %s", got, want)
	}
	var source struct {
		APIVersion  int `yaml:"apiVersion"`
		Datasources []struct {
			Type, URL, UID, Access, Name string
			IsDefault                    bool           `yaml:"isDefault"`
			JSONData                     map[string]any `yaml:"jsonData"`
		} `yaml:"datasources"`
	}
	file := s.mount(t, "/etc/grafana/provisioning/datasources/prometheus.yaml")
	if err := yaml.UnmarshalWithOptions([]byte(read(t, file)), &source, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	if d := source.Datasources; len(d) != 1 || d[0].Type != "prometheus" || d[0].URL != "${PROMETHEUS_URL}" || !d[0].IsDefault {
		t.Errorf("data sources %+v", d)
	}
	var provider struct {
		APIVersion int `yaml:"apiVersion"`
		Providers  []struct {
			Name, Type            string
			DisableDeletion       bool              `yaml:"disableDeletion"`
			AllowUIUpdates        bool              `yaml:"allowUiUpdates"`
			UpdateIntervalSeconds int               `yaml:"updateIntervalSeconds"`
			Options               map[string]string `yaml:"options"`
		} `yaml:"providers"`
	}
	file = s.mount(t, "/etc/grafana/provisioning/dashboards/kvsteer.yaml")
	if err := yaml.UnmarshalWithOptions([]byte(read(t, file)), &provider, yaml.Strict()); err != nil {
		t.Fatal(err)
	}
	dashboard := s.mount(t, path.Join(provider.Providers[0].Options["path"], "kvsteer.json"))
	if dashboard != "grafana/kvsteer.json" || s.Environment["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"] != path.Join(provider.Providers[0].Options["path"], "kvsteer.json") {
		t.Errorf("the dashboard %s is not where Grafana looks: %v", dashboard, provider)
	}
}

// built is the binary of the image, once it was asked for.
var built struct {
	once sync.Once
	path string
	err  error
}

// kvsteer is the binary of the image: what the Dockerfile's build makes of the files that its .dockerignore leaves.
func kvsteer(t *testing.T) string {
	t.Helper()
	built.once.Do(func() { built.path, built.err = buildImage(filepath.Join(programs, "image")) })
	if built.err != nil {
		t.Fatal(built.err)
	}
	return built.path
}

const dockerfile = "compose/Dockerfile"

func buildImage(dir string) (string, error) {
	text, err := os.ReadFile(dockerfile)
	if err != nil {
		return "", err
	}
	ignore, err := os.ReadFile(dockerfile + ".dockerignore")
	if err != nil {
		return "", err
	}
	context, binary := filepath.Join(dir, "context"), filepath.Join(dir, "kvsteer")
	if err := copyContext("..", context, strings.Split(strings.TrimSpace(string(ignore)), "\n")); err != nil {
		return "", err
	}
	for _, name := range []string{"LICENSE", "THIRD_PARTY_NOTICES", "go.mod", "go.sum"} {
		if _, err := os.Stat(filepath.Join(context, name)); err != nil {
			return "", fmt.Errorf("the context lacks a file that the Dockerfile copies: %w", err)
		}
	}
	command := regexp.MustCompile(`(?m)^RUN (.*go build .*)$`).FindSubmatch(text)
	if command == nil {
		return "", errors.New("the Dockerfile has no go build")
	}
	cmd := exec.Command("sh", "-ec", strings.NewReplacer("-o /kvsteer ", "-o "+binary+" ", "${VERSION}", "compose").Replace(string(command[1])))
	cmd.Dir = context
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("%s: %w\n%s", command[1], err, out)
	}
	return binary, nil
}

// TestComposeImage holds that the image can run: nothing is missing in it, and it knows the commands of the services.
func TestComposeImage(t *testing.T) {
	c := compose(t)
	build := c.Services["router-1"].Build
	if got := filepath.Join("compose", build.Context, build.Dockerfile); got != filepath.Join("..", "deploy", dockerfile) {
		t.Errorf("the image is built from %s", got)
	}
	text := read(t, dockerfile)
	for _, want := range []string{"\nFROM scratch\n", "\nUSER 65532:65532\n", "\nENTRYPOINT [\"/kvsteer\"]\n", "\nCOPY LICENSE THIRD_PARTY_NOTICES /\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the Dockerfile has no line %q", strings.TrimSpace(want))
		}
	}
	binary := kvsteer(t)
	if out := run(t, ".", binary, "version"); !strings.Contains(out, "compose") {
		t.Errorf("the binary says it is %q", out)
	}
	libraries, err := elf.Open(binary)
	if err != nil {
		t.Fatal(err)
	}
	defer libraries.Close()
	if needed, err := libraries.ImportedLibraries(); err != nil || len(needed) > 0 {
		t.Errorf("an image from scratch has no libraries, and the binary needs %q: %v", needed, err)
	}
	for _, name := range []string{"engine-1", "engine-2", "node-1", "node-2", "router-1", "router-2"} {
		if s := c.Services[name]; s.Image != "kvsteer:compose" || s.Build != build {
			t.Errorf("%s runs image %s built from %+v", name, s.Image, s.Build)
		}
		run(t, ".", binary, c.Services[name].Command[0], "--help")
	}
}

// copyContext copies what an ignore file of the form "*, !NAME…, **/PATTERN…" leaves.
func copyContext(from, to string, ignore []string) error {
	if len(ignore) < 3 || ignore[0] != "*" {
		return fmt.Errorf("the ignore file begins with %q", ignore)
	}
	if err := os.MkdirAll(to, 0o755); err != nil {
		return err
	}
	kept := func(name string) bool {
		top, _, _ := strings.Cut(filepath.ToSlash(name), "/")
		keep := slices.Contains(ignore, "!"+top)
		for _, pattern := range ignore {
			if pattern, ok := strings.CutPrefix(pattern, "**/"); ok {
				for part := range strings.SplitSeq(filepath.ToSlash(name), "/") {
					if match, err := path.Match(pattern, part); err != nil || match {
						keep = false
					}
				}
			}
		}
		return keep
	}
	return filepath.WalkDir(from, func(file string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		name, err := filepath.Rel(from, file)
		if err != nil || name == "." {
			return err
		}
		switch {
		case !kept(name) && d.IsDir():
			return filepath.SkipDir
		case !kept(name):
			return nil
		case d.IsDir():
			return os.MkdirAll(filepath.Join(to, name), 0o755)
		}
		data, err := os.ReadFile(file)
		if err != nil {
			return err
		}
		return os.WriteFile(filepath.Join(to, name), data, 0o644)
	})
}
