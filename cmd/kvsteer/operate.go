package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"text/tabwriter"

	"github.com/kvsteer/kvsteer/internal/admin"
	"github.com/kvsteer/kvsteer/internal/router"
)

type modeCmd struct {
	Pool    string `arg:"" optional:"" help:"Pool to set; without it all pools are shown."`
	Mode    string `arg:"" optional:"" help:"on, observe or off; without it the pool is shown."`
	Percent *int   `help:"In mode on, the share of requests that are steered, 0 to 100. Default: as it is." placeholder:"N"`
	connection
}

// Help explains the modes.
func (modeCmd) Help() string {
	return `on: decisions are obeyed, for --percent of the requests. observe: decisions are made and counted, and Envoy is told nothing.
off: nothing is decided, and Envoy spreads the requests on its own: the kill switch.

The mode lasts until the router restarts, or takes over a configuration in which the pool's mode or percent has changed.
Needs admin.write: true in the router's configuration.`
}

// Validate is called by the command line's parser.
func (c *modeCmd) Validate() error {
	if c.Mode != "" {
		if _, err := router.ParseMode(c.Mode); err != nil {
			return fmt.Errorf("%q is none of on, observe and off", c.Mode)
		}
	}
	switch {
	case c.Percent == nil:
		return nil
	case c.Mode == "":
		return errors.New("--percent needs POOL and MODE")
	case c.Mode != router.ModeOn.String():
		return fmt.Errorf("--percent is the share that mode on steers: with mode %s it has no meaning", c.Mode)
	case *c.Percent < 0 || *c.Percent > 100:
		return fmt.Errorf("--percent: %d is not in the range 0 to 100", *c.Percent)
	}
	return nil
}

// Run sets a mode or shows modes.
func (c *modeCmd) Run(ctx context.Context, out io.Writer) error {
	cl, err := c.client()
	if err != nil {
		return err
	}
	if c.Mode == "" {
		return c.show(ctx, cl, out)
	}
	mode, err := router.ParseMode(c.Mode)
	if err != nil {
		return err
	}
	body := struct {
		Mode    router.Mode `json:"mode"`
		Percent *int        `json:"percent,omitempty"`
	}{mode, c.Percent}
	var set admin.ModeSet
	if err := cl.call(ctx, http.MethodPost, "/api/v1/pools/"+url.PathEscape(c.Pool)+"/mode", body, &set); err != nil {
		return err
	}
	_, err = fmt.Fprintf(out, "pool %s: %s (before: %s)\n", set.Pool, spoken(set.Setting), spoken(set.Before))
	return err
}

func spoken(s admin.Setting) string {
	if s.Mode == router.ModeOn {
		return fmt.Sprintf("on, %d %% of the requests are steered", s.Percent)
	}
	return s.Mode.String()
}

func (c *modeCmd) show(ctx context.Context, cl *client, out io.Writer) error {
	var state router.State
	if err := cl.call(ctx, http.MethodGet, "/api/v1/state", nil, &state); err != nil {
		return err
	}
	table := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(table, "POOL\tMODE\tPERCENT")
	var known []string
	shown := 0
	for _, p := range state.Pools {
		known = append(known, p.Name)
		if c.Pool == "" || c.Pool == p.Name {
			shown++
			fmt.Fprintf(table, "%s\t%s\t%d\n", p.Name, p.Mode, p.Percent)
		}
	}
	if len(state.Pools) == 0 {
		return errors.New("there are no pools: this is a node, and modes are the routers'")
	}
	if shown == 0 && c.Pool != "" {
		return fmt.Errorf("there is no pool %q; there are %s", c.Pool, strings.Join(known, ", "))
	}
	return table.Flush()
}

// endpointArg is an endpoint as its configuration names it.
type endpointArg struct {
	Endpoint string `arg:"" help:"The endpoint, ip:port."`
	connection
}

func (c *endpointArg) post(ctx context.Context, command string) (set admin.EndpointSet, err error) {
	cl, err := c.client()
	if err != nil {
		return set, err
	}
	address := c.Endpoint
	if addr, err := netip.ParseAddrPort(address); err == nil {
		address = netip.AddrPortFrom(addr.Addr().Unmap(), addr.Port()).String() // its one spelling
	}
	return set, cl.call(ctx, http.MethodPost, "/api/v1/endpoints/"+url.PathEscape(address)+"/"+command, nil, &set)
}

type drainCmd struct{ endpointArg }

// Help explains the drain.
func (drainCmd) Help() string {
	return `The endpoint gets no new requests from the router; those that it has go on. Envoy's own fallback, which takes requests
without a decision, still knows it.

The drain lasts until kvsteer undrain, until the router restarts, or until it takes over a configuration in which the
endpoint's drain has changed. Needs admin.write: true in the router's configuration.`
}

// Run drains.
func (c *drainCmd) Run(ctx context.Context, out io.Writer) error {
	set, err := c.post(ctx, "drain")
	if err != nil {
		return err
	}
	text := fmt.Sprintf("endpoint %s of pool %s: gets no new requests\n", set.Endpoint, set.Pool)
	if set.Left == 0 {
		text += "note: no endpoint of the pool is left that gets requests; Envoy's fallback serves it\n"
	}
	_, err = io.WriteString(out, text)
	return err
}

type undrainCmd struct{ endpointArg }

// Help explains the end of a drain.
func (undrainCmd) Help() string {
	return `Ends a drain, by kvsteer drain or by the endpoint's key drain in the configuration.
Needs admin.write: true in the router's configuration.`
}

// Run ends a drain.
func (c *undrainCmd) Run(ctx context.Context, out io.Writer) error {
	set, err := c.post(ctx, "undrain")
	if err != nil {
		return err
	}
	now := "gets requests"
	if set.Leaving {
		now = "is not drained by a call any more, and gets no new requests because DNS does not give it, or its node drains it"
	}
	_, err = fmt.Fprintf(out, "endpoint %s of pool %s: %s\n", set.Endpoint, set.Pool, now)
	return err
}

type resetCmd struct{ endpointArg }

// Help explains the reset.
func (resetCmd) Help() string {
	return `The router forgets which blocks the endpoint holds and what it was sent, and follows its events anew. The endpoint is matched again as the
engine announces blocks and prompts are sent to it. Needs admin.write: true in the router's configuration.`
}

// Run forgets an endpoint's blocks.
func (c *resetCmd) Run(ctx context.Context, out io.Writer) error {
	set, err := c.post(ctx, "reset")
	if err == nil {
		_, err = fmt.Fprintf(out, "endpoint %s of pool %s: %s and %s of text forgotten\n", set.Endpoint, set.Pool, count(set.Blocks, "block"), count(set.Approx, "block"))
	}
	return err
}
