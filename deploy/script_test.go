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

// TestOtherScripts runs scripts/kubernetes.sh and scripts/systemd.sh in a repository of their own, with programs of the test's on their PATH.
func TestOtherScripts(t *testing.T) {
	root := t.TempDir()
	write := func(name, text string) {
		t.Helper()
		if err := os.MkdirAll(filepath.Dir(filepath.Join(root, name)), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(root, name), []byte(text), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	for _, script := range []string{"kubernetes.sh", "systemd.sh"} {
		write("scripts/"+script, read(t, "../scripts/"+script))
	}
	tools := []string{"bash", "cat", "chmod", "basename", "dirname", "find", "mkdir", "mktemp", "mv", "rm", "sed", "sort"}
	for _, dir := range []string{"bare", "offline", "hollow", "working"} {
		for _, tool := range tools {
			path, err := exec.LookPath(tool)
			if err != nil {
				t.Fatal(err)
			}
			if err := os.MkdirAll(filepath.Join(root, dir), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.Symlink(path, filepath.Join(root, dir, tool)); err != nil {
				t.Fatal(err)
			}
		}
	}
	const tool = "#!/bin/sh\necho 1.37.0\n"
	write("own/tool", tool)
	write("found/systemd-analyze", tool)
	write("own/plain", "")
	if err := os.Chmod(filepath.Join(root, "own/plain"), 0o644); err != nil {
		t.Fatal(err)
	}
	write("offline/apt-get", "#!/bin/sh\necho no network >&2\nexit 100\n")
	write("offline/apt-cache", "#!/bin/sh\nexit 100\n")
	write("offline/dpkg", "#!/bin/sh\n")
	write("offline/python3", "#!/bin/sh\necho no venv >&2\nexit 1\n")
	// A package, and a virtual environment, with nothing in them.
	write("hollow/apt-cache", "#!/bin/sh\necho '  Depends: libsystemd-shared'\n")
	write("hollow/apt-get", "#!/bin/sh\n: > systemd_1_all.deb\n")
	write("hollow/dpkg", "#!/bin/sh\nmkdir -p \"$3/usr/bin\"\n")
	write("hollow/python3", "#!/bin/sh\nmkdir -p \"$3/bin\"\nprintf '#!/bin/sh\\necho nothing there >&2\\nexit 1\\n' > \"$3/bin/pip\"\nchmod +x \"$3/bin/pip\"\n")
	write("working/apt-cache", "#!/bin/sh\necho '  PreDepends: libc6'\necho '  Depends: libsystemd-shared'\n")
	write("working/apt-get", "#!/bin/sh\ncase \"$*\" in *libc6*) exit 1;; esac\n: > systemd_1_all.deb\n")
	write("working/dpkg", "#!/bin/sh\nmkdir -p \"$3/usr/bin\"\nprintf '#!/bin/sh\\nexit 0\\n' > \"$3/usr/bin/systemd-analyze\"\nchmod +x \"$3/usr/bin/systemd-analyze\"\n")
	write("working/paste", "#!/bin/sh\ncat\n")
	for _, c := range []struct {
		name, script, given, path string // given and path are below root
		prints, fails             string
	}{
		{name: "a tool is given", script: "kubernetes.sh", given: "own/tool", path: "bare", prints: "own/tool"},
		{name: "what is given is not there", script: "kubernetes.sh", given: "own/none", path: "bare", fails: "is not an executable file"},
		{name: "no python", script: "kubernetes.sh", path: "bare", fails: "no python3 to fetch kubernetes-validate with"},
		{name: "no venv", script: "kubernetes.sh", path: "offline", fails: "no venv\nkubernetes: python3 -m venv does not work"},
		{name: "no package", script: "kubernetes.sh", path: "hollow", fails: "nothing there\nkubernetes: kubernetes-validate 1.37.0 cannot be installed"},
		{name: "a tool is given", script: "systemd.sh", given: "own/tool", path: "bare", prints: "own/tool"},
		{name: "what is given cannot be run", script: "systemd.sh", given: "own/plain", path: "bare", fails: "is not an executable file"},
		{name: "a tool on PATH", script: "systemd.sh", path: "bare:found", prints: "found/systemd-analyze"},
		{name: "nothing to fetch with", script: "systemd.sh", path: "bare", fails: "no apt-get to fetch Debian's package systemd with"},
		{name: "no network", script: "systemd.sh", path: "offline", fails: "no network\nsystemd: apt-get can fetch neither"},
		{name: "a package without the tool", script: "systemd.sh", path: "hollow", fails: "holds no systemd-analyze"},
		{name: "fetched", script: "systemd.sh", path: "working", prints: ".systemd/systemd-analyze"},
	} {
		t.Run(c.script+"/"+c.name, func(t *testing.T) {
			var path []string
			for dir := range strings.SplitSeq(c.path, ":") {
				path = append(path, filepath.Join(root, dir))
			}
			cmd := exec.Command(filepath.Join(root, "scripts", c.script))
			cmd.Env = []string{"PATH=" + strings.Join(path, ":")}
			if c.given != "" {
				variable := map[string]string{"kubernetes.sh": "KUBERNETES_VALIDATE", "systemd.sh": "SYSTEMD_ANALYZE"}[c.script]
				cmd.Env = append(cmd.Env, variable+"="+filepath.Join(root, c.given))
			}
			var says strings.Builder
			cmd.Stderr = &says
			out, err := cmd.Output()
			want := c.prints
			if want != "" {
				want = filepath.Join(root, want)
			}
			if got := strings.TrimSpace(string(out)); got != want {
				t.Errorf("prints %q, want %q; says %q", got, want, says.String())
			}
			if (err != nil) != (c.fails != "") || !strings.Contains(says.String(), c.fails) {
				t.Errorf("%v, says %q, want %q", err, says.String(), c.fails)
			}
			for _, dir := range []string{".kubernetes", ".systemd/tmp.*"} {
				if left, _ := filepath.Glob(filepath.Join(root, dir)); len(left) > 0 {
					t.Errorf("leaves %q behind", left)
				}
			}
		})
	}
}
