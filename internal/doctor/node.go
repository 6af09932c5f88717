package doctor

import (
	"context"
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/ports"
)

// siteOf is the file of a node as that of a router that follows the same engines: what is judged of both is judged once. An engine has the address
// where the node reaches it. at is where its events are; nil leaves auto as it stands.
func siteOf(n *config.Node, at func(config.Engine) config.Events) *config.Config {
	cfg := config.Default()
	cfg.Listen, cfg.TLS, cfg.Insecure, cfg.Admin, cfg.StateDir, cfg.Engines.TLS = n.Listen, n.TLS, n.Insecure, config.Admin(n.Admin), n.StateDir, n.Engines.TLS
	for _, p := range n.Pools {
		pool := config.Pool{Name: p.Name, Models: p.Models, APIKeyFile: p.APIKeyFile, HashSeed: p.HashSeed, AdaptersRefresh: p.AdaptersRefresh}
		for _, e := range p.Engines {
			events := e.Events.At(0, 0)
			if at != nil {
				events = at(e)
			}
			pool.Endpoints = append(pool.Endpoints, config.Endpoint{Address: e.Local(), Drain: e.Drain, Events: events})
		}
		cfg.Pools = append(cfg.Pools, pool)
	}
	return cfg
}

// nodeFacts are what a node's state says.
type nodeFacts struct {
	known   bool
	Routers []struct {
		Address string `json:"address"`
	} `json:"routers"`
	Engines []struct {
		Address string `json:"address"` // where the node reaches it
		Ranks   []struct {
			Rank   int    `json:"rank"`
			Listen string `json:"listen"`
			Replay string `json:"replay"`
		} `json:"ranks"`
	} `json:"engines"`
}

// readNode asks the node for its state.
func (d *Doctor) readNode(ctx context.Context) (n nodeFacts) {
	if d.opt.Admin == "" {
		return n
	}
	reply := d.clients.router.get(ctx, location(d.opt.Admin, "api/v1/state"), d.token(), maxReply*16)
	n.known = reply.ok() && json.Unmarshal(reply.body, &n) == nil
	return n
}

// ports are those of an engine as the node listens for it.
func (n *nodeFacts) ports(engine string) (p ports.Ports) {
	for _, e := range n.Engines {
		for _, r := range e.Ranks {
			if e.Address == engine && r.Rank == 0 {
				p = ports.Ports{Events: portOf(r.Listen), Replay: portOf(r.Replay)}
			}
		}
	}
	return p
}

func portOf(source string) uint16 {
	at, err := netip.ParseAddrPort(strings.TrimPrefix(source, "tcp://"))
	if err != nil {
		return 0
	}
	return at.Port()
}

// runNode looks at a node once: at itself first, as it knows the ports of its engines.
func (d *Doctor) runNode(ctx context.Context, f facts, c *collector, keys map[string]string) (*Report, error) {
	var wg sync.WaitGroup
	wg.Go(func() { f.router = d.readRouter(ctx) })
	wg.Go(func() { f.own = d.readNode(ctx) })
	wg.Go(func() { f.ports = readPorts(d.opt.Proc) })
	wg.Wait()
	f.cfg = siteOf(f.node, func(e config.Engine) config.Events {
		at := f.own.ports(e.Local())
		if at == (ports.Ports{}) {
			at = d.opt.Kept[e.Local()]
		}
		return e.Events.At(at.Events, at.Replay)
	})
	f.list(keys)
	d.readEngines(ctx, f.engines)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.examineNodeFile(c, d.opt.KeptErr)
	for i := range f.engines {
		f.engines[i].examine(c)
	}
	f.examineEvents(c)
	f.examineNode(c)
	return c.report(d.opt.Ignore), nil
}

// keepsPorts reports whether a node's state_dir holds ports that it picked.
func (f *facts) keepsPorts() bool {
	return f.node != nil && slices.ContainsFunc(f.node.Pools, func(p config.NodePool) bool {
		return slices.ContainsFunc(p.Engines, func(e config.Engine) bool { return e.AutoPorts() > 0 })
	})
}

