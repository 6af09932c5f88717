package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/vllmdemo"
)

// TestVLLMDemoSimulated runs what "make demo-vllm" runs, from the example's own configuration and engine.sh on, with simulated engines
// under the name of vllm. The same on real ones is TestVLLMDemo, with the build tag vllm.
func TestVLLMDemoSimulated(t *testing.T) {
	t.Parallel() // mostly waiting
	programs, err := filepath.Abs("testdata/simulated-vllm")
	if err != nil {
		t.Fatal(err)
	}
	report, text := runVLLMDemo(t, exampleOnFreePorts(t), 12, 10*time.Minute, "PATH="+programs+":"+os.Getenv("PATH"), "MODEL=/nowhere")
	for _, want := range []string{"sending 48 requests in 12 conversations", "emptying both", "killing the engine", "checks are ok"} {
		if !strings.Contains(text, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if f := report.Traffic; f.Requests != 48 || f.FollowUps != 36 || len(f.Kinds) != 4 {
		t.Errorf("traffic: %+v", f)
	}
	if len(report.Checks) < 30 {
		t.Errorf("only %d checks", len(report.Checks))
	}
}

// exampleOnFreePorts is the folder of examples/vllm-cpu with other ports in its configuration.
func exampleOnFreePorts(t *testing.T) string {
	t.Helper()
	config, err := os.ReadFile("../examples/vllm-cpu/kvsteer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	ports := []string{"18200", "18201", "18202", "18203", "18210", "18211", "18220", "18221"}
	free, err := lab.FreePorts(len(ports))
	if err != nil {
		t.Fatal(err)
	}
	var replace []string
	for i, p := range ports {
		if !strings.Contains(string(config), ":"+p) {
			t.Fatalf("kvsteer.yaml does not use port %s", p)
		}
		replace = append(replace, ":"+p, fmt.Sprintf(":%d", free[i]))
	}
	folder := t.TempDir()
	if err := os.WriteFile(filepath.Join(folder, "kvsteer.yaml"), []byte(strings.NewReplacer(replace...).Replace(string(config))), 0o644); err != nil {
		t.Fatal(err)
	}
	script, err := filepath.Abs("../examples/vllm-cpu/engine.sh")
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(script, filepath.Join(folder, "engine.sh")); err != nil {
		t.Fatal(err)
	}
	return folder
}

// runVLLMDemo builds the demo, runs it with an example's folder, and returns its figures and its output.
func runVLLMDemo(t *testing.T, example string, conversations int, limit time.Duration, environment ...string) (vllmdemo.Report, string) {
	t.Helper()
	dir := t.TempDir()
	demo := filepath.Join(dir, "demo-vllm")
	if out, err := exec.Command("go", "build", "-o", demo, "../examples/vllm-cpu").CombinedOutput(); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	figures := filepath.Join(dir, "figures.json")
	run := startCommand(t, dir, environment, demo, "-kvsteer", binaries.kvsteer, "-envoy", binaries.envoy[envoyNewest], "-example", example,
		"-json", figures, "-conversations", fmt.Sprint(conversations))
	if status := run.wait(t, limit); status != 0 {
		t.Fatalf("exit status %d", status)
	}
	run.requireGone(t, 5*time.Second)
	if left := entries(t, run.temp); len(left) > 0 {
		t.Errorf("temporary files are left: %q", left)
	}
	data, err := os.ReadFile(figures)
	if err != nil {
		t.Fatal(err)
	}
	var report vllmdemo.Report
	if err := json.Unmarshal(data, &report); err != nil {
		t.Fatal(err)
	}
	return report, run.text()
}
