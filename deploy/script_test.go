package deploy

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestPrometheusScript runs scripts/prometheus.sh in a repository of its own, with programs of the test's on its PATH.
func TestPrometheusScript(t *testing.T) {
	root := t.TempDir()
	script := filepath.Join(root, "scripts", "prometheus.sh")
	binary := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	binary("scripts/prometheus.sh", read(t, "../scripts/prometheus.sh"))
	for _, name := range []string{"own/prometheus", "own/promtool", "half/prometheus"} {
		binary(name, "#!/bin/sh\n")
	}
	for _, tool := range []string{"bash", "cat", "dirname", "mkdir", "mktemp", "mv", "rm"} {
		path, err := exec.LookPath(tool)
		if err != nil {
			t.Fatal(err)
		}
		for _, dir := range []string{"bare", "failing", "hollow"} {
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(root, dir, tool)); err != nil {
				t.Fatal(err)
			}
		}
	}
	binary("failing/apt-get", "#!/bin/sh\necho no network >&2\nexit 100\n")
	binary("failing/dpkg", "#!/bin/sh\n")
	binary("hollow/apt-get", "#!/bin/sh\n: > prometheus_1_all.deb\n")
	binary("hollow/dpkg", "#!/bin/sh\nmkdir -p \"$3/usr/bin\"\n")
	for _, c := range []struct {
		name, prometheus, path string // below root
		prints, fails          string
	}{
		{name: "a folder is given", prometheus: "own", path: "bare", prints: filepath.Join(root, "own")},
		{name: "a binary is given", prometheus: "own/prometheus", path: "bare", prints: filepath.Join(root, "own")},
		{name: "both on PATH", path: "own:bare", prints: filepath.Join(root, "own")},
		{name: "a folder without promtool is given", prometheus: "half", path: "bare", fails: "is neither a folder with prometheus and promtool"},
		{name: "what is given is not there", prometheus: "nowhere", path: "bare", fails: "is neither a folder with prometheus and promtool"},
		{name: "nothing to fetch with", path: "half:bare", fails: "no apt-get to fetch Debian's package with"},
		{name: "no network", path: "failing", fails: "no network\nprometheus: apt-get can fetch neither"},
		{name: "a package without the binaries", path: "hollow", fails: "holds no prometheus and promtool"},
	} {
		t.Run(c.name, func(t *testing.T) {
			var path []string
			for dir := range strings.SplitSeq(c.path, ":") {
				path = append(path, filepath.Join(root, dir))
			}
			cmd := exec.Command(script)
			cmd.Env = []string{"PATH=" + strings.Join(path, ":")}
			if c.prometheus != "" {
				cmd.Env = append(cmd.Env, "PROMETHEUS="+filepath.Join(root, c.prometheus))
			}
			var says strings.Builder
			cmd.Stderr = &says
			out, err := cmd.Output()
			if got := strings.TrimSpace(string(out)); got != c.prints {
				t.Errorf("prints %q, want %q", got, c.prints)
			}
			if (err != nil) != (c.fails != "") || !strings.Contains(says.String(), c.fails) {
				t.Errorf("%v, says %q, want %q", err, says.String(), c.fails)
			}
			if left, _ := filepath.Glob(filepath.Join(root, ".prometheus", "*")); len(left) > 0 {
				t.Errorf("leaves %q behind", left)
			}
		})
	}
}
