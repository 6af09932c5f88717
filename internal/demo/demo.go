package demo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// Options configures one run of the demo.
type Options struct {
	Kvsteer string    // the kvsteer binary
	Envoy   string    // an Envoy binary, 1.37 or newer
	Port    int       // first of the ports used
	JSON    string    // file for the figures, "" for none
	Size    int       // conversations per arm, 0 for the default of 60
	Keep    bool      // after the table, leave the steered site running until ctx ends
	Out     io.Writer // what people read
}

const (
	model   = "sim"
	engines = 4
	nodes   = 2
	maxWait = 2 * time.Minute // for all arms together
)

// engineArgs make the simulated engines behave like a mid-size model on one accelerator, scaled so that a demo stays short.
var engineArgs = []string{"--block-size", "16", "--blocks", "4096", "--prefill-rate", "6000", "--decode-rate", "120"}

// Run shows all arms and returns nil when the table was printed. When ctx ends first it returns ctx.Err(); no process is left
// in any case.
func Run(ctx context.Context, o Options) error {
	version, err := lab.EnvoyVersion(ctx, o.Envoy)
	if err != nil {
		if ctx.Err() != nil {
			return ctx.Err()
		}
		return fmt.Errorf("%w; set ENVOY or --envoy to an Envoy binary (1.37 or newer)", err)
	}
	dir, err := os.MkdirTemp("", "kvsteer-demo-")
	if err != nil {
		return fmt.Errorf("make a folder for the demo: %w", err)
	}
	l, err := lab.New(lab.Options{Kvsteer: o.Kvsteer, Envoy: o.Envoy, Dir: dir})
	if err == nil {
		err = run(ctx, l, o, version, dir)
		l.Close()
	}
	switch {
	case err == nil:
		_ = os.RemoveAll(dir)
		return nil
	case ctx.Err() != nil:
		_ = os.RemoveAll(dir)
		return ctx.Err()
	case os.Remove(dir) == nil: // empty: nothing was started, so there is nothing to look at
		return err
	}
	return fmt.Errorf("%w\nlogs and configurations are kept in %s", err, dir)
}

func run(ctx context.Context, l *lab.Lab, o Options, version, dir string) error {
	sites := sites(o.Port, version)
	workload := defaultWorkload.sized(o.Size)
	script := workload.script()
	total := workload.requests()
	fmt.Fprintf(o.Out, "kvsteer demo: %d simulated engines, followed by %d nodes, behind Envoy %s; %d requests in %d conversations of %d tenants, sent %d times\n",
		engines, nodes, version, total, workload.Conversations, workload.Tenants, len(sites))

	limit, cancel := context.WithTimeoutCause(ctx, maxWait, fmt.Errorf("the demo took longer than %s", maxWait))
	defer cancel()
	var arms []Arm
	var kept *lab.Site
	for _, arm := range sites {
		site, err := l.StartSite(limit, arm.SiteOptions)
		if err != nil {
			return portHint(limit, err, o.Port, ports(sites))
		}
		if kept == nil {
			kept = site
		}
		show := progress(o.Out, arm.title, total)
		all := play(limit, site, model, script, show.done)
		show.end()
		if limit.Err() != nil {
			return context.Cause(limit)
		}
		entries, err := site.ReadLog(limit, len(all))
		if err != nil {
			return err
		}
		arms = append(arms, summarise(arm.title, all, site.Engines, perEndpoint(entries)))
	}
	fmt.Fprintln(o.Out)
	if err := table(o.Out, arms); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	if o.JSON != "" {
		if err := writeJSON(o.JSON, arms); err != nil {
			return err
		}
		fmt.Fprintf(o.Out, "\nThe figures are in %s.\n", o.JSON)
	}
	if err := failed(arms, total); err != nil {
		return err
	}
	fmt.Fprint(o.Out, explanation)
	if !o.Keep {
		fmt.Fprintf(o.Out, "Where to look next: --keep leaves the steered site running and prints its URLs; examples/quickstart has the same by hand; docs/envoy.md is for your own Envoy.\n")
		return nil
	}
	return keep(ctx, o.Out, kept, dir)
}

