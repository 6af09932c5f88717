package main

import (
	"fmt"
	"io"
	"runtime"
	"runtime/debug"

	"github.com/alecthomas/kong"
)

// version is set by the build: go build -ldflags "-X main.version=…".
var version = "devel"

type versionCmd struct{}

// versionFlag does the same, for who tries --version first.
type versionFlag bool

// BeforeReset prints the version and ends the command line.
func (versionFlag) BeforeReset(app *kong.Kong) error {
	err := versionCmd{}.Run(app.Stdout)
	app.Exit(0)
	return err
}

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
