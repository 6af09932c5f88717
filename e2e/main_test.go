package e2e

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// The releases that the tests run on: the newest and the oldest supported.
const (
	envoyNewest = "1.40.0"
	envoyOldest = "1.37.0"
)

var binaries struct {
	kvsteer string
	envoy   map[string]string // by release
}

func TestMain(m *testing.M) { os.Exit(testMain(m)) }

// testMain builds kvsteer and finds both Envoys once for all tests.
func testMain(m *testing.M) int {
	dir, err := os.MkdirTemp("", "kvsteer-e2e-")
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	defer os.RemoveAll(dir)
	if err := findBinaries(dir); err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		return 1
	}
	return m.Run()
}

func findBinaries(dir string) error {
	// The processes under test run with the race detector as the tests do.
	binaries.kvsteer = filepath.Join(dir, "kvsteer")
	argv := []string{"build", "-o", binaries.kvsteer}
	if raceEnabled {
		argv = append(argv, "-race")
	}
	build := exec.Command("go", append(argv, "../cmd/kvsteer")...)
	build.Stderr = os.Stderr
	if err := build.Run(); err != nil {
		return fmt.Errorf("build kvsteer: %w", err)
	}
	binaries.envoy = map[string]string{}
	for release, variable := range map[string]string{envoyNewest: "KVSTEER_ENVOY_1_40", envoyOldest: "KVSTEER_ENVOY_1_37"} {
		path := os.Getenv(variable)
		if path == "" {
			script := exec.Command("../scripts/envoy.sh", release)
			script.Stderr = os.Stderr
			out, err := script.Output()
			if err != nil {
				return fmt.Errorf("get Envoy %s (set %s to its binary): %w", release, variable, err)
			}
			path = strings.TrimSpace(string(out))
		}
		version, err := lab.EnvoyVersion(context.Background(), path)
		if err != nil {
			return err
		}
		if version != release {
			return fmt.Errorf("%s is Envoy %s, the tests need %s", path, version, release)
		}
		binaries.envoy[release] = path
	}
	return nil
}

// onBothEnvoys runs a test on the oldest and the newest supported Envoy.
func onBothEnvoys(t *testing.T, test func(t *testing.T, release string)) {
	for _, release := range []string{envoyNewest, envoyOldest} {
		t.Run("envoy="+release, func(t *testing.T) { test(t, release) })
	}
}

// quick are engine arguments for tests that look at where requests go, not at how long they take.
var quick = []string{"--block-size", "16", "--blocks", "8192", "--prefill-rate", "1000000", "--decode-rate", "100000"}

// startSite starts a site that ends with the test; on failure the test shows the ends of its logs.
func startSite(t *testing.T, release string, o lab.SiteOptions) *lab.Site {
	t.Helper()
	dir, err := os.MkdirTemp("", "kvs") // t.TempDir's path is too long for a Unix socket
	if err != nil {
		t.Fatal(err)
	}
	l, err := lab.New(lab.Options{Kvsteer: binaries.kvsteer, Envoy: binaries.envoy[release], Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		l.Close()
		requireSound(t, dir)
		if t.Failed() {
			logs, _ := filepath.Glob(filepath.Join(dir, "*.log"))
			for _, path := range logs {
				if strings.HasSuffix(path, "access.log") {
					continue
				}
				text, _ := os.ReadFile(path)
				t.Logf("%s:\n%s", filepath.Base(path), text[max(len(text)-3000, 0):])
			}
		}
		os.RemoveAll(dir)
	})
	if o.EnvoyVersion == "" {
		o.EnvoyVersion = release
	}
	site, err := l.StartSite(t.Context(), o)
	if err != nil {
		t.Fatal(err)
	}
	return site
}

// patient makes Envoy take every decision, however slow the machine: one that it has given up has no record, and expires.
const patient = "message_timeout: 10s"

// startPatient starts the site of a test that shows what is decided, not what becomes of decisions that take too long: slow machines get time.
func startPatient(t *testing.T, release string, o lab.SiteOptions) *lab.Site {
	t.Helper()
	o.EnvoyConfig = strings.TrimSuffix(patient+", "+o.EnvoyConfig, ", ")
	o.RouterConfig = strings.TrimPrefix(o.RouterConfig+"\nbudget: 8s\ntokenize: {timeout: 6s}", "\n")
	return startSite(t, release, o)
}

// refusal is what a router says of a configuration that some tests give it on purpose.
var refusal = regexp.MustCompile(`level=ERROR msg="the changed configuration is refused; the one before stays in use"`)

// requireSound looks for crashes and data races in the logs of the processes in dir, which would otherwise pass for a restart.
func requireSound(t *testing.T, dir string) {
	t.Helper()
	logs, err := filepath.Glob(filepath.Join(dir, "*.log"))
	if err != nil || len(logs) == 0 {
		t.Errorf("no logs in %s: %v", dir, err)
	}
	for _, path := range logs {
		text, err := os.ReadFile(path)
		if err != nil {
			t.Error(err)
		}
		text = refusal.ReplaceAll(text, nil)
		for _, sign := range []string{"WARNING: DATA RACE", "\npanic: ", "fatal error: ", "level=ERROR", "][critical]["} {
			if at := strings.Index(string(text), sign); at >= 0 {
				t.Errorf("%s: %.4000s", filepath.Base(path), text[at:])
			}
		}
	}
}

// eventually polls a condition, for at most a time that no healthy run comes near.
func eventually(t *testing.T, what string, condition func() bool) {
	t.Helper()
	deadline := time.NewTimer(20 * time.Second)
	defer deadline.Stop()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !condition() {
		select {
		case <-deadline.C:
			t.Fatalf("not within 20 s: %s", what)
		case <-t.Context().Done():
			t.Fatalf("test ended while waiting for: %s", what)
		case <-tick.C:
		}
	}
}
