package config

import (
	"fmt"
	"reflect"
	"strings"
)

// Reference returns the schema as a Markdown table of key, default and meaning, in the order of the file.
func Reference() string { return table(reflect.TypeFor[Config]()) }

// NodeReference is that of a node's file.
func NodeReference() string { return table(reflect.TypeFor[Node]()) }

func table(schema reflect.Type) string {
	var b strings.Builder
	b.WriteString("| key | default | meaning |\n|---|---|---|\n")
	reference(&b, "", schema)
	return b.String()
}

func reference(b *strings.Builder, path string, t reflect.Type) {
	for i := range t.NumField() {
		field := t.Field(i)
		full := join(path, field.Tag.Get("yaml"))
		if doc := field.Tag.Get("doc"); doc != "" {
			value := ""
			if text, ok := field.Tag.Lookup("default"); ok {
				value = "`" + text + "`"
			}
			fmt.Fprintf(b, "| `%s` | %s | %s |\n", full, value, strings.ReplaceAll(doc, "|", `\|`))
		}
		switch {
		case field.Type.Kind() == reflect.Struct:
			reference(b, full, field.Type)
		case field.Type.Kind() == reflect.Slice && field.Type.Elem().Kind() == reflect.Struct:
			reference(b, full+"[]", field.Type.Elem())
		}
	}
}
