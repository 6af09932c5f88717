package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
)

// version is set by the build: go build -ldflags "-X main.version=…".
var version = "devel"

type versionCmd struct{}

// Run prints the version, the revision it was built from and the toolchain.
func (versionCmd) Run(out io.Writer) error {
	revision := "unknown"
	if info, ok := debug.ReadBuildInfo(); ok {
		for _, s := range info.Settings {
			if s.Key == "vcs.revision" {
				revision = s.Value
			}
		}
	}
	_, err := fmt.Fprintf(out, "kvsteer %s (revision %s, %s, %s/%s)\n", version, revision, runtime.Version(), runtime.GOOS, runtime.GOARCH)
	return err
}
