package watch

import (
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

func TestReadFile(t *testing.T) {
	dir := t.TempDir()
	at := func(name string) string { return filepath.Join(dir, name) }
	for name, text := range map[string]string{"empty": "", "most": "0123456789", "long": "0123456789x"} {
		if err := os.WriteFile(at(name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := syscall.Mkfifo(at("pipe"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct{ path, want, err string }{
		{at("empty"), "", ""},
		{at("most"), "0123456789", ""},
		{at("long"), "", "is longer than 10 bytes"},
		{at("pipe"), "", "is not a regular file"},
		{dir, "", "is not a regular file"},
		{"/dev/zero", "", "is not a regular file"},
		{at("none"), "", "no such file"},
	} {
		got, err := ReadFile(tt.path, 10)
		if string(got) != tt.want || (err == nil) != (tt.err == "") || err != nil && !strings.Contains(err.Error(), tt.err) {
			t.Errorf("%s: %q, %v; want %q, %q", tt.path, got, err, tt.want, tt.err)
		}
	}
}
