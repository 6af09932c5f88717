package feed

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"maps"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/subscriber"
)

// Address is a node to watch.
type Address struct {
	Addr  string         // ip:port to dial
	Allow []netip.Prefix // addresses that it may announce endpoints of, beside the one that is dialled
}

// Fleet is told what nodes say. Its methods are called from several goroutines, those that concern one node one at a time; they must not wait for
// long, and must not call the Router.
type Fleet interface {
	// Serve takes over what a node serves, in place of what it served before; nil when it is no node of this router any more. The node is named by
	// its Address, and endpoints are ip:port. While a node is lost its replicas stay.
	Serve(node string, replicas []Replica)
	// Silent says that nothing has been heard of a node for too long: what it said of its engines' names and load counts no more until the next Serve.
	Silent(node string)
	// Sink returns where the blocks of one rank go. An error says that they are not wanted: it is asked for again after the next Serve and the next
	// [Router.Set].
	Sink(pool, endpoint string, rank int) (Sink, error)
	// Load takes over what engines of a node say of themselves. What a node says no more for StaleAfter comes once more, as stale.
	Load(node string, loads []Load)
	// Charge enters what another router has sent to an endpoint, Release ends it. A release may come for a charge that never came.
	Charge(origin string, c Charge)
	Release(origin, pool string, number uint64)
	// Gone says that no node knows the other router any more. What it has sent goes on running, and releases may still come.
	Gone(origin string)
	// Record takes a record of Envoy's access log of one of this router's decisions.
	Record(r Record)
}

// Sink takes the blocks of one source. Of a [subscriber.Sink]'s promises two hold between copies only: that the blocks are prefix-closed, and that
// a key is stored once. In a copy blocks may be stored again, removed without being there, and stored before their parents; at End both hold.
type Sink interface {
	subscriber.Sink
	// Begin opens a copy: what is stored from here on counts from End on, and takes the place of what was known. What was known can be matched
	// meanwhile, while the description says connected, and gets no changes. Begin in a copy starts it over. A Reset forgets what is known and ends
	// the copy.
	Begin()
	End()
	// TellPrompts has a hearer learn of the prompts that may run at the source. It is called once, before all others.
	TellPrompts(h Hearer)
	// Lost reports whether what is told here counts no more, for a reason that the fleet knows. It is asked when the fleet is asked for sinks that it
	// did not want: the sink is closed then, and another one asked for.
	Lost() bool
	// Dropped reports whether what was told here was dropped, for a reason that may pass. It is asked every few seconds; the blocks of the node's sources
	// are copied anew then, at growing intervals.
	Dropped() bool
	// Close forgets everything. No method is called after it.
	Close()
}

// RouterOptions configure a Router. Fleet and Instance are needed.
type RouterOptions struct {
	Release  string // of this program, for nodes
	Instance string // of this router's decision ids
	Fleet    Fleet

	// StaleAfter is how long blocks may be matched whose changes are not heard of: since a stream was lost or went silent, or a copy began. Default 3 s.
	StaleAfter time.Duration
	// MaxBlocks bounds the blocks of one source. Default 16,777,216.
	MaxBlocks int
	// BackoffMin and BackoffMax bound the range that the pause before another stream to a node is drawn from. It begins at zero, and its end doubles. Defaults
	// 100 ms and 5 s.
	BackoffMin, BackoffMax time.Duration

	TLS      func() *tls.Config // for each connection with a node; nil: clear text
	Token    func() string      // sent to nodes with each call; "": none
	Insecure bool               // clear text, and a token in it, also to nodes that are not on loopback
	// Dial connects to a node. Default: TCP.
	Dial func(ctx context.Context, addr string) (net.Conn, error)

	Log     *slog.Logger   // default: discarded
	Metrics *RouterMetrics // default: not exported
}

const maxNodes = 4096

// Router watches nodes.
type Router struct {
	o       RouterOptions
	owners  owners
	origins origins
	open    openCharges
	mail    mail
	leaving atomic.Bool // by Flush: what is sent is the last
	// begin opens a stream; the function ends it.
	begin   func(ctx context.Context, addr netip.AddrPort, received func(bytes int)) (conversation, func(), error)
	changed chan struct{} // holds one when wanted has changed, or a node's goroutine has ended

	connectTimeout, helloTimeout, stallTimeout time.Duration
	retry                                      retry // as each node begins with it

	mu     sync.Mutex
	wanted []Address
	nodes  []*watched // by address
}

// NewRouter checks o. It starts nothing: Run does.
func NewRouter(o RouterOptions) (*Router, error) {
	switch {
	case o.Fleet == nil:
		return nil, errors.New("router of a feed: no fleet")
	case o.Instance == "" || len(o.Instance) > maxInstance:
		return nil, errors.New("router of a feed: no instance, or one that is too long")
	case o.StaleAfter < 0 || o.MaxBlocks < 0 || o.BackoffMin < 0 || o.BackoffMax < 0:
		return nil, errors.New("router of a feed: a bound below zero")
	}
	if o.StaleAfter == 0 {
		o.StaleAfter = 3 * time.Second
	}
	if o.MaxBlocks == 0 {
		o.MaxBlocks = 1 << 24
	}
	if o.Dial == nil {
		d := &net.Dialer{Timeout: connectTimeout}
		o.Dial = func(ctx context.Context, addr string) (net.Conn, error) { return d.DialContext(ctx, "tcp", addr) }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewRouterMetrics(nil)
	}
	r := &Router{o: o, origins: origins{own: o.Instance, fleet: o.Fleet}, changed: make(chan struct{}, 1)}
	r.mail = mail{ways: r.origins.with, metrics: o.Metrics}
	r.connectTimeout, r.helloTimeout, r.stallTimeout = connectTimeout, helloTimeout, fetchStall
	r.retry = newRetry(o.BackoffMin, o.BackoffMax)
	r.begin = r.watch
	return r, nil
}

