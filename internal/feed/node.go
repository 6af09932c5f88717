package feed

import (
	"bytes"
	"cmp"
	"crypto/rand"
	"crypto/tls"
	"encoding/hex"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// NodeOptions configure a Node. All have defaults.
type NodeOptions struct {
	Name    string // of the node, for people
	Release string // of this program, for people

	// Window is how long changes are gathered before their net goes out. Default 20 ms, 1 ms to 1 s.
	Window time.Duration

	// WindowKeys is the number of changed blocks that ends a window early. Default 4,096, at most 65,536.
	WindowKeys int

	// QueueBytes bounds what waits for one router. Beyond it everything is dropped and copied again for this router. Default 8 MiB, at least 256 KiB.
	QueueBytes int

	// MaxStreams bounds the streams of routers, and twice that the connections. Default 256.
	MaxStreams int

	// MaxPerAddress bounds the streams from one address, and twice that the connections. Default 64.
	MaxPerAddress int

	// MaxCopies is the number of routers that blocks are copied to at a time. Default 4.
	MaxCopies int

	// Alive is how long a stream is silent at most. Default 1 s.
	Alive time.Duration

	// Stall is how long one message may take to be handed to the transport before the stream is ended, and a whole file. Default 60 s.
	Stall time.Duration

	// Files are offered to routers. Default: none.
	Files FileSource

	// Token returns what routers must bring as bearer token; it is asked for each stream. Default, or while it returns "": nothing.
	Token func() string

	// TLS is what connections must speak, as package tlsfiles makes it. Default: clear text.
	TLS *tls.Config

	// Insecure allows clear text on addresses other than loopback.
	Insecure bool

	// Log gets a line for each router that comes or goes, and one a minute at most for those that are refused. Default: discarded.
	Log *slog.Logger

	// Metrics of [NewNodeMetrics]. Default: not registered anywhere. They belong to one Node.
	Metrics *NodeMetrics
}

func (o *NodeOptions) fill() error {
	var errs []error
	def := func(key string, v *int, value, least, most int) {
		if *v == 0 {
			*v = value
		}
		if *v < least || *v > most {
			errs = append(errs, fmt.Errorf("%s: %d is not within %d and %d", key, *v, least, most))
		}
	}
	pause := func(key string, v *time.Duration, value, least, most time.Duration) {
		if *v == 0 {
			*v = value
		}
		if *v < least || *v > most {
			errs = append(errs, fmt.Errorf("%s: %v is not within %v and %v", key, *v, least, most))
		}
	}
	pause("window", &o.Window, 20*time.Millisecond, time.Millisecond, time.Second)
	pause("alive", &o.Alive, time.Second, 10*time.Millisecond, time.Minute)
	pause("stall", &o.Stall, time.Minute, time.Second, time.Hour)
	def("window keys", &o.WindowKeys, 4096, 1, 1<<16)
	def("queue bytes", &o.QueueBytes, 8<<20, 256<<10, 1<<30)
	def("streams", &o.MaxStreams, 256, 1, 1<<14)
	def("streams of an address", &o.MaxPerAddress, 64, 1, 1<<14)
	def("copies", &o.MaxCopies, 4, 1, 1<<10)
	for _, text := range []string{o.Name, o.Release} {
		errs = append(errs, short("name", text, maxName))
	}
	if o.Token == nil {
		o.Token = func() string { return "" }
	}
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewNodeMetrics(nil)
	}
	return errors.Join(errs...)
}

// Node serves what it is told of its engines to routers.
type Node struct {
	o         NodeOptions
	instance  string
	speaks    versions
	helloWait time.Duration // for a router's hello
	part      int           // blocks of one part of a copy
	windows   *windows
	turns     *turns
	now       func() time.Time
	all       atomic.Pointer[[]*stream] // registered; never changed once stored
	others    atomic.Bool               // streams have come or gone, and those that stayed are to be told

	mu        sync.Mutex
	last      uint32             // number of a source
	sources   map[uint32]*Source // by number
	announced *announcement
	loads     []byte // as last sent; nil for none
	addresses map[string]int
	admitted  int // streams, before their hello too
}

// announcement is what the node last said of its replicas.
type announcement struct {
	data    []byte
	sources map[uint32]announced
}

type announced struct {
	source *Source
	place  place
}

// NewNode checks the options. It reports all wrong ones at once.
func NewNode(o NodeOptions) (*Node, error) {
	if err := o.fill(); err != nil {
		return nil, fmt.Errorf("feed options: %w", err)
	}
	o.Name, o.Release = valid(o.Name, maxName), valid(o.Release, maxName)
	n := &Node{
		o: o, instance: newInstance(), speaks: spoken(o.Release), windows: newWindows(o.Window), turns: newTurns(o.MaxCopies, copyQuantum), now: time.Now,
		helloWait: connectWait, part: maxKeys,
		sources: make(map[uint32]*Source), addresses: make(map[string]int),
	}
	n.all.Store(new([]*stream))
	n.announced = announce(nil, nil)
	o.Metrics.node.Store(n)
	return n, nil
}