// examineNodeFile judges what the file of a node and this host show.
func (f *facts) examineNodeFile(c *collector, keptErr error) {
	if f.node.Insecure {
		if !f.node.TLS.On() && beyondLoopback(f.node.Listen) {
			c.found(ClearText, "config", "listen %s: what engines hold, and the token, travel in clear text", f.node.Listen)
		}
		if !f.node.Admin.TLS.On() && beyondLoopback(f.node.Admin.Listen) {
			c.found(ClearText, "config", "admin.listen %s: the admin token travels in clear text", f.node.Admin.Listen)
		}
	}
	f.examineState(c)
	for i := range f.engines {
		e := &f.engines[i]
		if e.endpoint.Drain {
			c.found(Draining, e.subject(), "drain: true")
		}
		switch {
		case e.endpoint.Events.Listen != config.Auto && e.endpoint.Events.Replay != config.Auto:
		case keptErr != nil:
			c.unknown(e.subject(), "its event ports", "what state_dir keeps of them cannot be read: %v", keptErr)
		default:
			c.found(PortsUnknown, e.subject(), "%s holds no ports for it, or others than the configuration now wants", filepath.Join(f.node.StateDir, "ports.json"))
		}
	}
	for i, p := range f.node.Pools {
		if p.Tokenizer.Dir != "" {
			f.examineOffer(c, fmt.Sprintf("pools[%d].tokenizer", i), p.Tokenizer)
		}
	}
}

// examineOffer judges the tokenizer files that a node is to offer.
func (f *facts) examineOffer(c *collector, key string, t config.Tokenizer) {
	const read = 4
	if info, err := os.Stat(t.Dir); err != nil || !info.IsDir() {
		if err == nil {
			err = &os.PathError{Op: "open", Path: t.Dir, Err: syscall.ENOTDIR}
		}
		c.found(FilesNotOffered, "config", "%s.dir: %v", key, err)
		return
	}
	vocabulary := false
	for _, name := range config.TokenizerFiles() {
		path := filepath.Join(t.Dir, name)
		info, err := os.Stat(path)
		if os.IsNotExist(err) {
			continue
		}
		vocabulary = vocabulary || slices.Contains([]string{"tokenizer.json", "tokenizer.model", "vocab.json"}, name)
		switch {
		case err != nil:
			c.found(FilesNotOffered, "config", "%s: %v", key, err)
		case !info.Mode().IsRegular():
			c.found(FilesNotOffered, "config", "%s: %s is no regular file", key, path)
		case info.Size() > t.MaxSize.Bytes():
			c.found(FilesNotOffered, "config", "%s: %s has %s, more than max_size (%s)", key, path, config.Size(info.Size()), t.MaxSize)
		default:
			if err := syscall.Access(path, read); err != nil {
				c.found(FilesNotOffered, "config", "%s: %v", key, &os.PathError{Op: "read", Path: path, Err: err})
			}
		}
	}
	if !vocabulary {
		c.found(FilesNotOffered, "config", "%s.dir: %s holds none of tokenizer.json, tokenizer.model and vocab.json", key, t.Dir)
	}
}

// examineNode judges what the node says of itself, events apart.
func (f *facts) examineNode(c *collector) {
	if !f.examineAdmin(c, NodeSilent, NodeUnready) {
		if f.router.page.err != nil {
			f.examineTaken(c)
		}
		return
	}
	switch {
	case !f.own.known:
		c.unknown("node", "routers that watch it", "GET /api/v1/state does not tell of them")
	case len(f.own.Routers) == 0:
		c.found(NodeUnwatched, "node", "no router is connected")
	}
	for i := range f.engines {
		e := &f.engines[i]
		if stale, _ := f.router.metrics.sum("kvsteer_scrape_stale", e.series()...); stale == 0 || !e.up() {
			continue
		}
		var why []string
		for _, s := range f.router.metrics.named("kvsteer_scrape_scrapes_total", e.series()...) {
			if outcome := s.labels["outcome"]; outcome != "ok" && s.value > 0 {
				why = append(why, fmt.Sprintf("%s %.0f times", outcome, s.value))
			}
		}
		slices.Sort(why)
		c.found(LoadUnknown, e.subject(), "GET /metrics fails for the node: %s since its start", strings.Join(why, ", "))
	}
}

// examineTaken looks for others at the addresses of a node that does not run.
func (f *facts) examineTaken(c *collector) {
	addr, err := netip.ParseAddrPort(f.node.Admin.Listen)
	if err != nil || !f.ports.shown || f.ports.listens(addr) {
		return // it may be the node itself
	}
	taken := func(what, source string) {
		if at, err := netip.ParseAddrPort(strings.TrimPrefix(source, "tcp://")); err == nil && f.ports.listens(at) {
			c.found(PortTaken, "config", "%s: somebody listens at %s", what, at)
		}
	}
	taken("listen", f.node.Listen)
	for _, e := range f.engines {
		for rank := range max(1, e.endpoint.Events.Ranks) {
			taken("events.listen of "+e.subject(), e.endpoint.Events.Of(rank).Listen)
		}
	}
}
