package doctor

import (
	"encoding/json"
	"strconv"
	"strings"
	"time"
)

// tree is a JSON value of a form that is not ours. A step that leads nowhere gives the zero tree, and reading that gives zero
// values, so a page of another form never stops the look.
type tree struct{ v any }

func parseTree(data []byte) (tree, error) {
	var v any
	err := json.Unmarshal(data, &v)
	return tree{v}, err
}

func (t tree) at(path ...string) tree {
	for _, key := range path {
		m, ok := t.v.(map[string]any)
		if !ok {
			return tree{}
		}
		t = tree{m[key]}
	}
	return t
}

func (t tree) there() bool { return t.v != nil }

func (t tree) list(path ...string) []tree {
	l, _ := t.at(path...).v.([]any)
	trees := make([]tree, len(l))
	for i, v := range l {
		trees[i] = tree{v}
	}
	return trees
}

func (t tree) text(path ...string) string {
	s, _ := t.at(path...).v.(string)
	return s
}

func (t tree) flag(path ...string) bool {
	b, _ := t.at(path...).v.(bool)
	return b
}

// number reads a number, or a text that is one: 64-bit integers of protobuf's JSON are texts.
func (t tree) number(path ...string) (float64, bool) {
	switch v := t.at(path...).v.(type) {
	case float64:
		return v, true
	case string:
		n, err := strconv.ParseFloat(v, 64)
		return n, err == nil
	}
	return 0, false
}

// duration reads protobuf's JSON of a duration, such as "0.250s".
func (t tree) duration(path ...string) (time.Duration, bool) {
	s, ok := strings.CutSuffix(t.text(path...), "s")
	n, err := strconv.ParseFloat(s, 64)
	if !ok || err != nil {
		return 0, false
	}
	return time.Duration(n * float64(time.Second)), true
}

func (t tree) keys(path ...string) []string {
	m, _ := t.at(path...).v.(map[string]any)
	var keys []string
	for k := range m {
		keys = append(keys, k)
	}
	return keys
}
