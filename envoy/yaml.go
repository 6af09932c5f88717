package envoy

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
)

// node is a YAML value: a scalar (text), a mapping (entries) or a sequence (items). Mappings keep their order.
type node struct {
	kind    kind
	text    string
	entries []entry
	items   []*node
	note    string // comment above the value's own line
}

type kind uint8

const (
	scalar kind = iota
	mapping
	sequence
)

type entry struct {
	key   string
	value *node
}

// parseJSON reads one JSON value and keeps the order of object members.
func parseJSON(b []byte) (*node, error) {
	d := json.NewDecoder(bytes.NewReader(b))
	d.UseNumber()
	n, err := parseValue(d)
	if err != nil {
		return nil, err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return nil, errors.New("text after the value")
	}
	return n, nil
}

func parseValue(d *json.Decoder) (*node, error) {
	t, err := d.Token()
	if err != nil {
		return nil, err
	}
	switch t := t.(type) {
	case json.Delim:
		if t == '{' {
			return parseObject(d)
		}
		return parseArray(d)
	case string:
		return &node{text: quote(t)}, nil
	case nil:
		return &node{text: "null"}, nil
	default: // bool, json.Number
		return &node{text: fmt.Sprint(t)}, nil
	}
}

func parseObject(d *json.Decoder) (*node, error) {
	n := &node{kind: mapping}
	for d.More() {
		key, err := d.Token()
		if err != nil {
			return nil, err
		}
		v, err := parseValue(d)
		if err != nil {
			return nil, err
		}
		n.entries = append(n.entries, entry{key.(string), v})
	}
	_, err := d.Token()
	return n, err
}

func parseArray(d *json.Decoder) (*node, error) {
	n := &node{kind: sequence}
	for d.More() {
		v, err := parseValue(d)
		if err != nil {
			return nil, err
		}
		n.items = append(n.items, v)
	}
	_, err := d.Token()
	return n, err
}

// first and last give the keys that lead and close a mapping; the rest keeps the order of the protobuf declaration. What a reader
// looks for comes first, what is long comes last.
func first() []string {
	return []string{"admin", "layered_runtime", "name", "@type", "stat_prefix", "cluster_name", "match", "domains", "type", "cluster_type", "lb_policy", "address", "listeners"}
}

func last() []string {
	return []string{
		"access_log", "local_reply_config", "http_filters", "circuit_breakers", "load_assignment",
		"typed_extension_protocol_options", "route_config", "virtual_hosts", "routes", "typed_per_filter_config", "clusters",
	}
}

// arrange sorts every mapping below n.
func (n *node) arrange(first, last []string) {
	rank := func(e entry) int {
		if i := slices.Index(first, e.key); i >= 0 {
			return i - len(first)
		}
		return slices.Index(last, e.key) + 1
	}
	slices.SortStableFunc(n.entries, func(a, b entry) int { return rank(a) - rank(b) })
	for _, e := range n.entries {
		e.value.arrange(first, last)
	}
	for _, v := range n.items {
		v.arrange(first, last)
	}
}

// quote writes a string. A YAML double-quoted scalar reads every JSON string as JSON does.
func quote(s string) string {
	if isPlain(s) {
		return s
	}
	var b bytes.Buffer
	e := json.NewEncoder(&b)
	e.SetEscapeHTML(false)
	if err := e.Encode(s); err != nil { // a string always encodes
		return `""`
	}
	return strings.TrimSuffix(b.String(), "\n")
}

// isPlain reports whether s means itself without quotes in every version of YAML: a word that begins with a letter, / or _ and is none
// of YAML 1.1's other names for null and booleans, or a duration.
func isPlain(s string) bool {
	switch strings.ToLower(s) {
	case "", "true", "false", "null", "yes", "no", "on", "off", "y", "n":
		return false
	}
	if number, ok := strings.CutSuffix(s, "s"); ok && number != "" && only(number, func(r rune) bool { return r >= '0' && r <= '9' || r == '.' }) {
		return true
	}
	first := s[0]
	return (first == '/' || first == '_' || isAlnum(rune(first)) && (first < '0' || first > '9')) &&
		only(s, func(r rune) bool { return isAlnum(r) || strings.ContainsRune("_./-", r) })
}

const (
	flowWidth = 100 // longest value written on the line of its key
	noteWidth = 110 // comments wrap here
)

// yaml renders a document.
func (n *node) yaml() []byte {
	var b bytes.Buffer
	n.write(&b, 0)
	return b.Bytes()
}

// write puts a mapping or sequence at an indent, each entry on lines of its own.
func (n *node) write(b *bytes.Buffer, indent int) {
	for _, e := range n.entries {
		e.value.writeNote(b, indent)
		pad(b, indent)
		n.writeEntry(b, indent, e)
	}
	for _, v := range n.items {
		v.writeNote(b, indent)
		pad(b, indent)
		b.WriteString("- ")
		if flow, ok := v.flow(); ok {
			b.WriteString(flow + "\n")
			continue
		}
		// The first entry shares the line of the dash, so its comment goes above.
		var item bytes.Buffer
		v.write(&item, indent+2)
		b.Write(bytes.TrimLeft(item.Bytes(), " "))
	}
}

func (n *node) writeEntry(b *bytes.Buffer, indent int, e entry) {
	b.WriteString(quote(e.key) + ":")
	if flow, ok := e.value.flow(); ok {
		b.WriteString(" " + flow + "\n")
		return
	}
	b.WriteString("\n")
	if e.value.kind == sequence {
		e.value.write(b, indent)
		return
	}
	e.value.write(b, indent+2)
}

// flow gives the one-line form of a value that is short and has no comment inside.
func (n *node) flow() (string, bool) {
	switch n.kind {
	case scalar:
		return n.text, true
	case mapping:
		parts := make([]string, len(n.entries))
		for i, e := range n.entries {
			v, ok := e.value.flow()
			if !ok || e.value.note != "" {
				return "", false
			}
			parts[i] = quote(e.key) + ": " + v
		}
		s := "{" + strings.Join(parts, ", ") + "}"
		return s, len(s) <= flowWidth
	default:
		parts := make([]string, len(n.items))
		for i, v := range n.items {
			s, ok := v.flow()
			if !ok || v.note != "" {
				return "", false
			}
			parts[i] = s
		}
		s := "[" + strings.Join(parts, ", ") + "]"
		return s, len(s) <= flowWidth
	}
}

func (n *node) writeNote(b *bytes.Buffer, indent int) {
	for _, line := range wrap(n.note, noteWidth-indent) {
		pad(b, indent)
		b.WriteString("# " + line + "\n")
	}
}

func pad(b *bytes.Buffer, n int) { b.WriteString(strings.Repeat(" ", n)) }

// wrap breaks text at spaces and at its own line ends.
func wrap(text string, width int) []string {
	var lines []string
	for _, para := range strings.Split(text, "\n") {
		line := ""
		for _, w := range strings.Fields(para) {
			if line != "" && len(line)+1+len(w) > width {
				lines = append(lines, line)
				line = ""
			}
			if line != "" {
				line += " "
			}
			line += w
		}
		if line != "" {
			lines = append(lines, line)
		}
	}
	return lines
}
