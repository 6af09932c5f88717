package engineargs

import (
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"strings"
	"unicode"
)

// commentWidth is where comments are broken.
const commentWidth = 110

// comments are what people read above an engine's arguments.
func comments(w *bytes.Buffer, e Engine, more ...string) {
	comment(w, fmt.Sprintf("pool %s, endpoint %s", e.Pool, e.Endpoint))
	if e.Missing != "" {
		comment(w, "no arguments: "+e.Missing)
		return
	}
	comment(w, e.Events)
	for _, note := range append(more, e.Notes...) {
		comment(w, note)
	}
}

// comment writes text as lines that no shell and no YAML parser reads.
func comment(w *bytes.Buffer, text string) {
	text = strings.Map(func(r rune) rune {
		if unicode.IsControl(r) || r == '\u2028' || r == '\u2029' {
			return unicode.ReplacementChar
		}
		return r
	}, text)
	line := "#"
	for word := range strings.SplitSeq(text, " ") {
		if len(line)+1+len(word) > commentWidth && line != "#" {
			w.WriteString(line + "\n")
			line = "#  "
		}
		line += " " + word
	}
	w.WriteString(line + "\n")
}

// Shell writes one command per engine for a POSIX shell, each option on a line of its own. The model comes from the variable MODEL.
func Shell(w io.Writer, engines []Engine) error {
	var b bytes.Buffer
	for i, e := range engines {
		if i > 0 {
			b.WriteByte('\n')
		}
		comments(&b, e)
		if e.Missing != "" {
			continue
		}
		for _, v := range e.Env {
			fmt.Fprintf(&b, "%s=%s ", v.Name, word(v.Value))
		}
		fmt.Fprintf(&b, `%s "${MODEL:?set it to the name or the path of the model}"`, strings.Join(kinds[e.Kind].command, " "))
		for _, arg := range e.Args {
			if strings.HasPrefix(arg, "--") {
				b.WriteString(" \\\n ")
			}
			b.WriteString(" " + word(arg))
		}
		b.WriteByte('\n')
	}
	return write(w, &b)
}

// word is text as one word of a POSIX shell.
func word(text string) string {
	plain := text != "" && text[0] != '=' // zsh looks for a command of that name
	for i := range len(text) {
		c := text[i]
		if c < '0' || '9' < c && c < 'A' || 'Z' < c && c < 'a' || c > 'z' {
			plain = plain && strings.IndexByte("-_./:=,@%+", c) >= 0
		}
	}
	if plain {
		return text
	}
	return "'" + strings.ReplaceAll(text, "'", `'\''`) + "'"
}

// Container writes one YAML document per engine with the keys args and env of a Kubernetes container.
func Container(w io.Writer, engines []Engine) error {
	var b bytes.Buffer
	comment(&b, "args go behind the model. In a Compose file args is command, and env is environment.")
	for i, e := range engines {
		if i > 0 {
			b.WriteString("---\n")
		}
		comments(&b, e, local(e)...)
		if e.Missing != "" {
			continue
		}
		b.WriteString("args:\n")
		for _, arg := range e.Args {
			fmt.Fprintf(&b, "- %s\n", scalar(arg))
		}
		if len(e.Env) > 0 {
			b.WriteString("env:\n")
		}
		for _, v := range e.Env {
			fmt.Fprintf(&b, "- name: %s\n  value: %s\n", v.Name, scalar(v.Value))
		}
	}
	return write(w, &b)
}

// local says what a container's own loopback means for an engine that connects to that of the router or node.
func local(e Engine) []string {
	if e.Missing != "" || !strings.Contains(e.Events, "connects") {
		return nil
	}
	return []string{"The " + follower(e.Node) + " must be in the same network namespace: a container of the same pod, or both on the host's network."}
}

// scalar is text as a YAML string that Kubernetes and Compose hand to the engine as it is: JSON's strings are YAML's but for characters that YAML
// takes for breaks or refuses, and both replace $$ by $ where a single one could name a variable.
func scalar(text string) string {
	var b strings.Builder
	for _, r := range compact(strings.ReplaceAll(text, "$", "$$")) {
		if unicode.IsControl(r) || r == '\ufeff' {
			fmt.Fprintf(&b, `\u%04x`, r)
		} else {
			b.WriteRune(r)
		}
	}
	return b.String()
}

// JSON writes all engines as one object.
func JSON(w io.Writer, engines []Engine) error {
	type engine struct {
		Pool     string            `json:"pool"`
		Endpoint string            `json:"endpoint"`
		Engine   Kind              `json:"engine"`
		Command  []string          `json:"command,omitempty"` // the model follows, then args
		Args     []string          `json:"args,omitempty"`
		Env      map[string]string `json:"env,omitempty"`
		Notes    []string          `json:"notes,omitempty"`
		Missing  string            `json:"missing,omitempty"`
	}
	all := []engine{}
	for _, e := range engines {
		one := engine{Pool: e.Pool, Endpoint: e.Endpoint, Engine: e.Kind, Args: e.Args, Notes: e.Notes, Missing: e.Missing}
		if e.Missing == "" {
			one.Command, one.Env = kinds[e.Kind].command, map[string]string{}
		}
		for _, v := range e.Env {
			one.Env[v.Name] = v.Value
		}
		all = append(all, one)
	}
	var b bytes.Buffer
	enc := json.NewEncoder(&b)
	enc.SetEscapeHTML(false)
	enc.SetIndent("", "  ")
	if err := enc.Encode(map[string]any{"engines": all}); err != nil {
		return fmt.Errorf("write engine arguments: %w", err)
	}
	return write(w, &b)
}

func write(w io.Writer, b *bytes.Buffer) error {
	if _, err := w.Write(b.Bytes()); err != nil {
		return fmt.Errorf("write engine arguments: %w", err)
	}
	return nil
}
