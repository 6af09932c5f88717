package lab

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// Node is one kvsteer node of a site.
type Node struct {
	*Process
	Addr    string // ip:port, where it serves routers
	Admin   string // URL
	Config  string // path of its configuration
	Engines []*Engine

	lab   *Lab
	name  string
	pools []nodePool
}

// nodePool is a pool as a node's configuration has it.
type nodePool struct {
	name, model string
	engines     []string // one YAML mapping each
}

// follow has the node follow an engine. keys are those of its events.
func (n *Node) follow(e *Engine, p PoolOptions, keys string) {
	n.Engines = append(n.Engines, e)
	if len(n.pools) == 0 || n.pools[len(n.pools)-1].name != p.Name { // engines come pool by pool
		n.pools = append(n.pools, nodePool{name: p.Name, model: p.Model})
	}
	last := &n.pools[len(n.pools)-1]
	last.engines = append(last.engines, fmt.Sprintf("{address: %q, events: {%s}}", e.Address, keys))
}

// stateDir is where the node keeps its mirrors.
func (n *Node) stateDir() string { return filepath.Join(n.lab.opt.Dir, n.name+"-state") }

// text is the node's configuration; further are more lines of it.
func (n *Node) text(further string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "name: %s\nlisten: %q\nadmin: {listen: %q, write: true}\nstate_dir: %q\n%s\npools:\n", n.name, n.Addr, strings.TrimPrefix(n.Admin, "http://"), n.stateDir(), further)
	for _, p := range n.pools {
		fmt.Fprintf(&b, "- name: %s\n  models: [%s]\n  engines:\n", p.name, p.model)
		for _, e := range p.engines {
			fmt.Fprintf(&b, "  - %s\n", e)
		}
	}
	return b.String()
}

func (n *Node) writeConfig(further string) error {
	if err := os.WriteFile(n.Config, []byte(n.text(further)), 0o644); err != nil {
		return fmt.Errorf("write configuration: %w", err)
	}
	return nil
}

// Start starts the node, again after it was killed or stopped, and waits until it is ready.
func (n *Node) Start(ctx context.Context) error {
	p, err := n.lab.start(n.name, n.lab.opt.Kvsteer, "node", "--config", n.Config)
	if err != nil {
		return err
	}
	n.Process = p
	ctx, cancel := context.WithTimeoutCause(ctx, startTimeout, fmt.Errorf("no answer within %s", startTimeout))
	defer cancel()
	return p.until(ctx, "ready", func() bool { return answers(ctx, n.Admin+"/readyz") })
}

// watched is the part of a router's configuration that names the nodes, "" for none.
func watched(nodes []*Node) string {
	if len(nodes) == 0 {
		return ""
	}
	var addrs []string
	for _, n := range nodes {
		addrs = append(addrs, fmt.Sprintf("{address: %q}", n.Addr))
	}
	return "nodes: [" + strings.Join(addrs, ", ") + "]"
}