// explanation stands below the table.
const explanation = `
kvsteer            the engines publish what they cache to two kvsteer nodes, which tell the router: prompts are matched exactly
no-engine-changes  kvsteer with engines as they are: prompts are matched by their text against what was sent where
round-robin        Envoy alone
Prompt tokens from cache are the engines' own report. Each arm had engines of its own that started empty.
Text does as well as events here, where caches are large, nothing restarts and all requests come this way. Events also tell what engines evict,
what they hold when a router starts, and what other clients and other routers send.
`

// armSite is the site of an arm. Its title is what people read; the site's own name stands in the path of a socket, which has to be short.
type armSite struct {
	title string
	lab.SiteOptions
}

// sites are the arms; the first is the one that --keep leaves running.
func sites(port int, version string) []armSite {
	pool := lab.PoolOptions{Name: "chat", Model: model, Engines: engines, Args: engineArgs}
	silent := pool
	silent.Silent = true
	all := []armSite{
		{"kvsteer", lab.SiteOptions{Name: "kvsteer", Nodes: nodes, Pools: []lab.PoolOptions{pool}, EnvoyVersion: version}},
		{"no-engine-changes", lab.SiteOptions{Name: "silent", Pools: []lab.PoolOptions{silent}, EnvoyVersion: version}},
		{"round-robin", lab.SiteOptions{Name: "round-robin", Pools: []lab.PoolOptions{silent}, RoundRobin: true}},
	}
	for i := range all {
		all[i].BasePort = port + ports(all[:i])
	}
	return all
}

// ports is how many ports sites take together.
func ports(sites []armSite) int {
	n := 0
	for _, s := range sites {
		n += s.Ports()
	}
	return n
}

// failed makes errors of the requests an error of the demo, after the table has shown them.
func failed(arms []Arm, total int) error {
	for _, a := range arms {
		if a.Errors > 0 || a.Requests < total {
			return fmt.Errorf("arm %s: %d of %d requests failed and %d were not sent", a.Name, a.Errors, total, total-a.Requests)
		}
	}
	return nil
}

func portHint(ctx context.Context, err error, base, n int) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	if errors.Is(err, lab.ErrPortTaken) {
		return fmt.Errorf("%w: the demo needs the ports %d to %d; end what uses them (another demo?) or choose others with --port", err, base, base+n-1)
	}
	return err
}

func keep(ctx context.Context, out io.Writer, s *lab.Site, dir string) error {
	fmt.Fprintf(out, `
The steered site is running until Ctrl-C:
  send requests here    %s/v1/chat/completions  (model %q)
  router metrics        %s/metrics
  node metrics          %s/metrics  (and of the other one %s/metrics)
  Envoy's statistics    %s/stats?filter=ext_proc
  first engine          http://%s/metrics
  access log            %s
  configurations        %s
`, s.URL, model, s.RouterAdmin, s.Nodes[0].Admin, s.Nodes[1].Admin, s.EnvoyAdmin, s.Engines[0].Address, s.AccessLog, filepath.Join(dir, "kvsteer-*.yaml"))
	select {
	case <-ctx.Done():
		return nil
	case <-s.Nodes[0].Ended():
		return fmt.Errorf("a node ended; the end of its log:\n%s", s.Nodes[0].Tail())
	case <-s.Nodes[1].Ended():
		return fmt.Errorf("a node ended; the end of its log:\n%s", s.Nodes[1].Tail())
	case <-s.Envoy.Ended():
		return fmt.Errorf("the proxy ended; the end of its log:\n%s", s.Envoy.Tail())
	case <-s.Router.Ended():
		return fmt.Errorf("the router ended; the end of its log:\n%s", s.Router.Tail())
	}
}
