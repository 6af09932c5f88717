package main

import (
	"bytes"
	"flag"
	"os"
	"regexp"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/lab"
)

var update = flag.Bool("update", false, "write the pieces in the envoy.yaml of examples again")

// TestEnvoyExamples holds that each example shows what the command prints for its configuration, and that both ways of adding it, by hand as
// shown and by a program, come to the same.
func TestEnvoyExamples(t *testing.T) {
	for _, name := range []string{"existing-envoy", "override-host"} {
		t.Run(name, func(t *testing.T) { envoyExample(t, "../../examples/"+name+"/") })
	}
}

func envoyExample(t *testing.T, exampleDir string) {
	var out bytes.Buffer
	c := &envoyCmd{Config: exampleDir + "kvsteer.yaml", FilterOnly: true, Balance: "least_request"}
	if err := c.Run(&out); err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(exampleDir + "envoy.yaml")
	if err != nil {
		t.Fatal(err)
	}
	marked := regexp.MustCompile(`(?ms)^( *)# kvsteer: (\w+)\n(.*?)^ *# end of kvsteer\n`)
	shown := 0
	want := marked.ReplaceAllStringFunc(string(text), func(block string) string {
		shown++
		m := marked.FindStringSubmatch(block)
		piece := section(out.String(), m[2])
		if len(piece) == 0 {
			t.Fatalf("nothing is printed for %s", m[2])
		}
		lines := []string{"# kvsteer: " + m[2]}
		lines = append(lines, piece...)
		lines = append(lines, "# end of kvsteer")
		return m[1] + strings.Join(lines, "\n"+m[1]) + "\n"
	})
	if printed := strings.Count(out.String(), "\n\n"); shown != printed {
		t.Errorf("the example shows %d pieces, %d are printed", shown, printed)
	}
	if *update {
		if err := os.WriteFile(exampleDir+"envoy.yaml", []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		text = []byte(want)
	}
	if diff := cmp.Diff(want, string(text)); diff != "" {
		t.Errorf("out of date (go test ./cmd/kvsteer -run Examples -update): -printed +shown:\n%s", diff)
	}

	before := marked.ReplaceAll(text, nil)
	merged, err := lab.Merge(before, out.Bytes())
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(canonical(t, merged), canonical(t, text)); diff != "" {
		t.Errorf("the example differs from what a program adds: -program +example:\n%s", diff)
	}
}

// section gives the lines of a section as they stand at their place: with its comment, without its key where the reader has it already.
func section(pieces, name string) []string {
	for _, block := range strings.Split(pieces, "\n\n") {
		lines := strings.Split(strings.TrimSpace(block), "\n")
		for i, line := range lines {
			if !strings.HasPrefix(line, name+":") {
				continue
			}
			comment, body := lines[:i], lines[i:]
			switch name {
			case "layered_runtime", "early_header_mutation_extensions":
				return lines
			case "virtual_hosts":
				for j, l := range body {
					if l == "  routes:" {
						return append(comment, dedent(body[j+1:])...)
					}
				}
			case "your_clusters":
				for j, l := range body {
					if strings.HasPrefix(l, "- name:") {
						return append(comment, dedent(body[j+1:])...)
					}
				}
			case "access_log_json_format":
				return append(comment, dedent(body[1:])...)
			default:
				return append(comment, body[1:]...)
			}
		}
	}
	return nil
}

func dedent(lines []string) []string {
	out := make([]string, len(lines))
	for i, l := range lines {
		out[i] = strings.TrimPrefix(l, "  ")
	}
	return out
}

// canonical is a configuration as JSON with sorted keys.
func canonical(t *testing.T, text []byte) string {
	t.Helper()
	same, err := lab.Merge(text, []byte("{}"))
	if err != nil {
		t.Fatal(err)
	}
	return string(same)
}
