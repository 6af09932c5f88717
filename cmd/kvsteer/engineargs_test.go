package main

import (
	"errors"
	"fmt"
	"io/fs"
	"strings"
	"testing"
)

// TestNoPorts has a reader of a node's file who may not write to its folder told who may.
func TestNoPorts(t *testing.T) {
	denied := fmt.Errorf("ports of engines: %w", &fs.PathError{Op: "open", Path: "/state/ports.lock", Err: fs.ErrPermission})
	if err := noPorts(denied, "/state"); !errors.Is(err, fs.ErrPermission) || !strings.Contains(err.Error(), "a user who may write to state_dir (/state)") {
		t.Error(err)
	}
	other := errors.New("of 5557-5999 no more are free")
	if err := noPorts(other, "/state"); !errors.Is(err, other) || err.Error() != other.Error() {
		t.Error(err)
	}
}
