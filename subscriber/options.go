package subscriber

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"net/netip"
	"strconv"
	"strings"
	"time"
)

// Options configure a Subscriber. Sink and exactly one of Listen and Dial are required.
type Options struct {
	// Pool is the namespace of the fingerprints and a metric label.
	Pool string
	// Endpoint is the engine's ip:port, a label of metrics and log lines.
	Endpoint string
	// Rank is the data-parallel rank whose events these are, a label of metrics. Engines without ranks have 0 alone.
	Rank int

	// Listen is the address on which the subscriber waits for its engine to connect, such as "tcp://127.0.0.1:5557"; port 0 lets
	// the system choose one. It must be a loopback address unless InsecureListen is set: whoever can connect there
	// can announce blocks in the engine's name.
	Listen string
	// InsecureListen allows Listen to name an address that other hosts can reach.
	InsecureListen bool
	// Dial is the address at which the engine binds, such as "tcp://10.0.0.11:5557".
	Dial string
	// Topic is the prefix of the topics subscribed to. Empty takes them all.
	Topic string

	// HashSeed is PYTHONHASHSEED of a vLLM engine, nil when the engine is started without. It is needed to recompute the engine's
	// hashes where they depend on it, which only [Subscriber.Witness] makes use of.
	HashSeed *string

	// Replay is the address at which the engine's replay socket binds, such as "tcp://10.0.0.11:5558". What was missed is asked for
	// there. Empty: what is missed costs a Reset.
	Replay string
	// Replays bounds the replays under way at a time together with those of other subscribers. Default: no bound.
	Replays *ReplayLimit
	// Keep is how long the blocks of a lost connection are kept for a replay to prove that they are still there. Default 10 min.
	Keep time.Duration
	// Media says what the media are that events name, by name in any case, over what is built in: "gpu", "device" and no name are the
	// device; "cpu", "cpu_pinned" and "host" are MediumHost; "disk" is MediumDisk with a lifetime of 10 minutes; all others are ignored.
	Media map[string]MediumRule
	// Demote is how long a block that the engine removed from its device is taken to be in MediumHost, for engines whose offload
	// tier publishes nothing. 0 = it is gone.
	Demote time.Duration
	// Adapters are the names of adapters by lora_id, for engines whose events have no names. Blocks of an adapter without a name are not mirrored.
	Adapters map[int64]string

	// StateDir is where the mirror is saved, to be taken up by the next process once a replay has proven that the engine is the same.
	// Without Replay nothing is saved.
	StateDir *StateDir

	// MaxBlocks bounds the mirror, in blocks. Default 2,000,000, which is roughly 400 MB. A mirror that is full withdraws
	// the leaves that were used longest ago.
	MaxBlocks int
	// Limits bound what a peer can cost.
	Limits Limits
	// BackoffMin and BackoffMax bound the time between attempts to dial. Defaults 100 ms and 2 s.
	BackoffMin, BackoffMax time.Duration

	// Sink receives the engine's net changes, from the goroutine that called Run.
	Sink Sink
	// Wanted is told, from the same goroutine, which prompts help, whenever that changes: none do before Run, nor when it has returned. Default: nobody is told.
	Wanted func(w Want)
	// Log defaults to no log.
	Log *slog.Logger
	// Metrics may be shared by all subscribers. Default: none are kept.
	Metrics *Metrics
	// Now tells the time to which batches are compared. Default time.Now.
	Now func() time.Time
}

// Limits bound what a peer can cost. A field that is 0 has its default; a peer that exceeds one loses its connection.
type Limits struct {
	// Message is the size of one message, all its frames together, in bytes. Default 16 MiB: the largest batches known, one step
	// of 65,536 tokens in blocks of one token with 32-byte hashes, take about 3 MiB.
	Message int
	// Frame is the size of one frame in bytes. Default: Message.
	Frame int
	// Frames is the number of frames of one message. Default 8; engines send 3.
	Frames int
	// Command is the size of a ZMTP command in bytes, the handshake's READY among them. Default 4 KiB, at most 32 KiB.
	Command int
	// Buffered bounds the bytes of messages read and not yet applied. What exceeds it stays with the kernel and then
	// with the peer. Default twice Message, and at least Message. It holds for the replay socket's connection as well, and for the live
	// messages that wait for a replay; of those, what exceeds it is dropped and asked for again.
	Buffered int
	// Handshake is the time for a connection's whole handshake. Default 5 s.
	Handshake time.Duration
	// Stall is the time from the first byte of a message that must be waited for to its last. Default 30 s.
	Stall time.Duration
	// Write is the time for one write, of which there are a few per connection. Default 5 s.
	Write time.Duration
}

const maxCommand = 32 << 10

// MaxRanks bounds the data-parallel ranks of one engine.
const MaxRanks = 64

