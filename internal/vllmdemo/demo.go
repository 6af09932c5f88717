package vllmdemo

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// Options configures one run.
type Options struct {
	Kvsteer string    // the kvsteer binary
	Envoy   string    // an Envoy binary, 1.37 or newer
	Example string    // the example's folder, with kvsteer.yaml, with-node, ranks.yaml and engine.sh; the environment has its PATH and MODEL
	JSON    string    // file for the figures, "" for none
	Size    int       // conversations of 4 turns, 0 for the default of 75
	Out     io.Writer // what people read
}

const (
	defaultSize     = 75
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
	began := time.Now()
	s, err := newSite(l, o, dir, "kvsteer", 2, 1)
	if err != nil {
		return err
	}
	if err := s.takeNode("with-node"); err != nil {
		return err
	}
	ranks, err := newSite(l, o, dir, "ranks", 1, 2)
	if err != nil {
		return err
	}
	report, err := s.show(ctx, o.Out)
	s.stop()
	if err != nil {
		return err
	}
	defer ranks.stop()
	var checks []Check
	report.Unpinned, report.Pinned, checks, err = ranks.showRanks(ctx, o.Out, max(o.Size/6, leastSize))
	if err != nil {
		return fmt.Errorf("ranks: %w", err)
	}
	report.Checks = append(report.Checks, checks...)
	problems := ranks.metric(ctx, "kvsteer_subscriber_problem")
	report.Seconds = time.Since(began).Seconds()
	report.Checks = append(report.Checks,
		Check{Part: "all", What: "problems with events of ranks", Got: fmt.Sprintf("%.0f", problems), Want: "0", OK: problems == 0},
		Check{Part: "all", What: "time", Got: fmt.Sprintf("%.0f s", report.Seconds), OK: true})
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

// chat sends a script and says how far it is.
func (s *site) chat(ctx context.Context, out io.Writer, script []conversation, parallel int) ([]seen, Figures, error) {
	return s.chatWith(ctx, out, script, parallel, func() {})
}

// chatWith also calls done after each request.
func (s *site) chatWith(ctx context.Context, out io.Writer, script []conversation, parallel int, done func()) ([]seen, Figures, error) {
	total, kinds := 0, map[string]int{}
	for _, c := range script {
		total += len(c.turns)
		kinds[c.kind] += len(c.turns)
	}
	fmt.Fprintf(out, "sending %d requests in %d conversations through Envoy (%s)\n", total, len(script), strings.ReplaceAll(counts(kinds), ",", " ·"))
	steps := meter{out: out, total: total}
	all, err := s.play(ctx, script, parallel, func() {
		steps.done()
		done()
	})
	if err != nil {
		return nil, Figures{}, err
	}
	for _, one := range all {
		if !one.reply.OK() {
			fmt.Fprintf(out, "  conversation %d turn %d: %v\n", one.conversation, one.turn, broken("through Envoy", one.reply))
		}
	}
	return all, judge(all), nil
}
