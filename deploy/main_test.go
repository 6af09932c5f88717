package deploy

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
)

// programs is a folder for what tests build, for as long as they run.
var programs string

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

func testMain(m *testing.M) int {
	var err error
	if programs, err = os.MkdirTemp("", "kvsteer-deploy-"); err != nil {
		fmt.Fprintln(os.Stderr, "deploy:", err)
		return 1
	}
	defer os.RemoveAll(programs)
	return m.Run()
}

// program returns the path of a binary: from a variable, else from what a script of this repository prints.
func program(t *testing.T, variable string, script ...string) string {
	t.Helper()
	if path := os.Getenv(variable); path != "" {
		return path
	}
	cmd := exec.Command("../scripts/"+script[0], script[1:]...)
	cmd.Stderr = os.Stderr
	out, err := cmd.Output()
	if err != nil {
		t.Fatalf("%s (or set %s): %v", script[0], variable, err)
	}
	return strings.TrimSpace(string(out))
}

// promtool returns the path of promtool.
func promtool(t *testing.T) string {
	t.Helper()
	path := program(t, "KVSTEER_PROMTOOL", "prometheus.sh")
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		path = filepath.Join(path, "promtool")
	}
	return path
}

// run runs a program in dir and returns what it says; the test fails when the program does.
func run(t *testing.T, dir, name string, args ...string) string {
	t.Helper()
	cmd := exec.Command(name, args...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", filepath.Base(name), strings.Join(args, " "), err, out)
	}
	return string(out)
}

func read(t *testing.T, name string) string {
	t.Helper()
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	return string(data)
}

// metricName finds the names of kvsteer's and Envoy's series in an expression; the names of recording rules have a colon.
var metricName = regexp.MustCompile(`[a-z_:]*(?:kvsteer|envoy)_[a-z0-9_:]+`)

// knownMetrics are the series that a router (docs/metrics.md, which is held to the code) and an Envoy export.
func knownMetrics(t *testing.T) map[string]bool {
	t.Helper()
	known := map[string]bool{"kvsteer_build_info": true}
	row := regexp.MustCompile("(?m)^\\| `(kvsteer_\\w+)` \\| (\\w+) \\|")
	for _, m := range row.FindAllStringSubmatch(read(t, "../docs/metrics.md"), -1) {
		known[m[1]] = true
		if m[2] == "histogram" {
			for _, suffix := range []string{"_bucket", "_sum", "_count"} {
				known[m[1]+suffix] = true
			}
		}
	}
	for name := range strings.Lines(read(t, "testdata/envoy-1.40.0-metrics.txt")) {
		if name = strings.TrimSpace(name); name != "" && !strings.HasPrefix(name, "#") {
			known[name] = true
		}
	}
	if len(known) < 100 {
		t.Fatalf("only %d metrics are known", len(known))
	}
	return known
}

// labelValues are the values in label matchers and in string arguments, which look like metric names sometimes.
var quoted = regexp.MustCompile(`"(?:[^"\\]|\\.)*"`)

// unknownMetrics returns the metrics of an expression that nobody exports.
func unknownMetrics(expr string, known map[string]bool) []string {
	// Labels of Envoy's metrics begin with envoy_ too.
	labels := regexp.MustCompile(`\b(envoy_cluster_name|envoy_http_conn_manager_prefix|envoy_response_code_class|envoy_job)\b`)
	var unknown []string
	for _, name := range metricName.FindAllString(labels.ReplaceAllString(quoted.ReplaceAllString(expr, ""), ""), -1) {
		if !known[name] {
			unknown = append(unknown, fmt.Sprintf("%s in %s", name, expr))
		}
	}
	return unknown
}