func (l Limits) withDefaults() Limits {
	l.Message = or(l.Message, 16<<20)
	l.Frame = or(l.Frame, l.Message)
	l.Frames = or(l.Frames, 8)
	l.Command = or(l.Command, 4<<10)
	l.Buffered = or(l.Buffered, 2*l.Message)
	l.Handshake = or(l.Handshake, 5*time.Second)
	l.Stall = or(l.Stall, 30*time.Second)
	l.Write = or(l.Write, 5*time.Second)
	return l
}

// or returns v unless it is zero, then d.
func or[T comparable](v, d T) T {
	var zero T
	if v == zero {
		return d
	}
	return v
}

// withDefaults returns o with every default filled in, or all that is wrong with it.
func (o Options) withDefaults() (Options, error) {
	o.MaxBlocks = or(o.MaxBlocks, defaultMaxBlocks)
	o.Limits = o.Limits.withDefaults()
	o.Keep = or(o.Keep, 10*time.Minute)
	o.BackoffMin = or(o.BackoffMin, 100*time.Millisecond)
	o.BackoffMax = or(o.BackoffMax, max(2*time.Second, o.BackoffMin))
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}
	if o.Metrics == nil {
		o.Metrics = NewMetrics(nil)
	}
	if o.Now == nil {
		o.Now = time.Now
	}

	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.Sink == nil {
		bad("Sink: missing")
	}
	media, err := lowerMedia(o.Media)
	if err != nil {
		bad("Media: %w", err)
	}
	o.Media = media
	if o.Demote < 0 {
		bad("Demote %v: must not be negative", o.Demote)
	}
	for id, name := range o.Adapters {
		if name == "" {
			bad("Adapters: id %d has an empty name", id)
		}
	}
	switch {
	case (o.Listen == "") == (o.Dial == ""):
		bad("Listen %q, Dial %q: exactly one of them must be set", o.Listen, o.Dial)
	case o.Listen != "":
		if err := checkListen(o.Listen, o.InsecureListen); err != nil {
			bad("Listen %q: %w", o.Listen, err)
		}
	default:
		if err := checkDial(o.Dial); err != nil {
			bad("Dial %q: %w", o.Dial, err)
		}
	}
	if o.Replay != "" {
		if err := checkDial(o.Replay); err != nil {
			bad("Replay %q: %w", o.Replay, err)
		}
	}
	l := o.Limits
	for _, n := range []struct {
		name     string
		v, least int
		most     int
	}{
		{"Rank", o.Rank, 0, MaxRanks - 1},
		{"MaxBlocks", o.MaxBlocks, 1, 1 << 30},
		{"Limits.Message", l.Message, 1 << 10, 1 << 30},
		{"Limits.Frame", l.Frame, 1 << 10, l.Message},
		{"Limits.Frames", l.Frames, 3, 1 << 10},
		{"Limits.Command", l.Command, 256, maxCommand},
		{"Limits.Buffered", l.Buffered, l.Message, math.MaxInt},
	} {
		if n.v < n.least || n.v > n.most {
			bad("%s %d: must be between %d and %d", n.name, n.v, n.least, n.most)
		}
	}
	for _, d := range []struct {
		name string
		v    time.Duration
	}{
		{"Limits.Handshake", l.Handshake},
		{"Limits.Stall", l.Stall},
		{"Limits.Write", l.Write},
		{"Keep", o.Keep},
		{"BackoffMin", o.BackoffMin},
		{"BackoffMax", o.BackoffMax},
	} {
		if d.v < time.Millisecond {
			bad("%s %v: must be at least 1ms", d.name, d.v)
		}
	}
	if o.BackoffMax < o.BackoffMin {
		bad("BackoffMax %v: must not be below BackoffMin %v", o.BackoffMax, o.BackoffMin)
	}
	return o, errors.Join(errs...)
}

// hostPort takes the scheme off an address and checks the form of the rest.
func hostPort(address string) (host, port string, err error) {
	rest, ok := strings.CutPrefix(address, "tcp://")
	if !ok {
		return "", "", errors.New("must begin with tcp://")
	}
	host, port, err = net.SplitHostPort(rest)
	if err != nil {
		return "", "", errors.New("must have the form tcp://host:port")
	}
	if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		return "", "", fmt.Errorf("port %q must be a number between 0 and 65535", port)
	}
	return host, port, nil
}

func checkListen(address string, insecure bool) error {
	host, _, err := hostPort(address)
	if err != nil {
		return err
	}
	if insecure || host == "localhost" {
		return nil
	}
	if ip, err := netip.ParseAddr(host); err != nil || !ip.IsLoopback() {
		return errors.New("not a loopback address: other hosts could announce blocks in the engine's name")
	}
	return nil
}

func checkDial(address string) error {
	host, port, err := hostPort(address)
	switch {
	case err != nil:
		return err
	case host == "" || host == "*":
		return errors.New("must name the engine's host")
	case port == "0":
		return errors.New("port must not be 0")
	}
	if ip, err := netip.ParseAddr(host); err == nil && ip.IsUnspecified() {
		return errors.New("must name the engine's host")
	}
	return nil
}
