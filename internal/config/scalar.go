package config

import (
	"fmt"
	"reflect"
	"strconv"
	"strings"

	"github.com/goccy/go-yaml/ast"
)

// scalarText returns the text of a scalar as it stands in the file, without its quotes.
func scalarText(n ast.Node) (string, bool) {
	switch n := n.(type) {
	case *ast.StringNode:
		return n.Value, true
	case *ast.LiteralNode:
		return n.Value.Value, true
	case *ast.IntegerNode, *ast.FloatNode, *ast.BoolNode:
		return n.GetToken().Value, true
	}
	return "", false
}

// scalar parses text into a field of one of the schema's leaf types.
func scalar(text string, v reflect.Value) error {
	switch p := v.Addr().Interface().(type) {
	case interface{ parse(string) error }:
		return p.parse(text)
	case *string:
		*p = text
	case *bool:
		switch text {
		case "true":
			*p = true
		case "false":
			*p = false
		default:
			return fmt.Errorf("%q is neither true nor false", text)
		}
	case *int:
		n, err := strconv.Atoi(strings.ReplaceAll(text, "_", ""))
		if err != nil {
			return fmt.Errorf("%q is not a whole number", text)
		}
		*p = n
	case *float64:
		n, err := strconv.ParseFloat(text, 64)
		if err != nil {
			return fmt.Errorf("%q is not a number", text)
		}
		*p = n
	default:
		return fmt.Errorf("no rule for the type %s", v.Type())
	}
	return nil
}

// maxQuoted is the longest text that a problem repeats, in bytes: what is given for a configuration may be any file.
const maxQuoted = 200

func describe(n ast.Node) string {
	switch n.(type) {
	case *ast.SequenceNode:
		return "a list"
	case ast.MapNode:
		return "a mapping"
	}
	if text, ok := scalarText(n); ok {
		if len(text) > maxQuoted {
			return "a text of " + strconv.Itoa(len(text)) + " bytes"
		}
		return strconv.Quote(text)
	}
	return "this"
}
