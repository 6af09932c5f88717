package engineargs

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// release is the numbers of an engine's release, such as 0, 32, 0; nil when it is not known.
type release []int

// leading takes the numbers off the front: what follows (rc1, .post1, +cpu) changes no argument.
var leading = regexp.MustCompile(`^v?(\d{1,4}(?:\.\d{1,4}){1,3})(?:[^\d].*)?$`)

func parseRelease(text string) (release, error) {
	if text == "" {
		return nil, nil
	}
	m := leading.FindStringSubmatch(text)
	if m == nil {
		return nil, fmt.Errorf("engine release %q: not a release such as 0.32.0", text)
	}
	var r release
	for part := range strings.SplitSeq(m[1], ".") {
		n, err := strconv.Atoi(part)
		if err != nil {
			return nil, fmt.Errorf("engine release %q: %w", text, err)
		}
		r = append(r, n)
	}
	return r, nil
}

// before reports whether r is known and older than other.
func (r release) before(other release) bool { return r != nil && slices.Compare(r, other) < 0 }

func (r release) String() string {
	var parts []string
	for _, n := range r {
		parts = append(parts, strconv.Itoa(n))
	}
	return strings.Join(parts, ".")
}
