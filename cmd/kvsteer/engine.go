package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"strings"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/kvsteer/kvsteer/internal/enginesim"
)

// engineCmd runs one simulated engine. Its default rates are about those of an 8B model on one GPU.
type engineCmd struct {
	Listen      string   `help:"HTTP address; with port 0 a free port is taken and printed." default:"127.0.0.1:8000"`
	Model       []string `help:"Name the base model is served under; may be repeated." default:"tiny"`
	Adapter     []string `help:"LoRA adapter, served under its name; may be repeated." placeholder:"NAME[=PATH]"`
	MaxModelLen int      `help:"Longest prompt and answer together, in tokens; 0 takes what the cache holds, up to 131072." default:"0" placeholder:"N"`
	TLSCert     string   `help:"PEM file with a certificate chain: serve HTTPS, HTTP/2 included." placeholder:"FILE"`
	TLSKey      string   `help:"PEM file with the key of --tls-cert." placeholder:"FILE"`
	APIKeyFile  string   `help:"File with the key that clients must send to paths under /v1." placeholder:"FILE"`

	EnableRender bool   `help:"Offer /v1/completions/render and /v1/chat/completions/render."`
	SaltHeader   string `help:"Request header whose value is the cache salt, instead of cache_salt in the body." placeholder:"NAME"`

	BlockSize int    `help:"Tokens in a KV block." default:"16"`
	Blocks    int    `help:"Blocks in the KV cache, one of them reserved." default:"8192"`
	Seed      string `help:"Seed of the block hashes (PYTHONHASHSEED of the real engine)." placeholder:"TEXT"`
	HashAlgo  string `help:"How blocks are hashed (sha256_cbor, sha256); the real engine's default is sha256." enum:"sha256_cbor,sha256" default:"sha256_cbor"`
	Ranks     int    `help:"Data-parallel ranks, each with a cache of its own; rank r uses the ports of the events plus r." default:"1"`

	PrefillRate    float64       `help:"Uncached prompt tokens computed per second; 0 takes no time." default:"8000"`
	DecodeRate     float64       `help:"Tokens per second of a request that is alone; 0 takes no time." default:"80"`
	DecodeSlowdown float64       `help:"Share by which each further request in decode lengthens the time per token." default:"0.01"`
	StepTokens     int           `help:"Most tokens computed in one step; longer prefills are done in chunks." default:"2048"`
	MaxConcurrency int           `help:"Most requests in the batch; others wait." default:"256"`
	ChunkInterval  time.Duration `help:"Least time between two chunks of one stream; tokens in between are merged." default:"50ms"`

	EventsBind    string `help:"Publish KV events on this address." placeholder:"tcp://HOST:PORT" xor:"events"`
	EventsConnect string `help:"Publish KV events to the subscriber that binds this address." placeholder:"tcp://HOST:PORT" xor:"events"`
	ReplayBind    string `help:"Answer requests for past batches on this address." placeholder:"tcp://HOST:PORT"`
	BufferSteps   int    `help:"Batches kept for replays." default:"10000"`
	ReplayLimit   int    `help:"Lose batches in the middle of replays longer than that, as vLLM up to 0.32 does beyond 1000; 0 loses none." default:"0" placeholder:"N"`
	EventsTopic   string `help:"Topic of the KV events." placeholder:"TEXT"`
	EventsFormat  string `help:"Events as vLLM 0.32 (map), 0.23 (array) or 0.16 (old-array) writes them." enum:"map,array,old-array" default:"map"`
	EventsHashes  string `help:"Block hashes as integers or as 32 bytes (int, bytes)." enum:"int,bytes" default:"int"`
}

// Help is shown by kvsteer engine --help.
func (c *engineCmd) Help() string {
	return `A simulated vLLM: the same HTTP paths, prefix cache, metrics and KV events, with time that passes instead of a GPU that computes. ` +
		`It answers with words that mean nothing. When it is ready it prints one line with its addresses.`
}

// Run serves until ctx ends.
func (c *engineCmd) Run(ctx context.Context, stdout io.Writer, log *slog.Logger) error {
	opts, err := c.options(log)
	if err != nil {
		return err
	}
	engine, err := enginesim.New(opts)
	if err != nil {
		return err
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return engine.Run(ctx) })
	g.Go(func() error {
		select {
		case <-ctx.Done():
			return nil
		case <-engine.Ready():
			_, err := fmt.Fprintln(stdout, c.banner(engine))
			return err
		}
	})
	return g.Wait()
}

func (c *engineCmd) options(log *slog.Logger) (enginesim.Options, error) {
	o := enginesim.Options{
		Listen: c.Listen, CertFile: c.TLSCert, KeyFile: c.TLSKey, Models: c.Model, Render: c.EnableRender, SaltHeader: c.SaltHeader, MaxModelLen: c.MaxModelLen, BlockSize: c.BlockSize, Blocks: c.Blocks, Seed: c.Seed,
		HashAlgo: enginesim.HashAlgo(c.HashAlgo), Ranks: c.Ranks,
		Timing: enginesim.Timing{
			PrefillRate: c.PrefillRate, DecodeRate: c.DecodeRate, Slowdown: c.DecodeSlowdown, MaxStepTokens: c.StepTokens,
			MaxRunning: c.MaxConcurrency, ChunkInterval: c.ChunkInterval,
		},
		Events: enginesim.Events{
			Bind: c.EventsBind, Connect: c.EventsConnect, Topic: c.EventsTopic,
			Replay: c.ReplayBind, BufferSteps: c.BufferSteps, ReplayLimit: c.ReplayLimit,
			Format: enginesim.Format(c.EventsFormat), Hashes: enginesim.HashForm(c.EventsHashes),
		},
		Log: log,
	}
	for _, a := range c.Adapter {
		name, path, _ := strings.Cut(a, "=")
		o.Adapters = append(o.Adapters, enginesim.Adapter{Name: name, Path: path})
	}
	// 0 would be the default to package enginesim; here it is a mistake.
	for _, size := range []struct {
		flag string
		n    int
	}{{"block-size", c.BlockSize}, {"blocks", c.Blocks}, {"step-tokens", c.StepTokens}, {"max-concurrency", c.MaxConcurrency}, {"ranks", c.Ranks}, {"buffer-steps", c.BufferSteps}} {
		if size.n == 0 {
			return o, fmt.Errorf("--%s: 0 is too few", size.flag)
		}
	}
	if (c.TLSCert == "") != (c.TLSKey == "") {
		return o, errors.New("--tls-cert and --tls-key are both needed for TLS")
	}
	if c.APIKeyFile != "" {
		key, err := os.ReadFile(c.APIKeyFile)
		if err != nil {
			return o, fmt.Errorf("read API key: %w", err)
		}
		if o.APIKey = strings.TrimSpace(string(key)); o.APIKey == "" {
			return o, fmt.Errorf("read API key: %s is empty", c.APIKeyFile)
		}
	}
	return o, nil
}

// banner is the line that tells a caller who asked for port 0 what it got.
func (c *engineCmd) banner(e *enginesim.Engine) string {
	scheme := "http"
	if c.TLSCert != "" {
		scheme = "https"
	}
	line := fmt.Sprintf("engine: serving %s on %s://%s", c.Model[0], scheme, e.Addr())
	switch {
	case c.EventsConnect != "":
		line += ", events connect " + c.EventsConnect
	case c.EventsBind != "":
		line += ", events bind tcp://" + e.EventsAddr()
	}
	if c.ReplayBind != "" {
		line += ", replay bind tcp://" + e.ReplayAddr()
	}
	return line
}
