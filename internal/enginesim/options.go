package enginesim

import (
	"errors"
	"fmt"
	"log/slog"
	"math"
	"net"
	"strconv"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// Options describe one simulated engine. The zero value is an engine on a free loopback port that serves the model "tiny"
// as fast as it can and publishes no events.
type Options struct {
	// Listen is the HTTP address, "127.0.0.1:0" by default.
	Listen string
	// Models are the names the base model is served under, {"tiny"} by default. Replies carry the first.
	Models []string
	// Adapters are the LoRA adapters, each served under its name.
	Adapters []Adapter
	// APIKey, when set, must be sent as bearer token to every path under /v1, as with vLLM's --api-key.
	APIKey string
	// Render offers the render endpoints, as vLLM's --enable-scale-out does.
	Render bool
	// SaltHeader is a request header whose value is the cache salt instead of the body's, as some engines have one; "" for none.
	SaltHeader string
	// CertFile and KeyFile switch TLS on, as vLLM's --ssl-certfile and --ssl-keyfile do. Unlike vLLM the engine also speaks HTTP/2 then.
	CertFile, KeyFile string
	// MaxModelLen bounds prompt and answer together, in tokens. By default it is 131,072 or what Blocks can hold, if less.
	MaxModelLen int

	// BlockSize is the number of tokens in a block, 16 by default.
	BlockSize int
	// Blocks is the size of the KV cache, 8,192 blocks by default. One of them is reserved, as in vLLM.
	Blocks int
	// Seed is the text of the hash chain's start (PYTHONHASHSEED), by default what vLLM uses without one.
	Seed string
	// HashAlgo is SHA256CBOR by default. (vLLM's own default is SHA256.)
	HashAlgo HashAlgo
	// Ranks is the number of data-parallel ranks, 1 by default. Each has a scheduler, a cache of Blocks and sockets of its own.
	Ranks int

	Timing Timing
	Events Events

	// Log receives lifecycle messages; nothing is logged per request above Debug. By default nothing is logged.
	Log *slog.Logger
}

// Adapter is one LoRA adapter. Path, the empty string allowed, enters block hashes of the map generation.
type Adapter struct{ Name, Path string }

// Timing is the speed of an engine. Zero rates mean that no time passes.
type Timing struct {
	// PrefillRate is the number of uncached prompt tokens computed per second.
	PrefillRate float64
	// DecodeRate is the number of tokens per second that a request gets while it is alone.
	DecodeRate float64
	// Slowdown is the share by which each further request in decode lengthens the time per token: with 0.01, 101 requests
	// get half the rate of one.
	Slowdown float64
	// MaxStepTokens bounds the tokens of one engine step, 2,048 by default: longer prefills are done in chunks, which delay
	// those behind them and the answers in decode.
	MaxStepTokens int
	// MaxRunning bounds the requests in the batch, 256 by default; others wait in order of arrival.
	MaxRunning int
	// ChunkInterval is the least time between two chunks of one stream; tokens in between are merged into the next chunk.
	// With 0 a chunk is sent as soon as there is a token.
	ChunkInterval time.Duration
}

// Format is the generation of engine whose event encoding is used. It also selects the release the engine says it is and,
// as there, whether extra keys enter the block hash tagged.
type Format string

// The generations that differ on the wire.
const (
	// Map is vLLM 0.32: events as maps (since 0.24), tagged hashes (since 0.31).
	Map Format = "map"
	// Array is vLLM 0.23: events as arrays with extra keys, group and attention kind.
	Array Format = "array"
	// OldArray is vLLM 0.16: arrays without extra keys, from which salted prompts cannot be told apart.
	OldArray Format = "old-array"
)

// HashAlgo is vLLM's --prefix-caching-hash-algo.
type HashAlgo string

const (
	// SHA256CBOR hashes canonical CBOR.
	SHA256CBOR HashAlgo = "sha256_cbor"
	// SHA256 hashes pickles; it is vLLM's default.
	SHA256 HashAlgo = "sha256"
)

// HashForm is how block hashes are written on the wire.
type HashForm string

const (
	// HashInt is vLLM's default: the last 8 bytes as an unsigned integer.
	HashInt HashForm = "int"
	// HashBytes is the whole digest, as with VLLM_KV_EVENTS_USE_INT_BLOCK_HASHES=0.
	HashBytes HashForm = "bytes"
)

// Events configures the ZMQ sockets. With neither Bind nor Connect there are none. Rank r uses the ports plus r; where the system
// picks a port it is for rank 0, and the others follow it.
type Events struct {
	// Bind is a tcp:// address to accept subscribers on; the host may be "*". Connect is the tcp:// address of a subscriber
	// that binds; it is redialled for ever. At most one of them is set.
	Bind, Connect string
	// Replay is a tcp:// address on which past batches can be asked for, "" for none. BufferSteps is how many are kept, 10,000
	// by default.
	Replay      string
	BufferSteps int
	// ReplayLimit has a replay of more batches than that lose up to 64 in its middle, at that place, as vLLM up to 0.32 does
	// beyond 1,000. With 0 none are lost.
	ReplayLimit int
	// Topic is the first frame of every message.
	Topic string
	// Format is Map by default.
	Format Format
	// Hashes is HashInt by default.
	Hashes HashForm
}

// adapter is an Adapter with the id that vLLM counts up from 1.
type adapter struct {
	id         int
	name, path string
}

const (
	defaultModelLen = 131072
	maxBlocks       = 1 << 24
	maxRanks        = 64
	maxBufferSteps  = 1 << 20
)

// withDefaults returns o completed, or every problem of it.
func (o Options) withDefaults() (Options, error) {
	setDefault(&o.Listen, "127.0.0.1:0")
	if len(o.Models) == 0 {
		o.Models = []string{"tiny"}
	}
	setDefault(&o.BlockSize, 16)
	setDefault(&o.Blocks, 8192)
	setDefault(&o.Seed, blockhash.DefaultSeed)
	setDefault(&o.HashAlgo, SHA256CBOR)
	setDefault(&o.Ranks, 1)
	setDefault(&o.Events.BufferSteps, 10_000)
	setDefault(&o.Timing.MaxStepTokens, 2048)
	setDefault(&o.Timing.MaxRunning, 256)
	setDefault(&o.Events.Format, Map)
	setDefault(&o.Events.Hashes, HashInt)
	if o.Log == nil {
		o.Log = slog.New(slog.DiscardHandler)
	}

	var errs []error
	problem := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if o.BlockSize < 1 || o.BlockSize > 4096 {
		problem("block size %d: want 1 to 4096", o.BlockSize)
	}
	if o.Blocks < 2 || o.Blocks > maxBlocks {
		problem("blocks %d: want 2 to %d", o.Blocks, maxBlocks)
	}
	if o.Ranks < 1 || o.Ranks > maxRanks {
		problem("ranks %d: want 1 to %d", o.Ranks, maxRanks)
	}
	if o.HashAlgo != SHA256CBOR && o.HashAlgo != SHA256 {
		problem("hash algorithm %q: want %s or %s", o.HashAlgo, SHA256CBOR, SHA256)
	}
	room := (o.Blocks - 1) * o.BlockSize
	setDefault(&o.MaxModelLen, min(defaultModelLen, room))
	if o.MaxModelLen < 1 || o.MaxModelLen > room {
		problem("max model len %d: want 1 to %d, which is what %d blocks of %d tokens hold", o.MaxModelLen, room, o.Blocks, o.BlockSize)
	}
	if o.Timing.PrefillRate < 0 || o.Timing.DecodeRate < 0 || o.Timing.Slowdown < 0 || o.Timing.ChunkInterval < 0 {
		problem("timing %+v: want no negative values", o.Timing)
	}
	if o.Timing.MaxStepTokens < 1 || o.Timing.MaxRunning < 1 {
		problem("step tokens %d, running %d: want at least 1", o.Timing.MaxStepTokens, o.Timing.MaxRunning)
	}
	names := make(map[string]bool)
	for _, n := range o.Models {
		if n == "" || names[n] {
			problem("model name %q: empty or served twice", n)
		}
		names[n] = true
	}
	for _, a := range o.Adapters {
		if a.Name == "" || names[a.Name] {
			problem("adapter name %q: empty or served twice", a.Name)
		}
		names[a.Name] = true
	}
	switch o.Events.Format {
	case Map, Array, OldArray:
	default:
		problem("events format %q: want %s, %s or %s", o.Events.Format, Map, Array, OldArray)
	}
	switch o.Events.Hashes {
	case HashInt, HashBytes:
	default:
		problem("events hashes %q: want %s or %s", o.Events.Hashes, HashInt, HashBytes)
	}
	if o.Events.Bind != "" && o.Events.Connect != "" {
		problem("events: want either bind %q or connect %q", o.Events.Bind, o.Events.Connect)
	}
	if o.Events.Replay != "" && o.Events.Bind == "" && o.Events.Connect == "" {
		problem("replay %q: without events there is nothing to replay", o.Events.Replay)
	}
	if o.Events.BufferSteps < 1 || o.Events.BufferSteps > maxBufferSteps || o.Events.ReplayLimit < 0 {
		problem("buffer steps %d, replay limit %d: want 1 to %d, and no negative limit", o.Events.BufferSteps, o.Events.ReplayLimit, maxBufferSteps)
	}
	for _, e := range []string{o.Events.Bind, o.Events.Connect, o.Events.Replay} {
		if e == "" {
			continue
		}
		if _, err := tcpAddress(e, o.Ranks-1); err != nil {
			errs = append(errs, err)
		}
	}
	return o, errors.Join(errs...)
}

// tcpAddress turns a ZMQ endpoint into the address of package net that a rank uses: the port is the rank further, unless it is 0.
func tcpAddress(endpoint string, rank int) (string, error) {
	rest, ok := strings.CutPrefix(endpoint, "tcp://")
	if !ok {
		return "", fmt.Errorf("events endpoint %q: want tcp://host:port", endpoint)
	}
	host, port, err := net.SplitHostPort(rest)
	if err != nil {
		return "", fmt.Errorf("events endpoint %q: %w", endpoint, err)
	}
	if host == "*" {
		host = ""
	}
	n, err := strconv.ParseUint(port, 10, 16)
	if err != nil || int(n)+rank > math.MaxUint16 {
		return "", fmt.Errorf("events endpoint %q: port %s of %d ranks is out of range", endpoint, port, rank+1)
	}
	if n > 0 {
		n += uint64(rank)
	}
	return net.JoinHostPort(host, strconv.FormatUint(n, 10)), nil
}

// release is the vLLM release that the format belongs to.
func (f Format) release() string {
	switch f {
	case Array:
		return "0.23.0"
	case OldArray:
		return "0.16.0"
	default:
		return "0.32.0"
	}
}

func setDefault[T comparable](v *T, def T) {
	var zero T
	if *v == zero {
		*v = def
	}
}
