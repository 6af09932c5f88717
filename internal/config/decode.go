package config

import (
	"errors"
	"fmt"
	"io"
	"os"
	"reflect"
	"sort"
	"strings"

	"github.com/goccy/go-yaml"
	"github.com/goccy/go-yaml/ast"
	"github.com/goccy/go-yaml/parser"
)

// maxFile bounds the configuration file: far above any real one, far below what could exhaust memory.
const maxFile = 4 << 20

// Problem is one thing wrong in a configuration file.
type Problem struct {
	File string
	Line int    // 1-based; 0 when the problem has no place of its own
	Key  string // full path such as pools[0].endpoints[2].address
	Text string

	// Excerpt is the source around a place that is not valid YAML, in lines of its own. It may show a credential, so that it is for
	// the terminal of who asked, and no part of Error.
	Excerpt string
}

func (p Problem) Error() string {
	var b strings.Builder
	b.WriteString(p.File)
	if p.Line > 0 {
		fmt.Fprintf(&b, ":%d", p.Line)
	}
	b.WriteString(": ")
	if p.Key != "" {
		b.WriteString(p.Key + ": ")
	}
	b.WriteString(p.Text)
	return b.String()
}

// Load reads and checks the file at path. The error joins every Problem found.
func Load(path string) (*Config, error) {
	data, err := read(path)
	if err != nil {
		return nil, err
	}
	if OfNode(data) {
		return nil, Problem{File: path, Text: "this is the file of a node, whose pools have engines: kvsteer node, kvsteer engine-args and kvsteer doctor take it"}
	}
	return Parse(path, data)
}

// read returns the content of a file that is not longer than any real one.
func read(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxFile+1))
	if err != nil {
		return nil, fmt.Errorf("read config: %w", err)
	}
	if len(data) > maxFile {
		return nil, fmt.Errorf("read config: %s is longer than %s", path, Size(maxFile))
	}
	return data, nil
}

// Parse checks data as the content of the file called name. The error joins every Problem found.
func Parse(name string, data []byte) (*Config, error) {
	cfg := Default()
	if err := parse(name, data, reflect.ValueOf(cfg).Elem(), func(d *decoder) { d.validate(cfg) }); err != nil {
		return nil, err
	}
	return cfg, nil
}

// parse reads data into a schema that holds its defaults, and has it checked.
func parse(name string, data []byte, into reflect.Value, validate func(*decoder)) error {
	d := decoder{name: name, lines: map[string]int{}}
	file, err := parser.ParseBytes(data, 0)
	if err != nil {
		return invalid(name, err)
	}
	for i, doc := range file.Docs {
		if doc.Body == nil {
			continue
		}
		if i > 0 {
			d.problem(line(doc.Body), "", "a second YAML document: one file holds one configuration")
			break
		}
		d.value("", doc.Body, into)
	}
	validate(&d)
	if len(d.problems) == 0 {
		return nil
	}
	sort.SliceStable(d.problems, func(i, j int) bool { return d.problems[i].Line < d.problems[j].Line })
	errs := make([]error, len(d.problems))
	for i, p := range d.problems {
		errs[i] = p
	}
	return errors.Join(errs...)
}

// invalid makes a problem of the parser's error, whose own text quotes the source.
func invalid(name string, err error) Problem {
	p := Problem{File: name, Text: "not valid YAML", Excerpt: err.Error()}
	if e := yaml.Error(nil); errors.As(err, &e) {
		if tok := e.GetToken(); tok != nil && tok.Position != nil {
			p.Line = tok.Position.Line
			p.Text += fmt.Sprintf(" at column %d", tok.Position.Column)
		}
		p.Text += ": " + e.GetMessage()
		_, p.Excerpt, _ = strings.Cut(strings.TrimRight(e.FormatError(false, true), "\n "), "\n") // its first line is the message
	}
	return p
}

// Default is the configuration of an empty file: it lacks only pools.
func Default() *Config {
	cfg := new(Config)
	setDefaults(reflect.ValueOf(cfg).Elem())
	return cfg
}

// setDefaults fills the fields of a struct from their default tags. A tag that does not parse is a mistake in this
// package, found by any test that calls Default.
func setDefaults(v reflect.Value) {
	for i := range v.NumField() {
		field := v.Type().Field(i)
		if field.Type.Kind() == reflect.Struct {
			setDefaults(v.Field(i))
			continue
		}
		if text, ok := field.Tag.Lookup("default"); ok {
			if err := scalar(text, v.Field(i)); err != nil {
				panic(fmt.Sprintf("config: default of %s: %v", field.Name, err))
			}
		}
	}
}

