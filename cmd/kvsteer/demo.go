package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"

	"github.com/kvsteer/kvsteer/internal/demo"
)

// maxConversations keeps the demo within the time that it takes at most.
const maxConversations = 100

type demoCmd struct {
	Envoy string `help:"Envoy binary; default: $ENVOY, else envoy on PATH." env:"ENVOY" placeholder:"PATH"`
	Port  int    `help:"First of the loopback ports used." default:"18080"`
	JSON  string `name:"json" help:"Also write the figures to this file." placeholder:"FILE"`
	Size  int    `name:"conversations" help:"Conversations sent through each arm; fewer end sooner and show less." default:"60"`
	Keep  bool   `help:"After the table, leave everything running until Ctrl-C and print the URLs."`
}

// Run shows the demo; it needs an Envoy.
func (c *demoCmd) Run(ctx context.Context, out io.Writer) error {
	if c.Port < 1024 || c.Port > 65000 {
		return fmt.Errorf("--port %d is not in the range 1024 to 65000", c.Port)
	}
	if c.Size < 1 || c.Size > maxConversations {
		return fmt.Errorf("--conversations %d is not in the range 1 to %d", c.Size, maxConversations)
	}
	if err := writable(c.JSON); err != nil {
		return fmt.Errorf("--json: %w", err)
	}
	if c.Envoy == "" {
		path, err := exec.LookPath("envoy")
		if err != nil {
			return errors.New("no Envoy found: run \"make demo\", which fetches one, or set ENVOY to an Envoy binary (1.37 or newer)")
		}
		c.Envoy = path
	}
	self, err := os.Executable()
	if err != nil {
		return fmt.Errorf("find the kvsteer binary: %w", err)
	}
	return demo.Run(ctx, demo.Options{Kvsteer: self, Envoy: c.Envoy, Port: c.Port, JSON: c.JSON, Size: c.Size, Keep: c.Keep, Out: out})
}

// writable finds what would keep a file from being written before a minute is spent on its content.
func writable(path string) error {
	if path == "" {
		return nil
	}
	if info, err := os.Stat(path); err == nil && info.IsDir() {
		return fmt.Errorf("%s is a folder", path)
	}
	folder := filepath.Dir(path)
	if info, err := os.Stat(folder); err != nil || !info.IsDir() {
		return fmt.Errorf("%s is not a folder that is there", folder)
	}
	return nil
}
