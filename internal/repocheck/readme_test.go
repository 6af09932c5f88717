package repocheck

import (
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/kvsteer/kvsteer/envoy"
	"github.com/kvsteer/kvsteer/internal/config"
)

// documents are the texts that people follow: every Markdown file of the repository but for those beside tests.
func documents(t *testing.T) []string {
	t.Helper()
	cmd := exec.Command("git", "ls-files", "--cached", "--others", "--exclude-standard", "*.md")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatal(err)
	}
	names := slices.DeleteFunc(strings.Fields(string(out)), func(name string) bool { return strings.Contains(name, "testdata/") })
	if len(names) < 6 {
		t.Fatalf("only the documents %q", names)
	}
	return names
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(filepath.Join(root(t), name))
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

var block = regexp.MustCompile("(?ms)^```([a-z]*)\n(.*?)^```$")

// renders says whether an Envoy configuration can be made for the pools of a configuration.
func renders(cfg *config.Config) error {
	o := envoy.Options{Routers: []string{cfg.Listen}, Listen: cfg.Envoy.Listen, Admin: cfg.Envoy.Admin, MaxBody: cfg.Limits.Body.Bytes()}
	render := envoy.Render
	for _, p := range cfg.Pools {
		ep := envoy.Pool{Name: p.Name, Fallback: envoy.Fallback(p.Fallback.To), Cluster: p.Fallback.Cluster, Match: envoy.Match{
			Host: p.Match.Host, PathPrefix: p.Match.PathPrefix, HeaderName: p.Match.Header.Name, HeaderValue: p.Match.Header.Value,
		}}
		if ep.Cluster != "" {
			ep.Fallback, render = "", envoy.RenderFilter
		}
		ep.DNS = p.DNS
		for _, e := range p.Endpoints {
			ep.Endpoints = append(ep.Endpoints, e.Address)
		}
		o.Pools = append(o.Pools, ep)
	}
	_, err := render(o)
	return err
}

// TestConfigurationsInDocuments holds that every kvsteer configuration shown anywhere is accepted, by the router and for Envoy.
func TestConfigurationsInDocuments(t *testing.T) {
	checked := 0
	for _, name := range documents(t) {
		for _, m := range block.FindAllStringSubmatch(read(t, name), -1) {
			if m[1] != "yaml" || !strings.Contains(m[2], "pools:") {
				continue
			}
			checked++
			if config.OfNode([]byte(m[2])) {
				if _, err := config.ParseNode(name, []byte(m[2])); err != nil {
					t.Errorf("%v\nin:\n%s", err, m[2])
				}
				continue
			}
			cfg, err := config.Parse(name, []byte(m[2]))
			if err == nil {
				err = renders(cfg)
			}
			if err != nil {
				t.Errorf("%v\nin:\n%s", err, m[2])
			}
		}
	}
	examples := inExamples(t, "kvsteer.yaml")
	for _, path := range examples {
		checked++
		if _, err := config.Load(path); err != nil {
			t.Error(err)
		}
	}
	for _, path := range inExamples(t, "node.yaml") {
		checked++
		node, err := config.LoadNode(path)
		if err != nil {
			t.Error(err)
			continue
		}
		requireTold(t, node, filepath.Join(filepath.Dir(path), "kvsteer.yaml"))
	}
	if checked < 3 {
		t.Errorf("only %d configurations found in documents and examples", checked)
	}
}

// inExamples lists the files of one name in the examples' folders and the folders in these; there is at least one.
func inExamples(t *testing.T, name string) []string {
	t.Helper()
	var all []string
	for _, folder := range []string{"examples/*", "examples/*/*"} {
		found, err := filepath.Glob(filepath.Join(root(t), folder, name))
		if err != nil {
			t.Fatal(err)
		}
		all = append(all, found...)
	}
	if len(all) == 0 {
		t.Fatalf("the examples have no %s", name)
	}
	return all
}

// requireTold holds that a node and a router of one example speak of the same: the router dials the node, and has its engines as endpoints of the same pool.
func requireTold(t *testing.T, node *config.Node, router string) {
	t.Helper()
	cfg, err := config.Load(router)
	if err != nil {
		t.Error(err)
		return
	}
	if !slices.ContainsFunc(cfg.Nodes, func(n config.NodeSource) bool { return n.Address == node.Listen }) {
		t.Errorf("%s has no node %s", router, node.Listen)
	}
	for _, p := range node.Pools {
		for _, e := range p.Engines {
			if !slices.ContainsFunc(cfg.Pools, func(c config.Pool) bool {
				return c.Name == p.Name && slices.ContainsFunc(c.Endpoints, func(c config.Endpoint) bool { return c.Address == e.Address && c.Events.None() })
			}) {
				t.Errorf("%s has no endpoint %s of pool %s that a node tells of", router, e.Address, p.Name)
			}
		}
	}
}

