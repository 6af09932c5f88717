package e2e

import (
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
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
	for _, want := range []string{
		"sending 48 requests in 12 conversations", "cutting the connections", "without replay", "a node follows", "killing the node", "emptying both", "killing the engine",
		"data-parallel ranks", "checks are ok",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("the output lacks %q", want)
		}
	}
	if f := report.Traffic; f.Requests != 48 || f.FollowUps != 36 || len(f.Kinds) != 4 {
		t.Errorf("traffic: %+v", f)
	}
	for name, f := range map[string]vllmdemo.Figures{"cut": report.Cut, "node": report.Node, "eviction": report.Eviction, "unpinned": report.Unpinned, "pinned": report.Pinned} {
		if f.Answered != 48 {
			t.Errorf("%s: %+v", name, f)
		}
	}
	if len(report.Checks) < 90 {
		t.Errorf("only %d checks", len(report.Checks))
	}
}

// TestVLLMExampleSimulated runs the commands of the example's README with simulated engines under the name of vllm. It is not parallel
// to others, since those commands build bin/kvsteer.
func TestVLLMExampleSimulated(t *testing.T) {
	programs, err := filepath.Abs("testdata/simulated-vllm")
	if err != nil {
		t.Fatal(err)
	}
	home := t.TempDir()
	for _, folder := range []string{"venv", "model/lora/adapter-a"} {
		if err := os.MkdirAll(filepath.Join(home, folder), 0o755); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.WriteFile(filepath.Join(home, "model/config.json"), []byte("{}"), 0o644); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(programs, filepath.Join(home, "venv/bin")); err != nil {
		t.Fatal(err)
	}
	runVLLMExample(t, 5*time.Minute, "KVSTEER="+binaries.kvsteer, "KVSTEER_VLLM_VENV="+home+"/venv", "KVSTEER_VLLM_MODEL="+home+"/model")
}

// exampleOnFreePorts is the folder of examples/vllm-cpu with other ports in its configurations.
func exampleOnFreePorts(t *testing.T) string {
	t.Helper()
	ports := []string{"18200", "18201", "18202", "18203", "18210", "18211", "18212", "18220", "18221", "19220", "19221", "18204", "18205", "18222", "19222"}
	runs := slices.Repeat([]int{1}, len(ports))
	runs[len(runs)-1], runs[len(runs)-2] = 2, 2 // one for each rank
	free, err := lab.FreeRuns(runs)
	if err != nil {
		t.Fatal(err)
	}
	var replace []string
	for i, p := range ports {
		replace = append(replace, ":"+p, fmt.Sprintf(":%d", free[i]))
	}
	folder := t.TempDir()
	if err := os.Mkdir(filepath.Join(folder, "with-node"), 0o755); err != nil {
		t.Fatal(err)
	}
	var all strings.Builder
	for _, name := range []string{"kvsteer.yaml", "with-node/kvsteer.yaml", "with-node/node.yaml", "ranks.yaml"} {
		config, err := os.ReadFile(filepath.Join("../examples/vllm-cpu", name))
		if err != nil {
			t.Fatal(err)
		}
		all.Write(config)
		if err := os.WriteFile(filepath.Join(folder, name), []byte(strings.NewReplacer(replace...).Replace(string(config))), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	for _, p := range ports {
		if !strings.Contains(all.String(), ":"+p) {
			t.Fatalf("no configuration uses port %s", p)
		}
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

// runVLLMExample runs the shell blocks of examples/vllm-cpu/README.md that TestVLLMExample is named at, one after the other, in one shell.
func runVLLMExample(t *testing.T, limit time.Duration, environment ...string) {
	t.Helper()
	var script strings.Builder
	for _, b := range docBlocks(t) {
		if b.mark == "tried by: TestVLLMExample" {
			script.WriteString(b.text)
		}
	}
	shell := startCommand(t, "..", append(environment, "ENVOY="+binaries.envoy[envoyNewest]), "bash", "-e", "-u", "-o", "pipefail", "-c", script.String())
	if status := shell.wait(t, limit); status != 0 {
		t.Fatalf("exit status %d", status)
	}
	shell.requireGone(t, 30*time.Second)
	cached := regexp.MustCompile(`"cached_tokens":(\d+)`).FindAllStringSubmatch(shell.text(), -1)
	matched := regexp.MustCompile(`"matched_tokens":(\d+)`).FindAllStringSubmatch(shell.text(), -1)
	if len(cached) != 4 || len(matched) < 3 {
		t.Fatalf("cached tokens %q, matched tokens %q", cached, matched)
	}
	for i, want := range []bool{false, true, false, true} { // the adapter's blocks are its own
		if got := cached[i][1]; (got != "0") != want {
			t.Errorf("answer %d: %s tokens cached, want some: %v", i, got, want)
		}
	}
	for _, i := range []int{1, 3} {
		if got := matched[len(matched)-4+i][1]; got != cached[i][1] {
			t.Errorf("answer %d: %s tokens matched, %s cached", i, got, cached[i][1])
		}
	}
}
