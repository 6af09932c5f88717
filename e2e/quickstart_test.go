package e2e

import (
	"encoding/json"
	"os"
	"regexp"
	"strings"
	"testing"
	"time"
)

// runReadme runs the shell blocks of an example's README.md, one after the other, in one shell, and returns the shell after its end.
func runReadme(t *testing.T, example string) *command {
	t.Helper()
	readme, err := os.ReadFile("../examples/" + example + "/README.md")
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
	return shell
}

// shown is a JSON object in the output of an example: an answer, or a line of Envoy's access log.
type shown struct {
	Usage *struct {
		Details struct {
			CachedTokens int `json:"cached_tokens"`
		} `json:"prompt_tokens_details"`
	} `json:"usage"`
	Path     string  `json:"path"`
	Mode     string  `json:"mode"`
	Rung     string  `json:"rung"`
	Reason   string  `json:"reason"`
	Endpoint string  `json:"endpoint"`
	Upstream string  `json:"upstream"`
	Matched  float64 `json:"matched_tokens"`
}

// objects finds the answers and Envoy's access log in an output. Both go to one terminal, so a log line may follow an answer before its line has
// ended.
func objects(text string) (answers, logged []shown) {
	for text := range strings.Lines(text) {
		for objects := json.NewDecoder(strings.NewReader(text)); ; {
			var l shown
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
	return answers, logged
}

func TestQuickstart(t *testing.T) {
	t.Parallel() // mostly waiting
	shell := runReadme(t, "quickstart")
	answers, logged := objects(shell.text())
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

// TestNoEngineChanges holds what the first path promises: observed requests are decided and spread as before, and obeyed ones go where the prompt is.
// It does not run beside TestQuickstart, which builds the same binary.
func TestNoEngineChanges(t *testing.T) {
	shell := runReadme(t, "no-engine-changes")
	answers, logged := objects(shell.text())
	if len(answers) != 4 || len(logged) != 4 {
		t.Fatalf("answers %+v\naccess log %+v", answers, logged)
	}
	for i, want := range []shown{{Mode: "observe", Rung: "load"}, {Mode: "observe", Rung: "approximate"}, {Mode: "on", Rung: "approximate"}, {Mode: "on", Rung: "approximate"}} {
		got := logged[i]
		if got.Mode != want.Mode || got.Rung != want.Rung || got.Reason != "no_events" || (got.Matched > 0) != (want.Rung == "approximate") {
			t.Errorf("request %d: %+v, want mode %s, rung %s", i, got, want.Mode, want.Rung)
		}
		if got.Mode == "on" && got.Upstream != got.Endpoint {
			t.Errorf("request %d: chosen %s, went to %s", i, got.Endpoint, got.Upstream)
		}
	}
	if last := answers[3].Usage.Details.CachedTokens; last == 0 {
		t.Error("the last answer has no cached tokens")
	}
	for _, want := range []string{
		`kvsteer_router_decisions_total{mode="observe",pool="chat",reason="no_events",rung="approximate"} 1`,
		`kvsteer_router_matched_tokens_total{mode="observe",pool="chat",rung="approximate"}`,
	} {
		if !strings.Contains(shell.text(), want) {
			t.Errorf("the metrics lack %s", want)
		}
	}
}
