package config

import (
	"bytes"
	"encoding/json"
	"reflect"
	"strings"
)

// hidden stands for a value that is not shown.
const hidden = "(hidden)"

// MarshalJSON writes the configuration with every key, in the order of the reference, values as in the file. It has no secrets: files of keys
// and tokens are named, not read, and the value of a header that may be a credential is hidden. JSON is YAML too, so that Parse
// reads it again.
func (c *Config) MarshalJSON() ([]byte, error) {
	shown := *c
	shown.Pools = append([]Pool{}, c.Pools...)
	for i := range shown.Pools {
		if h := &shown.Pools[i].Match.Header; credential(h.Name) && h.Value != "" {
			h.Value = hidden
		}
	}
	return marshal(shown)
}

func marshal(schema any) ([]byte, error) {
	var b bytes.Buffer
	if err := show(&b, reflect.ValueOf(schema)); err != nil {
		return nil, err
	}
	return b.Bytes(), nil
}

// credential reports whether a header of this name may bring one.
func credential(name string) bool {
	name = strings.ToLower(name)
	for _, word := range []string{"auth", "cookie", "key", "secret", "token"} {
		if strings.Contains(name, word) {
			return true
		}
	}
	return false
}

// show writes a value of one of the schema's types.
func show(b *bytes.Buffer, v reflect.Value) error {
	switch v.Kind() {
	case reflect.Struct:
		b.WriteByte('{')
		for i := range v.NumField() {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(`"` + v.Type().Field(i).Tag.Get("yaml") + `":`)
			if err := show(b, v.Field(i)); err != nil {
				return err
			}
		}
		b.WriteByte('}')
		return nil
	case reflect.Slice:
		b.WriteByte('[')
		for i := range v.Len() {
			if i > 0 {
				b.WriteByte(',')
			}
			if err := show(b, v.Index(i)); err != nil {
				return err
			}
		}
		b.WriteByte(']')
		return nil
	}
	value := v.Interface()
	if s, ok := value.(interface{ String() string }); ok {
		value = s.String()
	}
	text, err := json.Marshal(value)
	b.Write(text)
	return err
}
