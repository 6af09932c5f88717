package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Change is one difference between two configurations.
type Change struct {
	Key  string // full path; pools and endpoints by name, such as pools[chat].endpoints[10.0.0.11:8000].drain
	Kind Kind
}

// Kind says how the second configuration differs; one of a closed set.
type Kind string

// The kinds.
const (
	Added   Kind = "added"   // a pool or an endpoint
	Removed Kind = "removed" // a pool or an endpoint
	Changed Kind = "changed" // another value
)

// Under reports whether the change is of key or of a key below it.
func (c Change) Under(key string) bool {
	rest, ok := strings.CutPrefix(c.Key, key)
	return ok && (rest == "" || rest[0] == '.' || rest[0] == '[')
}

// Diff lists in what b differs from a, in the order of the schema. The order of pools and of endpoints counts for nothing.
func Diff(a, b *Config) []Change {
	return diff(nil, "", reflect.ValueOf(*a), reflect.ValueOf(*b))
}

func diff(changes []Change, path string, a, b reflect.Value) []Change {
	t := a.Type()
	switch {
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			changes = diff(changes, join(path, t.Field(i).Tag.Get("yaml")), a.Field(i), b.Field(i))
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		changes = diffList(changes, path, a, b)
	case t.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0:
	case !reflect.DeepEqual(a.Interface(), b.Interface()):
		changes = append(changes, Change{path, Changed})
	}
	return changes
}

// diffList compares lists whose elements are told apart by their first key: name and address.
func diffList(changes []Change, path string, a, b reflect.Value) []Change {
	at := map[string]int{}
	for i := range b.Len() {
		at[b.Index(i).Field(0).String()] = i
	}
	for i := range a.Len() {
		name := a.Index(i).Field(0).String()
		key := fmt.Sprintf("%s[%s]", path, name)
		if j, ok := at[name]; ok {
			changes = diff(changes, key, a.Index(i), b.Index(j))
			delete(at, name)
		} else {
			changes = append(changes, Change{key, Removed})
		}
	}
	for i := range b.Len() {
		if name := b.Index(i).Field(0).String(); has(at, name) {
			changes = append(changes, Change{fmt.Sprintf("%s[%s]", path, name), Added})
		}
	}
	return changes
}

func has(m map[string]int, key string) bool {
	_, ok := m[key]
	return ok
}