var (
	makeTarget = regexp.MustCompile("make ([a-z-]+)")
	makeRule   = regexp.MustCompile(`(?m)^([a-z-]+):`)
	mdLink     = regexp.MustCompile(`\]\(([^)#\s]*)(#[^)\s]*)?\)`)
	fence      = regexp.MustCompile("(?ms)^ *```.*?^ *```$")
	heading    = regexp.MustCompile(`(?m)^#+ (.*)$`)
	notInSlugs = regexp.MustCompile(`[^\p{L}\p{N}_ -]`)
	anchor     = regexp.MustCompile(`<a id="([^"]+)"`)
)

// TestCommandsInDocuments holds that make targets that a document names exist, and that its links lead somewhere. Commands are tried in
// the end-to-end tests.
func TestCommandsInDocuments(t *testing.T) {
	var targets []string
	for _, m := range makeRule.FindAllStringSubmatch(read(t, "Makefile"), -1) {
		targets = append(targets, m[1])
	}
	for _, name := range documents(t) {
		text := read(t, name)
		for _, line := range strings.Split(text, "\n") {
			if !strings.Contains(line, "make ") || !strings.Contains(line, "`make") && !strings.HasPrefix(line, "make") {
				continue
			}
			for _, m := range makeTarget.FindAllStringSubmatch(line, -1) {
				if strings.Contains(line, "`make "+m[1]) || strings.HasPrefix(line, "make "+m[1]) {
					if !slices.Contains(targets, m[1]) {
						t.Errorf("%s names make %s, which the Makefile lacks", name, m[1])
					}
				}
			}
		}
		for _, m := range mdLink.FindAllStringSubmatch(text, -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			file := name
			if m[1] != "" {
				file = filepath.Join(filepath.Dir(name), m[1])
			}
			if _, err := os.Stat(filepath.Join(root(t), file)); err != nil {
				t.Errorf("%s links to %s, which is not there", name, m[1])
				continue
			}
			if m[2] != "" && strings.HasSuffix(file, ".md") && !slices.Contains(anchors(read(t, file)), m[2][1:]) {
				t.Errorf("%s links to %s%s, and there is no such heading", name, m[1], m[2])
			}
		}
	}
}

// anchors are the places of a document that a link can name: its headings, as GitHub spells them in links, and those that it marks itself.
func anchors(text string) []string {
	var all []string
	for _, m := range heading.FindAllStringSubmatch(fence.ReplaceAllString(text, ""), -1) {
		all = append(all, strings.ReplaceAll(notInSlugs.ReplaceAllString(strings.ToLower(m[1]), ""), " ", "-"))
	}
	for _, m := range anchor.FindAllStringSubmatch(text, -1) {
		all = append(all, m[1])
	}
	return all
}

// TestAnchors has headings as GitHub links to them.
func TestAnchors(t *testing.T) {
	text := "# A node, or the router itself\n```sh\n# no heading\n```\n### `envoy.body`: On *Kubernetes*\n<a id=\"kv101\"></a>\n"
	want := []string{"a-node-or-the-router-itself", "envoybody-on-kubernetes", "kv101"}
	if got := anchors(text); !slices.Equal(got, want) {
		t.Errorf("%q", got)
	}
}

// TestNamesInMetrics holds that docs/metrics.md explains what the code can show beside the generated table: each value of the label
// problem, and the metric of the command itself.
func TestNamesInMetrics(t *testing.T) {
	doc := read(t, "docs/metrics.md")
	for _, source := range []struct {
		file  string
		names *regexp.Regexp
		least int
	}{
		{"subscriber/sink.go", regexp.MustCompile(`Problem\w+ +Problem += "(\w+)"`), 6},
		{"internal/router/source.go", regexp.MustCompile(`problem\w+ += "(\w+)"`), 3},
		{"cmd/kvsteer/service.go", regexp.MustCompile(`Name: "(kvsteer_\w+)"`), 1},
	} {
		found := source.names.FindAllStringSubmatch(read(t, source.file), -1)
		if len(found) < source.least {
			t.Errorf("%s: only %d names found", source.file, len(found))
		}
		for _, m := range found {
			if !strings.Contains(doc, "`"+m[1]+"`") {
				t.Errorf("docs/metrics.md does not explain %s of %s", m[1], source.file)
			}
		}
	}
}
