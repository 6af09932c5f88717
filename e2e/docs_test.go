package e2e

import (
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

// docBlock is a fenced block of a document with the mark that stands before it, as in <!-- run: site -->.
type docBlock struct {
	file, language, mark, text string
	line                       int
}

func (b docBlock) String() string { return fmt.Sprintf("%s:%d", b.file, b.line) }

var fenced = regexp.MustCompile("(?ms)(?:^<!-- ([^>]*?) -->\n)?^ *```([a-z]*)\n(.*?)^ *```$")

// docBlocks are the fenced blocks of all documents of the repository.
func docBlocks(t *testing.T) []docBlock {
	t.Helper()
	out, err := exec.Command("git", "-C", "..", "ls-files", "--cached", "--others", "--exclude-standard", "*.md").Output()
	if err != nil {
		t.Fatal(err)
	}
	var all []docBlock
	for name := range strings.FieldsSeq(string(out)) {
		if strings.Contains(name, "testdata/") {
			continue
		}
		data, err := os.ReadFile(filepath.Join("..", name))
		if err != nil {
			t.Fatal(err)
		}
		text := string(data)
		for _, m := range fenced.FindAllStringSubmatchIndex(text, -1) {
			b := docBlock{file: name, language: text[m[4]:m[5]], text: text[m[6]:m[7]], line: 1 + strings.Count(text[:m[4]], "\n")}
			if m[2] >= 0 {
				b.mark = text[m[2]:m[3]]
			}
			all = append(all, b)
		}
	}
	if len(all) < 15 {
		t.Fatalf("only %d blocks in all documents", len(all))
	}
	return all
}

// TestDocumentsRun runs the shell blocks marked "run: site" in a folder like that of a reader who has followed the document, with a
// running site at the addresses that documents use. Commands in all blocks must exist with the flags that are shown.
func TestDocumentsRun(t *testing.T) {
	t.Parallel() // mostly waiting
	blocks := docBlocks(t)
	site := startSite(t, envoyNewest, lab.SiteOptions{Pools: []lab.PoolOptions{{Name: "chat", Model: "sim", Engines: 2, Args: quick}}})
	folder := t.TempDir()
	links := map[string]string{"scripts": "../scripts", "examples": "../examples", "deploy": "../deploy", "bin/kvsteer": binaries.kvsteer}
	if err := os.MkdirAll(filepath.Join(folder, "bin"), 0o755); err != nil {
		t.Fatal(err)
	}
	for name, target := range links {
		full, err := filepath.Abs(target)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Symlink(full, filepath.Join(folder, name)); err != nil {
			t.Fatal(err)
		}
	}
	config, err := os.ReadFile(site.Config)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Join(folder, "kvsteer.yaml"), config, 0o644); err != nil {
		t.Fatal(err)
	}
	addresses := strings.NewReplacer(
		"127.0.0.1:9003", strings.TrimPrefix(site.RouterAdmin, "http://"), "127.0.0.1:9901", strings.TrimPrefix(site.EnvoyAdmin, "http://"),
		"127.0.0.1:8080", strings.TrimPrefix(site.URL, "http://"), "10.0.0.11:8000", site.Engines[0].Address, "10.0.0.12:8000", site.Engines[1].Address,
	)
	ran := 0
	for _, b := range blocks {
		if b.language != "sh" {
			continue
		}
		requireCommands(t, b)
		if b.mark != "run: site" {
			continue
		}
		ran++
		shell := startCommand(t, folder, []string{"ENVOY=" + binaries.envoy[envoyNewest], "PATH=" + filepath.Dir(binaries.envoy[envoyNewest]) + ":" + os.Getenv("PATH")},
			"bash", "-e", "-u", "-o", "pipefail", "-c", addresses.Replace(b.text))
		if status := shell.wait(t, time.Minute); status != 0 {
			t.Errorf("%s: exit status %d:\n%s\n%s", b, status, b.text, shell.text())
		}
		shell.requireGone(t, time.Second)
	}
	if ran < 1 {
		t.Errorf("only %d blocks were run", ran)
	}
}

var (
	shownCommand = regexp.MustCompile(`(?m)(?:^|[ (|])(?:bin/)?kvsteer ((?:[a-z][a-z-]* ?)+)(.*)$`)
	shownFlag    = regexp.MustCompile(`(?:^|[ =])(--[a-z][a-z-]*)`)
)

// requireCommands holds that each kvsteer command of a block exists and has the flags that follow it.
func requireCommands(t *testing.T, b docBlock) {
	t.Helper()
	text := strings.ReplaceAll(b.text, "\\\n", " ")
	for _, m := range shownCommand.FindAllStringSubmatch(text, -1) {
		words := strings.Fields(m[1])
		help, err := exec.Command(binaries.kvsteer, append(words[:1:1], "--help")...).CombinedOutput()
		if err == nil && len(words) > 1 && strings.Contains(string(help), "Commands:") {
			help, err = exec.Command(binaries.kvsteer, append(words[:2:2], "--help")...).CombinedOutput()
		}
		if err != nil {
			t.Errorf("%s: kvsteer %s: %v\n%s", b, strings.Join(words, " "), err, help)
			continue
		}
		rest, _, _ := strings.Cut(m[2], "|")
		for _, flag := range shownFlag.FindAllStringSubmatch(rest, -1) {
			if !strings.Contains(string(help), flag[1]) {
				t.Errorf("%s: kvsteer %s has no flag %s", b, strings.Join(words, " "), flag[1])
			}
		}
	}
}

// TestDocumentsAreMarked holds that every block of every document is tried by something: shell blocks are run, here or by the test that
// the mark names, or the mark says why not; other blocks are checked by the part that reads such files.
func TestDocumentsAreMarked(t *testing.T) {
	t.Parallel()
	tests, err := exec.Command("git", "-C", "..", "grep", "-h", "--untracked", "-o", "^func Test[A-Za-z0-9]*", "--", "*_test.go").Output()
	if err != nil {
		t.Fatal(err)
	}
	exists := func(name string) bool { return strings.Contains(string(tests), "func "+name+"\n") }
	for _, b := range docBlocks(t) {
		kind, rest, _ := strings.Cut(b.mark, ": ")
		switch {
		case b.language == "":
			t.Errorf("%s: a block without a language (text for what is neither a command nor a file)", b)
		case b.language == "text":
		case kind == "run" && rest == "site" && b.language == "sh":
		case kind == "tried by" && exists(rest):
		case kind == "not run" && len(rest) > 10 && b.language == "sh":
		case b.language == "yaml" && strings.Contains(b.text, "pools:"): // every kvsteer configuration is parsed and rendered
		default:
			t.Errorf("%s: nothing tries this %s block: mark it with <!-- run: site -->, <!-- tried by: TestName --> or <!-- not run: why -->", b, b.language)
		}
	}
}