// Set says which nodes are watched. Those that were watched before go on without a break. It may be called at any time, from any goroutine, and
// returns at once.
func (r *Router) Set(nodes []Address) {
	merged := map[netip.AddrPort]*Address{}
	var order []netip.AddrPort
	for _, n := range nodes {
		at, err := netip.ParseAddrPort(n.Addr)
		if err != nil || at.Port() == 0 || at.Addr().Zone() != "" || at.Addr().IsUnspecified() || len(order) >= maxNodes {
			r.o.Log.Warn("a node is not watched: its address is no ip:port, or there are too many", "node", n.Addr)
			continue
		}
		at = netip.AddrPortFrom(at.Addr().Unmap(), at.Port())
		if merged[at] == nil {
			merged[at] = &Address{Addr: at.String()}
			order = append(order, at)
		}
		merged[at].Allow = append(merged[at].Allow, n.Allow...)
	}
	wanted := make([]Address, 0, len(order))
	for _, at := range order {
		wanted = append(wanted, *merged[at])
	}
	r.mu.Lock()
	r.wanted = wanted
	r.mu.Unlock()
	r.poke()
}

// running is a node with what ends its goroutine.
type running struct {
	node  *watched
	leave func()
	ended chan struct{}
}

// Run watches nodes until ctx ends, and returns nil then. All sinks have been closed when it returns; replicas stay served. It must be called once.
func (r *Router) Run(ctx context.Context) error {
	all, ending := map[string]*running{}, map[string]*running{}
	var wg sync.WaitGroup
	defer wg.Wait()
	look := time.NewTicker(keepLook)
	defer look.Stop()
	for {
		r.mu.Lock()
		wanted := map[string][]netip.Prefix{}
		for _, a := range r.wanted {
			wanted[a.Addr] = a.Allow
		}
		r.mu.Unlock()
		maps.DeleteFunc(ending, func(_ string, g *running) bool {
			select {
			case <-g.ended:
				return true
			default:
				return false
			}
		})
		for addr, g := range all {
			if allow, ok := wanted[addr]; ok {
				g.node.look(allow)
				continue
			}
			delete(all, addr)
			ending[addr] = g
			g.leave()
		}
		var nodes []*watched
		for addr, allow := range wanted {
			if ending[addr] != nil {
				continue // its end is waited for
			}
			if all[addr] == nil {
				all[addr] = r.start(ctx, &wg, addr, allow)
			}
			nodes = append(nodes, all[addr].node)
		}
		slices.SortFunc(nodes, func(a, b *watched) int { return strings.Compare(a.name, b.name) })
		r.mu.Lock()
		r.nodes = nodes
		r.mu.Unlock()
		select {
		case <-r.changed:
		case <-look.C:
			r.mail.expire(time.Now())
		case <-ctx.Done():
			return nil
		}
	}
}

func (r *Router) start(ctx context.Context, wg *sync.WaitGroup, addr string, allow []netip.Prefix) *running {
	nodeCtx, cancel := context.WithCancel(ctx)
	g := &running{node: newWatched(r, netip.MustParseAddrPort(addr), allow), leave: cancel, ended: make(chan struct{})}
	wg.Go(func() {
		defer r.poke()
		defer close(g.ended)
		defer cancel()
		g.node.run(nodeCtx, func() bool { return ctx.Err() == nil })
	})
	return g
}

// Look asks the fleet again, before it returns, for the sinks that it did not want, and gives up those that are lost: for a fleet that has changed its
// mind about who follows an engine.
func (r *Router) Look() {
	r.mu.Lock()
	nodes := r.nodes
	r.mu.Unlock()
	for _, n := range nodes {
		n.look(*n.allow.Load())
	}
}

// poke has Run look again.
func (r *Router) poke() {
	select {
	case r.changed <- struct{}{}:
	default:
	}
}

// NodeStatus is what is known of a node.
type NodeStatus struct {
	Address   string
	Name      string // as it calls itself, "" while it was never heard
	Instance  string
	Release   string
	Protocol  uint32
	Connected bool
	Since     time.Time // when it connected, or was lost; zero when it was never connected
	Heard     time.Time // when its last message came
	Stale     bool      // some of its blocks are not matched because they were not heard of for too long
	Replicas  []Replica // accepted
	Refused   []Refusal
	Unwanted  int // ranks whose blocks the fleet does not want
	Copies    int // under way or still to come on this stream
	Blocks    int64
	Bytes     uint64 // received
	Peers     int    // other routers that watch it
	Streams   uint64 // opened
	Problem   string // why it is not connected; "" while it is
}

// Nodes returns the state of all nodes that are watched, by address.
func (r *Router) Nodes() []NodeStatus {
	r.mu.Lock()
	nodes := r.nodes
	r.mu.Unlock()
	all := make([]NodeStatus, 0, len(nodes))
	for _, n := range nodes {
		all = append(all, n.status())
	}
	return all
}
