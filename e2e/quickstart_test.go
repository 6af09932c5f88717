package e2e

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// TestQuickstart runs the shell blocks of examples/quickstart/README.md, one after the other, in one shell.
func TestQuickstart(t *testing.T) {
	t.Parallel() // mostly waiting
	readme, err := os.ReadFile("../examples/quickstart/README.md")
	if err != nil {
		t.Fatal(err)
	}
	blocks := regexp.MustCompile("(?ms)^```sh\n(.*?)^```$").FindAllStringSubmatch(string(readme), -1)
	if len(blocks) < 5 {
		t.Fatalf("%d shell blocks", len(blocks))
	}
	var script strings.Builder
	for _, b := range blocks {
		script.WriteString(b[1])
	}
	shell := startCommand(t, "..", []string{"ENVOY=" + binaries.envoy[envoyNewest]}, "bash", "-e", "-u", "-o", "pipefail", "-c", script.String())
	if status := shell.wait(t, 3*time.Minute); status != 0 {
		t.Fatalf("exit status %d", status)
	}
	shell.requireGone(t, time.Second)
	eventually(t, "all output is read", func() bool {
		shell.mu.Lock()
		defer shell.mu.Unlock()
		return shell.ended
	})

	// The answers and Envoy's access log are the JSON objects in the output. Both go to one terminal, so a log line may follow an
	// answer before its line has ended.
	type line struct {
		Usage *struct {
			Details struct {
				CachedTokens int `json:"cached_tokens"`
			} `json:"prompt_tokens_details"`
		} `json:"usage"`
		Path    string  `json:"path"`
		Reason  string  `json:"reason"`
		Matched float64 `json:"matched_tokens"`
	}
	var answers, logged []line
	for text := range strings.Lines(shell.text()) {
		for objects := json.NewDecoder(strings.NewReader(text)); ; {
			var l line
			if objects.Decode(&l) != nil {
				break
			}
			switch {
			case l.Usage != nil:
				answers = append(answers, l)
			case l.Path == "/v1/completions":
				logged = append(logged, l)
			}
		}
	}
	if len(answers) != 2 || answers[0].Usage.Details.CachedTokens != 0 || answers[1].Usage.Details.CachedTokens == 0 {
		t.Errorf("answers: %+v", answers)
	}
	if len(logged) != 2 || logged[1].Reason != "prefix" || logged[1].Matched == 0 {
		t.Errorf("access log: %+v", logged)
	}
	if want := `kvsteer_router_decisions_total{mode="on",pool="chat",reason="prefix",rung="exact"} 1`; !strings.Contains(shell.text(), want) {
		t.Errorf("the metrics lack %s", want)
	}
}
