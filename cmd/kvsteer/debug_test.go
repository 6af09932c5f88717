package main

import (
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/iotest"
)

// TestWriteWhole leaves the whole file or nothing.
func TestWriteWhole(t *testing.T) {
	tests := []struct {
		name string
		r    io.Reader
		good bool
	}{
		{"as long as it may be", &bounded{r: strings.NewReader("0123456789"), left: 10}, true},
		{"empty", &bounded{r: strings.NewReader("")}, true},
		{"too long", &bounded{r: strings.NewReader("0123456789x"), left: 10}, false},
		{"far too long", &bounded{r: strings.NewReader(strings.Repeat("x", 1<<20)), left: 10}, false},
		{"broken off", &bounded{r: io.MultiReader(strings.NewReader("01"), iotest.ErrReader(io.ErrUnexpectedEOF)), left: 10}, false},
	}
	for _, tt := range tests {
		dir := t.TempDir()
		_, err := writeWhole(filepath.Join(dir, "bundle"), tt.r)
		files, readErr := os.ReadDir(dir)
		if readErr != nil {
			t.Fatal(readErr)
		}
		if (err == nil) != tt.good || (len(files) == 1) != tt.good {
			t.Errorf("%s: error %v, files %v", tt.name, err, files)
		}
	}
}
