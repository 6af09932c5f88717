package engineargs

import (
	"bytes"
	"encoding/json"
	"errors"
	"flag"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/goccy/go-yaml"
	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/config"
)

var update = flag.Bool("update", false, "write the files in testdata again")

type format func(io.Writer, []Engine) error

func print(t *testing.T, f format, engines []Engine) string {
	t.Helper()
	var b bytes.Buffer
	if err := f(&b, engines); err != nil {
		t.Fatal(err)
	}
	return b.String()
}

// TestGolden compares what is printed for testdata/kvsteer.yaml with the files beside it.
func TestGolden(t *testing.T) {
	cfg, err := config.Load("testdata/kvsteer.yaml")
	if err != nil {
		t.Fatal(err)
	}
	for file, tt := range map[string]struct {
		format  format
		options Options
	}{
		"vllm.sh":          {Shell, Options{Replay: true}},
		"vllm-bind.sh":     {Shell, Options{Bind: true, Replay: true}},
		"vllm-0.9.1.sh":    {Shell, Options{Release: "0.9.1"}},
		"sglang-bind.sh":   {Shell, Options{Kind: SGLang, Bind: true, Replay: true}},
		"sglang-0.5.17.sh": {Shell, Options{Kind: SGLang, Release: "0.5.17"}},
		"vllm-bind.yaml":   {Container, Options{Bind: true, Replay: true}},
		"vllm.json":        {JSON, Options{Replay: true}},
	} {
		t.Run(file, func(t *testing.T) {
			engines, err := Plan(cfg, tt.options)
			if err != nil {
				t.Fatal(err)
			}
			got, path := print(t, tt.format, engines), filepath.Join("testdata", file)
			if *update {
				if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
					t.Fatal(err)
				}
			}
			want, err := os.ReadFile(path)
			if err != nil {
				t.Fatal(err)
			}
			if d := cmp.Diff(string(want), got); d != "" {
				t.Errorf("(-%s +printed; -update writes it):\n%s", path, d)
			}
		})
	}
}

// odd is a configuration whose texts mean something to shells, to YAML and to Kubernetes.
func odd(t *testing.T) []Engine {
	t.Helper()
	names := []string{"it's", `a "b" \ c`, "$HOME ${HOME} $(id) `id` $$", "*?[a]{b,c}~", "two\nlines\r\ttab", "#", "=x", "!!", "é\u2028\U0001f600", "a;b&c|d>e", " "}
	cfg := &config.Config{Pools: []config.Pool{{
		Name: "chat", Models: names, Adapters: names,
		Endpoints: []config.Endpoint{
			{Address: "127.0.0.1:8000", Events: config.Events{Listen: "tcp://127.0.0.1:5557", Topic: "it's\n$(id)\t\"#"}},
			{Address: "10.0.0.2:8000", Events: config.Events{Dial: "tcp://10.0.0.2:5557"}},
			{Address: "10.0.0.3:8000"},
		},
	}}}
	engines, err := Plan(cfg, Options{Bind: true, Replay: true})
	if err != nil {
		t.Fatal(err)
	}
	return engines
}

// TestShellGivesArguments has a real shell read what is printed, with programs in place of the engine that write down their
// arguments and environment.
func TestShellGivesArguments(t *testing.T) {
	const program = "#!/bin/sh\nprintf '%s\\0' \"${PYTHONHASHSEED-unset}\" \"$@\" >>\"$RECORD\"\nprintf '\\0' >>\"$RECORD\"\n"
	odd := odd(t)
	sglang, err := Plan(parse(t, one(`{address: "127.0.0.1:8000", events: {listen: "tcp://127.0.0.1:5557"}}`)), Options{Kind: SGLang})
	if err != nil {
		t.Fatal(err)
	}
	for name, engines := range map[string][]Engine{"vllm": odd, "python3": sglang} {
		for _, shell := range []string{"sh", "bash"} {
			t.Run(name+" in "+shell, func(t *testing.T) {
				dir := t.TempDir()
				if err := os.WriteFile(filepath.Join(dir, name), []byte(program), 0o755); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(shell, "-e", "-u")
				cmd.Stdin = strings.NewReader(print(t, Shell, engines))
				cmd.Env = []string{"PATH=" + dir + ":" + os.Getenv("PATH"), "RECORD=" + filepath.Join(dir, "record"), "MODEL=my model"}
				if out, err := cmd.CombinedOutput(); err != nil || len(out) > 0 {
					t.Fatalf("%v: %s", err, out)
				}
				record, err := os.ReadFile(filepath.Join(dir, "record"))
				if err != nil {
					t.Fatal(err)
				}
				var want strings.Builder
				for _, e := range engines {
					if e.Missing != "" {
						continue
					}
					seed := "unset"
					for _, v := range e.Env {
						seed = v.Value
					}
					argv := append([]string{seed}, kinds[e.Kind].command[1:]...)
					for _, arg := range append(append(argv, "my model"), e.Args...) {
						want.WriteString(arg + "\x00")
					}
					want.WriteString("\x00")
				}
				if d := cmp.Diff(want.String(), string(record)); d != "" || want.Len() == 0 {
					t.Errorf("(-arguments +as the shell gave them):\n%s", d)
				}
			})
		}
	}
}