// copyQuantum is how long a router is copied to while others wait.
const copyQuantum = time.Second

// newInstance names one life of a node.
func newInstance() string {
	var b [8]byte
	rand.Read(b[:]) // never fails: crypto/rand ends the process instead
	return hex.EncodeToString(b[:])
}

func (n *Node) streams() []*stream { return *n.all.Load() }

// Source returns a sink for the events of one rank of an engine. Its number is for Replica.Sources; Close ends it.
func (n *Node) Source() *Source {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.last++
	s := newSource(n, n.last)
	n.sources[s.number] = s
	return s
}

func (n *Node) remove(s *Source) {
	n.mu.Lock()
	defer n.mu.Unlock()
	delete(n.sources, s.number)
	delete(n.announced.sources, s.number)
}

// Announce replaces what routers are told of the node's engines. A source is that of the rank that its place in Replica.Sources says, and is told of as
// long as a replica names it. The lists are not kept. A replica that no router would take is left out, and said.
func (n *Node) Announce(replicas []Replica) {
	n.mu.Lock()
	defer n.mu.Unlock()
	kept := make([]Replica, 0, len(replicas))
	numbers := make(map[uint32]bool)
	for _, r := range replicas {
		r = r.valid()
		err := cmp.Or(r.check(), few("replicas", len(kept)+1, maxReplicas))
		for _, number := range r.Sources {
			if numbers[number] {
				err = cmp.Or(err, fmt.Errorf("source %d stands for two ranks", number))
			}
			numbers[number] = true
		}
		if err != nil {
			n.o.Log.Error("an engine is not announced", "pool", r.Pool, "endpoint", r.Endpoint, "error", err)
			continue
		}
		kept = append(kept, r)
	}
	a := announce(kept, n.sources)
	if len(a.data) > maxSent {
		n.o.Log.Error("engines are announced without their adapters, which are too many for one message", "bytes", len(a.data))
		for i := range kept {
			kept[i].Adapters, kept[i].Listing = nil, ListingNone
		}
		a = announce(kept, n.sources)
	}
	if bytes.Equal(a.data, n.announced.data) && maps.Equal(a.sources, n.announced.sources) {
		return
	}
	n.announced = a
	for _, st := range n.streams() {
		st.announce(a)
	}
}

func announce(replicas []Replica, sources map[uint32]*Source) *announcement {
	a := &announcement{sources: make(map[uint32]announced)}
	list := &feedpb.Replicas{}
	for _, r := range replicas {
		list.Replicas = append(list.Replicas, r.proto())
		for rank, number := range r.Sources {
			if s := sources[number]; s != nil {
				a.sources[number] = announced{s, place{r.Pool, r.Endpoint, rank}}
			}
		}
	}
	a.data = encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Replicas{Replicas: list}})
	return a
}

// Loads replaces what routers are told of the engines' load.
func (n *Node) Loads(loads []Load) {
	list := &feedpb.Loads{}
	for _, l := range loads[:min(len(loads), maxReplicas)] {
		l.Endpoint = valid(l.Endpoint, maxEndpoint)
		if !(l.KVUsage >= 0) { // not a number either
			l.KVUsage = 0
		}
		l.KVUsage = min(l.KVUsage, 1)
		list.Loads = append(list.Loads, l.proto())
	}
	data := encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Loads{Loads: list}})
	n.mu.Lock()
	defer n.mu.Unlock()
	n.loads = data
	for _, st := range n.streams() {
		st.setLoads(data)
	}
}

// join registers a stream: from here on it is told everything.
func (n *Node) join(st *stream) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := append(slices.Clone(n.streams()), st)
	n.all.Store(&all)
	n.o.Metrics.streams.Set(float64(len(all)))
	st.announce(n.announced)
	st.setLoads(n.loads)
	st.setPeers()
	n.others.Store(true)
}

// leave is told of a stream's end.
func (n *Node) leave(st *stream) {
	n.mu.Lock()
	defer n.mu.Unlock()
	all := slices.DeleteFunc(slices.Clone(n.streams()), func(other *stream) bool { return other == st })
	n.all.Store(&all)
	n.o.Metrics.streams.Set(float64(len(all)))
	for _, other := range slices.Backward(all) {
		if other.instance == st.instance { // it goes on with another stream
			if other.inherit(st) {
				n.others.Store(true) // some of it may be of routers that are gone
			}
			return
		}
	}
	gone := encodeCharges(&feedpb.Charges{Instance: st.instance, Gone: true})
	for _, other := range all {
		other.say(message{data: gone})
	}
	n.others.Store(true)
}

// peers are the routers other than one.
func (n *Node) peers(instance string) []byte {
	var names []string
	for _, st := range n.streams() {
		if st.instance != instance {
			names = append(names, st.instance)
		}
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Peers{Peers: &feedpb.Peers{Instances: names[:min(len(names), maxPeers)]}}})
}
