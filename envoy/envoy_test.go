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
	return []setup{
		{"1.40.0", LayoutComposite}, {"1.40.0", LayoutCompat}, {"1.37.0", LayoutCompat}, {"1.40.0", LayoutOverride}, {"1.37.0", LayoutOverride},
	}
}

type setup struct {
	version string
	layout  Layout
}

func (s setup) String() string { return s.version + "/" + string(s.layout) }

// options are o for the setup: with the layout where it must be named, with the version where it must be known.
func (s setup) options(o Options) Options {
	o.Layout, o.Version = "", ""
	switch s.layout {
	case LayoutComposite:
		o.Version = s.version
	case LayoutOverride:
		o.Layout = s.layout
	}
	return o
}

func TestEnvoyAccepts(t *testing.T) {
	for _, s := range setups() {
		files, err := filepath.Glob("testdata/" + string(s.layout) + "_*.golden.yaml")
		if err != nil || len(files) == 0 {
			t.Fatalf("no golden files of layout %s: %v", s.layout, err)
		}
		switch s.layout {
		case LayoutComposite:
			files = append(files, "../examples/existing-envoy/envoy.yaml")
		case LayoutOverride:
			files = append(files, "../examples/override-host/envoy.yaml")
		}
		for _, f := range files {
			if strings.Contains(f, "_filter") {
				continue // no configuration by itself: TestPiecesAreAccepted
			}
			if strings.Contains(f, "_1.40.") && s.version != "1.40.0" {
				continue // names what older releases do not know
			}
			t.Run(s.version+"/"+filepath.Base(f), func(t *testing.T) {
				t.Parallel()
				text, err := os.ReadFile(f)
				if err != nil {
					t.Fatal(err)
				}
				validate(t, s, text)
			})
		}
	}
}

// validate has Envoy judge a configuration. Files that golden ones name are put where they can be.
func validate(t testing.TB, s setup, text []byte) {
	t.Helper()
	dir := t.TempDir()
	a := authority(t, dir, "ca")
	_, certFile, keyFile := issue(t, a, "envoy", "envoy.test")
	secrets := filepath.Join(dir, "secrets")
	o := Options{
		RouterTLS: TLS{CAFile: a.File, ServerName: "a", CertFile: certFile, KeyFile: keyFile}, EngineTLS: TLS{CAFile: a.File, ServerName: "a"},
		SecretsDir: secrets, Pools: []Pool{{Name: "chat", Endpoints: []string{"10.0.0.1:1"}}},
	}
	writeSecrets(t, o)
	text = []byte(strings.NewReplacer("/var/log/envoy/", dir+"/", "/etc/kvsteer/envoy/", secrets+"/", "/etc/kvsteer/engines.pem", a.File,
		"/etc/kvsteer/ca.pem", a.File, "/etc/kvsteer/envoy.pem", certFile, "/etc/kvsteer/envoy.key", keyFile).Replace(string(text)))
	config := filepath.Join(dir, "envoy.yaml")
	if err := os.WriteFile(config, text, 0o644); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 5*time.Minute) // a busy machine must not decide the test
	defer cancel()
	out, err := exec.CommandContext(ctx, binary(t, s.version), "--mode", "validate", "-c", config, "-l", "warn").CombinedOutput()
	if err != nil || !strings.Contains(string(out), "OK") {
		t.Fatalf("%v\n%s", err, out)
	}
	for _, bad := range []string{"[warning]", "[error]", "deprecated"} {
		if strings.Contains(string(out), bad) {
			t.Errorf("says %s:\n%s", bad, out)
		}
	}
}