// decoder walks the syntax tree beside the schema and notes where each key stands, so that later checks can name lines.
type decoder struct {
	name     string
	lines    map[string]int
	failed   map[string]bool
	problems []Problem
}

func (d *decoder) problem(line int, key, text string) {
	d.problems = append(d.problems, Problem{File: d.name, Line: line, Key: key, Text: text})
	if d.failed == nil {
		d.failed = map[string]bool{}
	}
	d.failed[key] = true
}

func line(n ast.Node) int {
	if tok := n.GetToken(); tok != nil && tok.Position != nil {
		return tok.Position.Line
	}
	return 0
}

func (d *decoder) value(path string, n ast.Node, v reflect.Value) {
	switch n := n.(type) {
	case *ast.NullNode:
		return // "key:" without a value keeps the default
	case *ast.AnchorNode, *ast.AliasNode, *ast.TagNode:
		d.problem(line(n), path, "anchors, aliases and tags are not supported here")
		return
	}
	switch v.Kind() {
	case reflect.Struct:
		// Some mappings have a short form for their first key.
		if text, ok := scalarText(n); ok {
			if p, ok := v.Addr().Interface().(interface{ parse(string) error }); ok {
				if err := p.parse(text); err != nil {
					d.problem(line(n), path, err.Error())
				}
				return
			}
		}
		d.mapping(path, n, v)
	case reflect.Slice:
		d.sequence(path, n, v)
	default:
		text, ok := scalarText(n)
		if !ok {
			d.problem(line(n), path, "a single value is needed here, not "+describe(n))
			return
		}
		if err := scalar(text, v); err != nil {
			d.problem(line(n), path, err.Error())
		}
	}
}

func (d *decoder) mapping(path string, n ast.Node, v reflect.Value) {
	m, ok := n.(ast.MapNode)
	if !ok {
		what := describe(n)
		if _, ok := scalarText(n); ok && (strings.HasSuffix(path, ".match") || strings.HasSuffix(path, ".match.header")) {
			what = "a text" // which may be a header with a credential
		}
		d.problem(line(n), path, "a mapping of keys to values is needed here, not "+what)
		return
	}
	seen := map[string]bool{}
	for it := m.MapRange(); it.Next(); {
		key, ok := scalarText(it.Key())
		if !ok {
			d.problem(line(it.Key()), path, "this key is not plain text")
			continue
		}
		full := join(path, key)
		i, ok := fieldOf(v.Type(), key)
		if !ok {
			text := "unknown key"
			if near := nearest(key, keysOf(v.Type())); near != "" {
				text += fmt.Sprintf(", did you mean %q?", near)
			} else {
				text += "; known here: " + strings.Join(keysOf(v.Type()), ", ")
			}
			d.problem(line(it.Key()), full, text)
			continue
		}
		if seen[key] {
			d.problem(line(it.Key()), full, "this key stands here twice")
			continue
		}
		seen[key] = true
		d.lines[full] = line(it.Key())
		d.value(full, it.Value(), v.Field(i))
	}
}

func (d *decoder) sequence(path string, n ast.Node, v reflect.Value) {
	s, ok := n.(*ast.SequenceNode)
	if !ok {
		d.problem(line(n), path, "a list is needed here, not "+describe(n))
		return
	}
	out := reflect.MakeSlice(v.Type(), len(s.Values), len(s.Values))
	for i, item := range s.Values {
		if out.Index(i).Kind() == reflect.Struct {
			setDefaults(out.Index(i))
		}
		full := fmt.Sprintf("%s[%d]", path, i)
		d.lines[full] = line(item)
		d.value(full, item, out.Index(i))
	}
	v.Set(out)
}

func join(path, key string) string {
	if path == "" {
		return key
	}
	return path + "." + key
}

func keysOf(t reflect.Type) []string {
	keys := make([]string, t.NumField())
	for i := range keys {
		keys[i] = t.Field(i).Tag.Get("yaml")
	}
	return keys
}

func fieldOf(t reflect.Type, key string) (int, bool) {
	for i := range t.NumField() {
		if t.Field(i).Tag.Get("yaml") == key {
			return i, true
		}
	}
	return 0, false
}
