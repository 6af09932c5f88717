package vllmdemo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// Options configures one run.
type Options struct {
	Kvsteer string    // the kvsteer binary
	Envoy   string    // an Envoy binary, 1.37 or newer
	Example string    // the example's folder, with kvsteer.yaml and engine.sh; the environment has its PATH and MODEL
	JSON    string    // file for the figures, "" for none
	Size    int       // conversations of 4 turns, 0 for the default of 50
	Out     io.Writer // what people read
}

const (
	defaultSize     = 50
	parallel        = 6
	seed            = 20
	fewBlocks       = 64 // of 32 tokens; vLLM keeps one for itself
	fewBlocksLength = 1536
)

// ErrFailed is what Run returns when a check failed and the table says which.
var ErrFailed = errors.New("a check failed")

// leastSize is the fewest conversations of a part. Their first requests are placed at random between engines that hold nothing of them: with
// 12, all of them at one of two engines are as rare as heads 12 times in a row.
const leastSize = 12

// Run shows it all and returns nil when every check is ok. No process is left in any case.
func Run(ctx context.Context, o Options) error {
	if o.Size == 0 {
		o.Size = defaultSize
	}
	if o.Size < leastSize || o.Size > 1000 {
		return fmt.Errorf("%d conversations: not in the range %d to 1000", o.Size, leastSize)
	}
	var err error
	for _, path := range []*string{&o.Kvsteer, &o.Envoy, &o.Example} {
		if *path, err = filepath.Abs(*path); err != nil {
			return err
		}
	}
	dir, err := os.MkdirTemp("", "kvsteer-vllm-")
	if err != nil {
		return fmt.Errorf("make a folder for the demo: %w", err)
	}
	l, err := lab.New(lab.Options{Kvsteer: o.Kvsteer, Envoy: o.Envoy, Dir: dir})
	if err == nil {
		err = run(ctx, l, o, dir)
		l.Close()
	}
	switch {
	case err == nil, ctx.Err() != nil:
		_ = os.RemoveAll(dir)
		return err
	case os.Remove(dir) == nil: // empty: nothing was started, so there is nothing to look at
		return err
	}
	return fmt.Errorf("%w\nlogs and configurations are kept in %s", err, dir)
}

func run(ctx context.Context, l *lab.Lab, o Options, dir string) error {
	s, err := newSite(l, o, dir)
	if err != nil {
		return err
	}
	defer s.stop()
	fmt.Fprintf(o.Out, "kvsteer on real engines: starting the router and %d vLLM servers on CPU (up to a minute, more on a busy machine)\n", len(s.engines))
	if err := s.start(ctx, o.Out); err != nil {
		return err
	}
	report, err := s.show(ctx, o.Out)
	if err != nil {
		return err
	}
	fmt.Fprintln(o.Out)
	if err := table(o.Out, report); err != nil {
		return fmt.Errorf("print the table: %w", err)
	}
	if o.JSON != "" {
		if err := writeJSON(o.JSON, report); err != nil {
			return err
		}
		fmt.Fprintf(o.Out, "\nThe figures are in %s.\n", o.JSON)
	}
	if failed := report.failed(); len(failed) > 0 {
		return fmt.Errorf("%d of %d: %w", len(failed), len(report.Checks), ErrFailed)
	}
	fmt.Fprintf(o.Out, "\nAll %d checks are ok. Cached tokens are the engines' own report; predictions are from Envoy's access log.\n", len(report.Checks))
	return nil
}

// show goes through all parts.
func (s *site) show(ctx context.Context, out io.Writer) (Report, error) {
	var r Report
	add := func(checks []Check, err error) error {
		r.Checks = append(r.Checks, checks...)
		return err
	}
	rng := rand.New(rand.NewPCG(seed, 1))
	var err error
	if r.Traffic, err = s.chat(ctx, out, script(seed, s.opt.Size, s.model, s.adapter), parallel); err != nil {
		return r, err
	}
	f := r.Traffic
	checks := f.checks("traffic", s.opt.Size*turns, s.engines)
	checks = append(checks,
		most("traffic", "follow-ups at an engine that holds the turn before", f.Held, f.FollowUps, 95),
		Check{Part: "traffic", What: "prompt tokens from cache", Got: share(f.Cached, f.Prompt), OK: true},
		Check{Part: "traffic", What: "requests by kind", Got: counts(f.Kinds), OK: true},
		Check{Part: "traffic", What: "requests by engine", Got: counts(f.PerEndpoint), OK: true},
		Check{Part: "traffic", What: "decisions by reason", Got: counts(f.Reasons), OK: true})
	_ = add(checks, nil)

	fmt.Fprintln(out, "emptying both prefix caches")
	if err := add(s.afterReset(ctx, rng)); err != nil {
		return r, fmt.Errorf("reset: %w", err)
	}
	small := s.engines[0]
	flags := []string{"--num-gpu-blocks-override", fmt.Sprint(fewBlocks), "--max-model-len", fmt.Sprint(fewBlocksLength)}
	if err := add(s.afterRestart(ctx, out, rng, small, flags)); err != nil {
		return r, fmt.Errorf("restart: %w", err)
	}
	fmt.Fprintf(out, "filling the engine of %d blocks\n", fewBlocks)
	if err := add(s.afterEviction(ctx, rng, small)); err != nil {
		return r, fmt.Errorf("eviction: %w", err)
	}
	before := s.removed(ctx, small)
	// One conversation at a time: what two at once evict of each other nobody can predict.
	evicting := max(s.opt.Size/4, leastSize)
	if r.Eviction, err = s.chat(ctx, out, script(seed+1, evicting, s.model, s.adapter), 1); err != nil {
		return r, err
	}
	const part = "chat while an engine evicts"
	_ = add(r.Eviction.checks(part, evicting*turns, s.engines), nil)
	removed := s.removed(ctx, small) - before
	_ = add([]Check{{Part: part, What: "removals told by the engine", Got: fmt.Sprintf("%.0f", removed), Want: "some", OK: removed > 0}}, nil)
	problems := s.metric(ctx, "kvsteer_subscriber_problem")
	_ = add([]Check{{Part: "all", What: "problems with events", Got: fmt.Sprintf("%.0f", problems), Want: "0", OK: problems == 0}}, nil)
	return r, nil
}

// chat sends a script and says how far it is.
func (s *site) chat(ctx context.Context, out io.Writer, script []conversation, parallel int) (Figures, error) {
	total, kinds := 0, map[string]int{}
	for _, c := range script {
		total += len(c.turns)
		kinds[c.kind] += len(c.turns)
	}
	fmt.Fprintf(out, "sending %d requests in %d conversations through Envoy (%s)\n", total, len(script), strings.ReplaceAll(counts(kinds), ",", " ·"))
	steps := meter{out: out, total: total}
	all, err := s.play(ctx, script, parallel, steps.done)
	if err != nil {
		return Figures{}, err
	}
	for _, one := range all {
		if !one.reply.OK() {
			fmt.Fprintf(out, "  conversation %d turn %d: %v\n", one.conversation, one.turn, broken("through Envoy", one.reply))
		}
	}
	return judge(all, block), nil
}
