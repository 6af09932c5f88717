package envoy

import (
	"bytes"
	"context"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// binary gives the path of an Envoy release: from the variable, else from the script that fetches it.
func binary(t testing.TB, version string) string {
	t.Helper()
	variable := "KVSTEER_ENVOY_" + strings.ReplaceAll(strings.TrimSuffix(version, ".0"), ".", "_")
	if path := os.Getenv(variable); path != "" {
		if _, err := os.Stat(path); err != nil {
			t.Fatalf("%s: %v", variable, err)
		}
		return path
	}
	var stderr bytes.Buffer
	cmd := exec.Command("../scripts/envoy.sh", version)
	cmd.Stderr = &stderr
	out, err := cmd.Output()
	path := strings.TrimSpace(string(out))
	if err != nil || path == "" {
		t.Fatalf("no Envoy %s: set %s to its path; scripts/envoy.sh: %v\n%s", version, variable, err, &stderr)
	}
	return path
}

// setups pair releases with the layouts that they must run.
func setups() []setup {
	return []setup{{"1.40.0", LayoutComposite}, {"1.40.0", LayoutCompat}, {"1.37.0", LayoutCompat}}
}

type setup struct {
	version string
	layout  Layout
}

func (s setup) String() string { return s.version + "/" + string(s.layout) }

// known is the version to render for: none for the layout that needs no knowledge.
func (s setup) known() string {
	if s.layout == LayoutComposite {
		return s.version
	}
	return ""
}

func TestEnvoyAccepts(t *testing.T) {
	for _, s := range setups() {
		files, err := filepath.Glob("testdata/" + string(s.layout) + "_*.golden.yaml")
		if err != nil || len(files) == 0 {
			t.Fatalf("no golden files of layout %s: %v", s.layout, err)
		}
		if s.layout == LayoutComposite {
			files = append(files, "../examples/existing-envoy/envoy.yaml")
		}
		path := binary(t, s.version)
		for _, f := range files {
			t.Run(s.version+"/"+filepath.Base(f), func(t *testing.T) {
				ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
				defer cancel()
				// A log file that cannot be opened is an error of validation, and goldens name one.
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				config := filepath.Join(t.TempDir(), "envoy.yaml")
				text = bytes.ReplaceAll(text, []byte("/var/log/envoy/"), []byte(t.TempDir()+"/"))
				if err := os.WriteFile(config, text, 0o644); err != nil {
					t.Fatal(err)
				}
				out, err := exec.CommandContext(ctx, path, "--mode", "validate", "-c", config, "-l", "warn").CombinedOutput()
				if err != nil || !strings.Contains(string(out), "OK") {
					t.Fatalf("%v\n%s", err, out)
				}
				for _, bad := range []string{"[warning]", "[error]", "deprecated"} {
					if strings.Contains(string(out), bad) {
						t.Errorf("says %s:\n%s", bad, out)
					}
				}
			})
		}
	}
}
