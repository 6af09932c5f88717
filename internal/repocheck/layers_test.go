package repocheck

import (
	"encoding/json"
	"errors"
	"io"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
)

const module = "github.com/kvsteer/kvsteer"

// layers gives each package its layer; a package imports only packages of lower layers. docs/architecture.md explains them.
var layers = map[string]int{
	"internal/blockhash":   0,
	"internal/feed/feedpb": 0,
	"envoy":                0,
	"internal/config":      0,
	"internal/lab":         0,
	"internal/logtest":     0,
	"internal/watch":       0,
	"internal/repocheck":   9,

	"kvindex":               1,
	"subscriber":            1,
	"internal/pool":         1,
	"internal/openai":       1,
	"internal/ports":        1,
	"internal/enginesim":    1,
	"internal/demo":         1,
	"internal/tlsfiles":     1,
	"internal/eventsources": 1,
	"internal/scrape":       1,
	"internal/discover":     1,
	"internal/doctor":       2,

	"internal/engineargs": 1,
	"internal/vllmdemo":   1,
	"examples/vllm-cpu":   5,

	"internal/approx":   2,
	"internal/fleet":    2,
	"internal/tokenize": 2,
	"internal/feed":     2,
	"internal/router":   3,
	"extproc":           4,
	"internal/admin":    4,
	"cmd/kvsteer":       5,
	"e2e":               9,
	"deploy":            9,
}

// owners says which packages may import a library: wire formats stay behind the package that speaks them.
var owners = []struct {
	library  string // import path prefix
	packages []string
}{
	{"github.com/envoyproxy/go-control-plane", []string{"envoy", "extproc"}},
	{"google.golang.org/grpc", []string{"extproc", "internal/feed", "internal/feed/feedpb"}},
	{"google.golang.org/protobuf", []string{"envoy", "extproc", "internal/feed", "internal/feed/feedpb"}},
	{"github.com/go-zeromq/zmq4", []string{"subscriber"}},
	{"github.com/vmihailenco/msgpack", []string{"subscriber"}},
	{"github.com/fxamacker/cbor", []string{"internal/blockhash"}},
	{"github.com/zeebo/xxh3", []string{"internal/blockhash"}},
	{"github.com/maypok86/otter", []string{"internal/tokenize"}},
	{"github.com/goccy/go-yaml", []string{"internal/config", "envoy", "internal/lab"}},
	{"github.com/alecthomas/kong", []string{"cmd/kvsteer"}},
	{"github.com/fsnotify/fsnotify", []string{"internal/watch"}},
}

type goPackage struct {
	ImportPath string
	Imports    []string
}

func packages(t *testing.T) map[string]goPackage {
	t.Helper()
	cmd := exec.Command("go", "list", "-json=ImportPath,Imports", "./...")
	cmd.Dir = root(t)
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("go list: %v", err)
	}
	found := map[string]goPackage{}
	for dec := json.NewDecoder(strings.NewReader(string(out))); ; {
		var p goPackage
		err := dec.Decode(&p)
		if errors.Is(err, io.EOF) {
			break
		}
		if err != nil {
			t.Fatal(err)
		}
		found[strings.TrimPrefix(p.ImportPath, module+"/")] = p
	}
	if len(found) < 10 {
		t.Fatalf("go list names only %d packages", len(found))
	}
	return found
}

func root(t *testing.T) string {
	t.Helper()
	path, err := filepath.Abs("../..")
	if err != nil {
		t.Fatal(err)
	}
	return path
}

func TestLayers(t *testing.T) {
	for name, p := range packages(t) {
		layer, ok := layers[name]
		if !ok {
			t.Errorf("%s has no layer: give it one here and in docs/architecture.md", name)
			continue
		}
		for _, imported := range p.Imports {
			other, ok := strings.CutPrefix(imported, module+"/")
			if ok && layers[other] >= layer {
				t.Errorf("%s (layer %d) imports %s (layer %d)", name, layer, other, layers[other])
			}
		}
	}
}

func TestLibraryOwners(t *testing.T) {
	used := map[string]bool{}
	for name, p := range packages(t) {
		for _, imported := range p.Imports {
			for _, o := range owners {
				if !strings.HasPrefix(imported, o.library) {
					continue
				}
				used[o.library] = true
				if !slices.Contains(o.packages, name) {
					t.Errorf("%s imports %s, which belongs to %v", name, imported, o.packages)
				}
			}
		}
	}
	for _, o := range owners {
		if !used[o.library] {
			t.Errorf("no package imports %s: the rule is out of date", o.library)
		}
	}
}
