package main

import (
	"bytes"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestReadmeNode holds that the README's file of a node is good, and that its engine is started as docs/engines.md shows.
func TestReadmeNode(t *testing.T) {
	readme, err := os.ReadFile("../../README.md")
	if err != nil {
		t.Fatal(err)
	}
	engines, err := os.ReadFile("../../docs/engines.md")
	if err != nil {
		t.Fatal(err)
	}
	file := regexp.MustCompile("(?ms)^```yaml\n([^`]*?^  engines:\n.*?)^```$").FindStringSubmatch(string(readme))
	shown := regexp.MustCompile("(?ms)^```text\n(PYTHONHASHSEED=.*?)^```$").FindStringSubmatch(string(engines))
	if file == nil || shown == nil {
		t.Fatal("the README shows no file of a node, or docs/engines.md not how its engine is started")
	}
	dir := t.TempDir()
	node := filepath.Join(dir, "node.yaml")
	text := strings.Replace(file[1], "/var/lib/kvsteer-node", filepath.Join(dir, "state"), 1)
	if err := os.WriteFile(node, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	log := slog.New(slog.DiscardHandler)
	for _, format := range []string{"shell", "container", "json"} {
		var out bytes.Buffer
		c := &engineArgsCmd{Config: node, Format: format, Replay: true, Endpoint: "10.0.0.11:8000"}
		if err := c.Run(&out, log); err != nil {
			t.Fatalf("%s: %v", format, err)
		}
		if format != "shell" {
			continue
		}
		_, command, _ := strings.Cut(out.String(), "PYTHONHASHSEED=")
		if diff := cmp.Diff(shown[1], "PYTHONHASHSEED="+command); diff != "" {
			t.Errorf("-shown +printed:\n%s", diff)
		}
	}
	if err := (&nodeCmd{Config: node, Check: true, Format: "text"}).Run(t.Context(), io.Discard); err != nil {
		t.Error(err)
	}
}
