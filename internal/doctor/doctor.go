package doctor

import (
	"context"
	"errors"
	"fmt"
	"net"
	"slices"
	"sync"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/ports"
)

const (
	defaultTimeout = 5 * time.Second
	maxParallel    = 16 // engines asked at the same time
)

// Options says where to look. The zero value of every field but Config and Node, of which one is needed, is a working default.
type Options struct {
	Config *config.Config // of a router, as package config accepted it
	Node   *config.Node   // of a node

	// Kept are the ports of engines with events.listen: auto, by their addresses for the node, and KeptErr why they could not be read. A node that answers
	// knows better.
	Kept    map[string]ports.Ports
	KeptErr error

	// Admin and Envoy are the URLs of the admin listeners, such as http://127.0.0.1:9003: that of the router or node, and Envoy's. A source that is ""
	// is not looked at; with Node Envoy never is.
	Admin string
	Envoy string

	// TokenFile holds the token of the router or node, CAFile the authorities of its admin certificate. Both default to what the configuration
	// names.
	TokenFile string
	CAFile    string

	// CertFile and KeyFile are a client certificate for that admin listener, where it wants one.
	CertFile, KeyFile string

	Probe   bool          // send each engine one completion of one token
	Ignore  []Code        // findings to leave out
	Timeout time.Duration // of each request; default 5s

	Proc string // where Linux shows its sockets; default /proc

	// Dial connects; default is a net.Dialer.
	Dial func(ctx context.Context, network, address string) (net.Conn, error)
}

// Doctor looks at one site.
type Doctor struct {
	opt     Options
	clients clients
}

// New returns a Doctor. It opens no connection.
func New(o Options) (*Doctor, error) {
	if (o.Config == nil) == (o.Node == nil) {
		return nil, errors.New("doctor: a configuration is needed, of a router or of a node")
	}
	if o.Node != nil {
		o.Config = siteOf(o.Node, nil)
	}
	known := Catalogue()
	for _, c := range o.Ignore {
		if !slices.ContainsFunc(known, func(e Entry) bool { return e.Code == c }) {
			return nil, fmt.Errorf("doctor: ignore %q: no such code", c)
		}
	}
	if o.Timeout == 0 {
		o.Timeout = defaultTimeout
	}
	if o.Timeout < 0 {
		return nil, fmt.Errorf("doctor: timeout %s: want more than 0", o.Timeout)
	}
	if o.Proc == "" {
		o.Proc = "/proc"
	}
	if o.Dial == nil {
		o.Dial = (&net.Dialer{}).DialContext
	}
	d := &Doctor{opt: o}
	var err error
	d.clients, err = newClients(o)
	return d, err
}

// facts are everything that was read.
type facts struct {
	cfg     *config.Config
	node    *config.Node  // of which cfg is a picture; nil: cfg is a router's
	engines []engineFacts // of all pools, in the configuration's order
	router  routerFacts   // of the node, where there is one
	own     nodeFacts
	envoy   envoyFacts
	ports   openPorts
}

// Run looks once. Its error is that of ctx; whatever else goes wrong is a finding.
func (d *Doctor) Run(ctx context.Context) (*Report, error) {
	defer d.clients.close()
	f := facts{cfg: d.opt.Config, node: d.opt.Node}
	var c collector
	keys := d.files(&c)
	if f.node != nil {
		return d.runNode(ctx, f, &c, keys)
	}
	f.list(keys)
	var wg sync.WaitGroup
	wg.Go(func() { f.router = d.readRouter(ctx) })
	wg.Go(func() { f.envoy = d.readEnvoy(ctx) })
	wg.Go(func() { f.ports = readPorts(d.opt.Proc) })
	d.readEngines(ctx, f.engines)
	wg.Wait()
	var found []engineFacts
	for i := range f.cfg.Pools {
		p := &f.cfg.Pools[i]
		for _, address := range f.found(p) {
			found = append(found, engineFacts{pool: p, endpoint: &config.Endpoint{Address: address, Events: config.Events{Ranks: 1}}, key: keys[p.Name], dynamic: true})
		}
	}
	d.readEngines(ctx, found)
	f.engines = append(f.engines, found...)
	if err := ctx.Err(); err != nil {
		return nil, err
	}
	f.examine(&c)
	return c.report(d.opt.Ignore), nil
}

// list enters the engines of the configuration.
func (f *facts) list(keys map[string]string) {
	for i := range f.cfg.Pools {
		p := &f.cfg.Pools[i]
		for j := range p.Endpoints {
			f.engines = append(f.engines, engineFacts{pool: p, endpoint: &p.Endpoints[j], key: keys[p.Name]})
		}
	}
}

// self is who follows the engines by the configuration.
func (f *facts) self() string {
	if f.node != nil {
		return "node"
	}
	return "router"
}

// readEngines asks some engines, several at a time.
func (d *Doctor) readEngines(ctx context.Context, engines []engineFacts) {
	var g errgroup.Group
	g.SetLimit(maxParallel)
	for i := range engines {
		g.Go(func() error {
			d.readEngine(ctx, &engines[i])
			return nil
		})
	}
	_ = g.Wait() // nobody returns an error
}

// examine judges the facts.
func (f *facts) examine(c *collector) {
	f.examineConfig(c)
	for i := range f.engines {
		f.engines[i].examine(c)
	}
	f.examineEvents(c)
	f.examineEnvoy(c)
	f.examineRouter(c)
	f.examineNodes(c)
}
