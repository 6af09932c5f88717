package repocheck

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// platforms are those whose binaries the notices cover: what a build leaves out on one, it may link on another.
var platforms = [][2]string{{"linux", "amd64"}, {"linux", "arm64"}, {"darwin", "arm64"}}

// licences are those that an Apache-2.0 binary may hold, each told by words of its text. The first that fits counts.
var licences = []struct {
	name  string
	words []string
}{
	{"Apache-2.0", []string{"Apache License", "Version 2.0, January 2004", "TERMS AND CONDITIONS FOR USE, REPRODUCTION, AND DISTRIBUTION"}},
	{"MIT", []string{"Permission is hereby granted, free of charge, to any person obtaining a copy", "The above copyright notice and this permission notice"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "Neither the name of"}},
	{"BSD-3-Clause", []string{"Redistribution and use in source and binary forms", "may be used to endorse or promote products"}},
	{"BSD-2-Clause", []string{"Redistribution and use in source and binary forms", "THIS SOFTWARE IS PROVIDED BY"}},
	{"CC0-1.0", []string{"CC0 1.0 Universal"}},
	{"ISC", []string{"Permission to use, copy, modify, and/or distribute this software for any purpose with or without fee is hereby granted"}},
}

var spaces = regexp.MustCompile(`\s+`)

// licenceOf names the licence of a text, "" for one that is not allowed.
func licenceOf(text string) string {
	text = spaces.ReplaceAllString(text, " ")
	for _, l := range licences {
		if !slices.ContainsFunc(l.words, func(w string) bool { return !strings.Contains(text, w) }) {
			return l.name
		}
	}
	return ""
}

// linked is a module that the binary holds.
type linked struct {
	Path, Version, Dir string
}

// linkedModules are the modules of the binary on all platforms.
func linkedModules(t *testing.T) []linked {
	t.Helper()
	all := map[string]linked{}
	for _, p := range platforms {
		cmd := exec.Command("go", "list", "-deps", "-json=Module", "./cmd/kvsteer")
		cmd.Dir = root(t)
		cmd.Env = append(os.Environ(), "GOOS="+p[0], "GOARCH="+p[1], "CGO_ENABLED=0")
		var stderr bytes.Buffer
		cmd.Stderr = &stderr
		out, err := cmd.Output()
		if err != nil {
			t.Fatalf("go list for %s/%s: %v\n%s", p[0], p[1], err, stderr.String())
		}
		for d := json.NewDecoder(bytes.NewReader(out)); ; {
			var pkg struct{ Module *linked }
			if err := d.Decode(&pkg); errors.Is(err, io.EOF) {
				break
			} else if err != nil {
				t.Fatal(err)
			}
			if m := pkg.Module; m != nil && m.Path != module {
				all[m.Path] = *m
			}
		}
	}
	return slices.SortedFunc(maps.Values(all), func(a, b linked) int { return cmp.Compare(a.Path, b.Path) })
}

var legalFile = regexp.MustCompile(`(?i)^(licen[cs]e|copying|notice|patents)(\.[a-z]+)?$`)

// notices is the content of THIRD_PARTY_NOTICES: every module of the binary with its licence, and every text once.
func notices(t *testing.T) string {
	t.Helper()
	modules := linkedModules(t)
	if len(modules) < 15 {
		t.Fatalf("only %d modules are linked", len(modules))
	}
	// Packages of Go carry Go's files in their source archive but not always when they are installed; golang.org/x has the same ones.
	golang := modules[slices.IndexFunc(modules, func(m linked) bool { return strings.HasPrefix(m.Path, "golang.org/x/") })]
	modules = slices.Insert(modules, 0, linked{Path: "the Go standard library and runtime", Dir: golang.Dir})
	var list strings.Builder
	users := map[string][]string{} // text → who uses it
	var texts []string
	for _, m := range modules {
		files, err := os.ReadDir(m.Dir)
		if err != nil {
			t.Fatal(err)
		}
		licence := ""
		for _, f := range files {
			if f.IsDir() || !legalFile.MatchString(f.Name()) {
				continue
			}
			data, err := os.ReadFile(filepath.Join(m.Dir, f.Name()))
			if err != nil {
				t.Fatal(err)
			}
			text := strings.ReplaceAll(string(data), "\r\n", "\n")
			if name := licenceOf(text); name != "" && licence == "" {
				licence = name
			}
			if users[text] == nil {
				texts = append(texts, text)
			}
			users[text] = append(users[text], m.Path)
		}
		if licence == "" {
			t.Errorf("%s %s: no licence that an Apache-2.0 binary may hold was found in %s", m.Path, m.Version, m.Dir)
		}
		fmt.Fprintf(&list, "  %s (%s)\n", strings.TrimSpace(m.Path+" "+m.Version), licence)
	}
	var b strings.Builder
	b.WriteString("The kvsteer binary contains the following software of others, under the licences given.\nWritten by \"make generate\".\n\n")
	b.WriteString(list.String())
	for _, text := range texts {
		fmt.Fprintf(&b, "\n%s\n%s\n\n%s\n", strings.Repeat("=", 80), strings.Join(users[text], "\n"), strings.TrimRight(text, "\n"))
	}
	return b.String()
}

// TestNotices holds that every module in the binary has an allowed licence and stands in THIRD_PARTY_NOTICES with its text.
func TestNotices(t *testing.T) {
	path := filepath.Join(root(t), "THIRD_PARTY_NOTICES")
	want := notices(t)
	if *update {
		if err := os.WriteFile(path, []byte(want), 0o644); err != nil {
			t.Fatal(err)
		}
		return
	}
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != want {
		t.Error("THIRD_PARTY_NOTICES is out of date (make generate)")
	}
}

func TestLicenceOf(t *testing.T) {
	for text, want := range map[string]string{
		"Permission is hereby granted, free of charge, to any person\n  obtaining a copy … The above copyright notice and this permission notice shall": "MIT",
		"Redistribution and use in source and binary forms … Neither the name of X … THIS SOFTWARE IS PROVIDED BY":                                      "BSD-3-Clause",
		"Redistribution and use in source and binary forms … THIS SOFTWARE IS PROVIDED BY":                                                              "BSD-2-Clause",
		"GNU GENERAL PUBLIC LICENSE Version 3": "",
		"Mozilla Public License Version 2.0":   "",
		"":                                     "",
	} {
		if got := licenceOf(text); got != want {
			t.Errorf("%.40q: %q, want %q", text, got, want)
		}
	}
}
