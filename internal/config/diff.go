package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Change is one difference between two configurations.
type Change struct {
	Key  string // full path; pools and endpoints by name, such as pools[chat].endpoints[10.0.0.11:8000].drain
	Of   string // the same key in the schema, such as pools.endpoints.drain
	Kind Kind
}

// Kind says how the second configuration differs; one of a closed set.
type Kind string

// The kinds.
const (
	Added   Kind = "added" // a pool, an endpoint or another element of a list
	Removed Kind = "removed"
	Changed Kind = "changed" // another value
)

// Under reports whether the change is of a key of the schema, such as pools.fallback, or of a key below it.
func (c Change) Under(key string) bool {
	rest, ok := strings.CutPrefix(c.Of, key)
	return ok && (rest == "" || rest[0] == '.')
}

// Diff lists in what b differs from a, in the order of the schema. The order of pools, of endpoints and of engines counts for nothing.
func Diff[T Config | Node](a, b *T) []Change {
	return diff(nil, place{}, reflect.ValueOf(*a), reflect.ValueOf(*b))
}

// place is a key as it stands in a file and in the schema.
type place struct{ key, of string }

func (p place) join(key string) place { return place{join(p.key, key), join(p.of, key)} }

func (p place) element(name string) place {
	return place{fmt.Sprintf("%s[%s]", p.key, name), p.of}
}

func diff(changes []Change, at place, a, b reflect.Value) []Change {
	t := a.Type()
	switch {
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			changes = diff(changes, at.join(t.Field(i).Tag.Get("yaml")), a.Field(i), b.Field(i))
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		changes = diffList(changes, at, a, b)
	case t.Kind() == reflect.Slice && a.Len() == 0 && b.Len() == 0:
	case !reflect.DeepEqual(a.Interface(), b.Interface()):
		changes = append(changes, Change{at.key, at.of, Changed})
	}
	return changes
}

// diffList compares lists whose elements are told apart by their first key, name, address or id, or by a name that they make up.
func diffList(changes []Change, list place, a, b reflect.Value) []Change {
	at := map[string]int{}
	for i := range b.Len() {
		at[first(b.Index(i))] = i
	}
	for i := range a.Len() {
		name := first(a.Index(i))
		element := list.element(name)
		if j, ok := at[name]; ok {
			changes = diff(changes, element, a.Index(i), b.Index(j))
			delete(at, name)
		} else {
			changes = append(changes, Change{element.key, element.of, Removed})
		}
	}
	for i := range b.Len() {
		if name := first(b.Index(i)); has(at, name) {
			element := list.element(name)
			changes = append(changes, Change{element.key, element.of, Added})
		}
	}
	return changes
}

// first is the text that tells an element from others.
func first(element reflect.Value) string {
	if n, ok := element.Interface().(interface{ name() string }); ok {
		return n.name()
	}
	return fmt.Sprint(element.Field(0).Interface())
}

func has(m map[string]int, key string) bool {
	_, ok := m[key]
	return ok
}
