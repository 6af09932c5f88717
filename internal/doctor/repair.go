package doctor

import (
	"cmp"
	"os"
	"path/filepath"
	"strings"
	"syscall"

	"github.com/kvsteer/kvsteer/internal/config"
)

// replays is the number of a pool's endpoints whose missed events can be had again.
func replays(p *config.Pool) int {
	n := 0
	for _, e := range p.Endpoints {
		if !e.Events.None() && e.Events.Replay != "" {
			n++
		}
	}
	return n
}

// examineState judges the folder of saved mirrors.
func (f *facts) examineState(c *collector) {
	if f.cfg.StateDir == "" {
		return
	}
	all := 0
	for i := range f.cfg.Pools {
		all += replays(&f.cfg.Pools[i])
	}
	if all == 0 && !f.keepsPorts() {
		c.found(StateUnused, "config", "state_dir is set, and nothing there has events.replay: nothing is saved")
	}
	if err := writable(f.cfg.StateDir); err != nil {
		c.found(StateUnwritable, "config", "state_dir: %v", err)
	}
}

// writable looks whether the router or node, taken to be of the doctor's user, can keep files in a folder. One that is missing is made by it, and
// may be of another host: nothing is said of it.
func writable(folder string) error {
	const writeAndSearch = 2 | 1
	info, err := os.Stat(folder)
	switch {
	case os.IsNotExist(err):
		return nil
	case err != nil:
		return err
	case !info.IsDir():
		return &os.PathError{Op: "open", Path: folder, Err: syscall.ENOTDIR}
	}
	if err := syscall.Access(filepath.Clean(folder), writeAndSearch); err != nil {
		return &os.PathError{Op: "write", Path: folder, Err: err}
	}
	return nil
}

// examineReplays judges whether missed events of a pool can be had again, by the configuration and what the engines say.
func (f *facts) examineReplays(c *collector, p *config.Pool) {
	var without, offered []string
	for i := range f.engines {
		e := &f.engines[i]
		if e.pool != p || e.endpoint.Events.None() {
			continue
		}
		at, publishes := e.offersReplay()
		if e.endpoint.Events.Replay == "" {
			without = append(without, e.endpoint.Address)
			if at != "" {
				offered = append(offered, e.endpoint.Address+" ("+at+")")
			}
			continue
		}
		if publishes && at == "" {
			c.found(ReplayElsewhere, e.subject(), "events.replay is %s, and the engine has no replay socket", e.endpoint.Events.Replay)
			continue
		}
		if bad, good := f.replayed(e); e.up() && bad > good {
			switch {
			case at != "" && port(at) != port(e.endpoint.Events.Replay): // on the way, as between containers, ports may differ
				c.found(ReplayElsewhere, e.subject(), "its replay socket is at port %s, and the %s asks %s", port(at), f.self(), e.endpoint.Events.Replay)
			default:
				c.found(ReplayFailing, e.subject(), "%.0f of %.0f replays since the %s's start had no answer at %s, or none that can be used", bad, bad+good, f.self(), e.endpoint.Events.Replay)
			}
		}
	}
	switch {
	case len(offered) > 0:
		c.found(NoReplay, "pool "+p.Name, "event sources without events.replay: %d of %d; these engines offer one: %s",
			len(without), sources(p), strings.Join(offered[:min(len(offered), 5)], ", "))
	case len(without) > 0:
		c.found(NoReplay, "pool "+p.Name, "event sources without events.replay: %d of %d", len(without), sources(p))
	}
}

// offersReplay is the replay socket that the engine tells of, "" when it has none, and whether it tells of any publisher.
func (e *engineFacts) offersReplay() (at string, publishes bool) {
	all, _ := e.sources()
	for _, s := range all {
		if s.enabled && s.publisher == "zmq" {
			publishes = true
			at = cmp.Or(at, s.replay)
		}
	}
	return at, publishes
}

// replayed counts the replays of an endpoint that failed for a reason that lasts, and those that were answered.
func (f *facts) replayed(e *engineFacts) (bad, good float64) {
	const name = "kvsteer_subscriber_replays_total"
	for _, o := range []string{"unreachable", "timeout", "invalid", "too_large"} {
		n, _ := f.router.metrics.sum(name, e.series("outcome", o)...)
		bad += n
	}
	for _, o := range []string{"complete", "empty", "partial", "hole", "not_proven"} {
		n, _ := f.router.metrics.sum(name, e.series("outcome", o)...)
		good += n
	}
	return bad, good
}

// series are the labels of the endpoint's series, and more.
func (e *engineFacts) series(more ...string) []string {
	return append([]string{"pool", e.pool.Name, "endpoint", e.endpoint.Address}, more...)
}

// Orphans are a finding above this share of a mirror that is not all but empty.
const (
	manyBlocks  = 500
	manyOrphans = 0.25
)

// examineRepair judges what the router or node says of lost events of one endpoint, and how it got over them.
func (f *facts) examineRepair(c *collector, e *engineFacts) {
	m, self := f.router.metrics, f.self()
	if m == nil || e.endpoint.Events.None() {
		return
	}
	value := func(name string, more ...string) float64 {
		v, _ := m.sum("kvsteer_subscriber_"+name, e.series(more...)...)
		return v
	}
	if n := value("gaps_total", "outcome", "reset"); n > 0 {
		c.found(EventsLost, e.subject(), "%.0f gaps since the %s's start were not closed", n, self)
	}
	if n := value("replays_total", "outcome", "hole"); n > 0 {
		c.found(ReplayHoles, e.subject(), "%.0f replays since the %s's start lacked batches in the middle", n, self)
	}
	hash, content := value("healed_blocks_total", "means", "hash"), value("healed_blocks_total", "means", "content")
	switch {
	case content > hash:
		c.found(HealingByContent, e.subject(), "%.0f blocks were recognised by their content since the %s's start, and %.0f by the engine's hash; hash_seed of pool %s is %q", content, self, hash, e.pool.Name, e.pool.HashSeed)
	case hash > 0:
		c.found(Healing, e.subject(), "%.0f blocks were recognised by prompts since the %s's start", hash+content, self)
	}
	if blocks, orphans := value("blocks"), value("orphan_blocks"); blocks >= manyBlocks && orphans > manyOrphans*blocks {
		c.found(OrphansHigh, e.subject(), percentForm+" blocks hang on blocks that are not known", orphans, blocks)
	}
	if n := value("restores_total", "outcome", "damaged") + value("restores_total", "outcome", "failed"); n > 0 {
		c.found(MirrorDamaged, e.subject(), "%s could not be used when the %s began to follow the engine; its log says why", plural(int(n), "saved mirror"), self)
	}
	if n := value("saves_total", "outcome", "failed"); n > 0 {
		c.found(SavesFailing, e.subject(), "%.0f of %.0f saves failed since the %s's start", n, n+value("saves_total", "outcome", "saved"), self)
	}
}