// TestShellNeedsModel holds that nothing is started without a model.
func TestShellNeedsModel(t *testing.T) {
	cmd := exec.Command("sh")
	cmd.Stdin = strings.NewReader(print(t, Shell, odd(t)[:1]))
	cmd.Env = []string{"PATH="}
	if out, err := cmd.CombinedOutput(); err == nil || !strings.Contains(string(out), "path of the model") {
		t.Errorf("%v: %s", err, out)
	}
}

// dollars is what Kubernetes and Compose make of a text in which every $ is doubled.
func dollars(t *testing.T, text string) string {
	t.Helper()
	if strings.Contains(strings.ReplaceAll(text, "$$", ""), "$") {
		t.Errorf("%q has a lone $", text)
	}
	return strings.ReplaceAll(text, "$$", "$")
}

// TestContainerGivesArguments reads the YAML back.
func TestContainerGivesArguments(t *testing.T) {
	dec := yaml.NewDecoder(strings.NewReader(print(t, Container, odd(t))))
	for _, e := range odd(t) {
		var got struct {
			Args []string
			Env  []struct{ Name, Value string }
		}
		err := dec.Decode(&got)
		if err != nil && (e.Missing == "" || !errors.Is(err, io.EOF)) {
			t.Fatalf("%s: %v", e.Endpoint, err)
		}
		for i := range got.Args {
			got.Args[i] = dollars(t, got.Args[i])
		}
		if d := cmp.Diff(e.Args, got.Args); d != "" {
			t.Errorf("%s (-arguments +read):\n%s", e.Endpoint, d)
		}
		if len(got.Env) != len(e.Env) {
			t.Errorf("%s: environment %v, want %v", e.Endpoint, got.Env, e.Env)
		}
		for i, v := range e.Env {
			if got.Env[i].Name != v.Name || got.Env[i].Value != v.Value {
				t.Errorf("%s: environment %v, want %v", e.Endpoint, got.Env[i], v)
			}
		}
	}
}

// TestContainerEscapes holds that no character is left that YAML parsers refuse or take for a break.
func TestContainerEscapes(t *testing.T) {
	const text = "a\u0085b\x7fc\ufeffd\u2028e\u0001f\n\"<\\é$"
	got := scalar(text)
	for _, r := range got {
		if r != 'é' && (r < ' ' || r > '~') {
			t.Errorf("%U is left in %s", r, got)
		}
	}
	var read string
	if err := json.Unmarshal([]byte(got), &read); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(text, dollars(t, read)); d != "" {
		t.Errorf("(-text +read):\n%s", d)
	}
}

// TestJSONGivesArguments reads the JSON back.
func TestJSONGivesArguments(t *testing.T) {
	var got struct {
		Engines []struct {
			Endpoint      string
			Command, Args []string
			Env           map[string]string
			Missing       string
		}
	}
	dec := json.NewDecoder(strings.NewReader(print(t, JSON, odd(t))))
	if err := dec.Decode(&got); err != nil {
		t.Fatal(err)
	}
	engines := odd(t)
	if len(got.Engines) != len(engines) {
		t.Fatalf("%d engines, want %d", len(got.Engines), len(engines))
	}
	for i, e := range got.Engines {
		if d := cmp.Diff(engines[i].Args, e.Args); d != "" || e.Endpoint != engines[i].Endpoint || e.Missing != engines[i].Missing {
			t.Errorf("%+v (-arguments +read):\n%s", e, d)
		}
		if e.Missing == "" && (strings.Join(e.Command, " ") != "vllm serve" || e.Env["PYTHONHASHSEED"] != "0") {
			t.Errorf("%s: command %q, environment %v", e.Endpoint, e.Command, e.Env)
		}
	}
}

// TestCommentsHoldNoCommand holds that whatever a name contains, a comment is nothing else.
func TestCommentsHoldNoCommand(t *testing.T) {
	var b bytes.Buffer
	comment(&b, "a name: x\nid\r\u2028y "+strings.Repeat("word ", 60))
	for line := range strings.Lines(b.String()) {
		if !strings.HasPrefix(line, "#") || strings.ContainsAny(line[:len(line)-1], "\r\n\u2028") {
			t.Errorf("line %q", line)
		}
	}
	if n := strings.Count(b.String(), "\n"); n < 2 {
		t.Errorf("%d lines, want the text broken", n)
	}
}

func TestWriteErrors(t *testing.T) {
	for name, f := range map[string]format{"shell": Shell, "container": Container, "json": JSON} {
		if err := f(failing{}, odd(t)); !errors.Is(err, io.ErrClosedPipe) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

type failing struct{}

func (failing) Write([]byte) (int, error) { return 0, io.ErrClosedPipe }
