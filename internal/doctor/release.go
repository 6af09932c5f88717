package doctor

import (
	"fmt"
	"strconv"
	"strings"
)

// Engines that are told apart.
const (
	vllm   = "vLLM"
	sglang = "SGLang"
)

// badRelease is a limit of all releases of an engine before one.
type badRelease struct {
	code   Code
	engine string
	before string // the first release without it, as far as releases were checked
	what   string
	source string
}

// badReleases lists the gravest of each engine first.
func badReleases() []badRelease {
	return []badRelease{
		{EngineBad, vllm, "0.9.0", "there are no KV cache events", "vllm-project/vllm#16750"},
		{EngineLimited, vllm, "0.14.1", "events do not name the adapter, so adapters' prompts are not matched", "vllm-project/vllm#27577; seen from its encoder"},
		{EngineLimited, vllm, "0.17.1", "events lack extra keys, so only plain prompts are matched", "vllm-project/vllm#33304; seen from its encoder"},
		{EngineLimited, sglang, "0.5.9", "events do not tell the medium, so a copy in host memory passes for one on the device", "seen from its encoder"},
		{EngineLimited, sglang, "0.5.18", "events do not tell salted blocks from plain ones", "seen from its encoder"},
	}
}

// Releases returns the table of engine releases with known limits as Markdown.
func Releases() string {
	var b strings.Builder
	b.WriteString("| engine | before | code | limit | source |\n|---|---|---|---|---|\n")
	for _, r := range badReleases() {
		fmt.Fprintf(&b, "| %s | %s | `%s` | %s | %s |\n", r.engine, r.before, r.code, r.what, r.source)
	}
	return b.String()
}

// olderThan compares releases such as 0.10.2, v0.9.1rc1 and 0.11.0.dev5+g1234. A release that is no release is not older.
func olderThan(release, than string) bool {
	a, ok := numbers(release)
	b, ok2 := numbers(than)
	if !ok || !ok2 {
		return false
	}
	for i := range a {
		if a[i] != b[i] {
			return a[i] < b[i]
		}
	}
	return false
}

// numbers reads up to three leading numbers. A development build of a release counts as that release.
func numbers(release string) (n [3]int, ok bool) {
	parts := strings.SplitN(strings.TrimPrefix(release, "v"), ".", 4)
	for i := range min(len(parts), len(n)) {
		digits := parts[i]
		if end := strings.IndexFunc(digits, func(r rune) bool { return r < '0' || r > '9' }); end >= 0 {
			digits = digits[:end]
		}
		v, err := strconv.Atoi(digits)
		if err != nil {
			return n, i >= 2
		}
		n[i] = v
	}
	return n, len(parts) >= 2
}
