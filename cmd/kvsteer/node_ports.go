package main

import (
	"cmp"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strings"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/engineargs"
	"github.com/kvsteer/kvsteer/internal/ports"
)

// pickPorts gives the engines of a node that listen: auto stands for their ports. check says of an engine, by its local address, that nobody of ours listens
// there at this time, so that a port which is in use has been taken by another process.
func pickPorts(cfg *config.Node, check func(engine string) bool) (ports.Picked, error) {
	wants := portWants(cfg, check)
	if len(wants) == 0 {
		return ports.Picked{}, nil
	}
	if cfg.StateDir == "" {
		return ports.Picked{}, errors.New("events.listen: auto needs state_dir, and there was none when the node started")
	}
	picked, err := portBook(cfg).Pick(wants)
	if err != nil {
		return ports.Picked{}, fmt.Errorf("ports of engines: %w", err)
	}
	return picked, nil
}

// keptPorts are those of the engines that have some, and nothing is picked.
func keptPorts(cfg *config.Node) (map[string]ports.Ports, error) {
	wants := portWants(cfg, func(string) bool { return false })
	if len(wants) == 0 {
		return nil, nil
	}
	return portBook(cfg).Kept(wants)
}

func portBook(cfg *config.Node) *ports.Book {
	return ports.New(ports.Options{Dir: cfg.StateDir, First: cfg.Ports[0], Last: cfg.Ports[1], Taken: takenPorts(cfg)})
}

func portWants(cfg *config.Node, check func(engine string) bool) []ports.Want {
	var wants []ports.Want
	for _, p := range cfg.Pools {
		for _, e := range p.Engines {
			w := ports.Want{Engine: e.Local(), Ranks: e.Events.Ranks, Events: e.Events.Listen == config.Auto, Replay: e.Events.Replay == config.Auto}
			if w.Events || w.Replay {
				w.Check = check(w.Engine)
				wants = append(wants, w)
			}
		}
	}
	return wants
}

// takenPorts are those that a configuration gives to something by name.
func takenPorts(cfg *config.Node) map[uint16]bool {
	taken := map[uint16]bool{}
	take := func(address string, ranks int) {
		if addr, err := netip.ParseAddrPort(strings.TrimPrefix(address, "tcp://")); err == nil {
			for rank := range ranks {
				taken[addr.Port()+uint16(rank)] = true
			}
		}
	}
	take(cfg.Listen, 1)
	take(cfg.Admin.Listen, 1)
	for _, p := range cfg.Pools {
		for _, e := range p.Engines {
			take(e.Local(), 1)
			for _, address := range []string{e.Events.Listen, e.Events.Dial, e.Events.Replay} {
				take(address, e.Events.Ranks)
			}
		}
	}
	return taken
}

// eventsOf is where an engine's events come from, with the ports that were picked for it.
func eventsOf(e config.Engine, picked ports.Picked) config.Events {
	at := picked.Of[e.Local()]
	return e.Events.At(at.Events, at.Replay)
}

// tellPicked says what became of ports other than what was to be expected.
func tellPicked(log *slog.Logger, cfg *config.Node, picked ports.Picked) {
	if picked.Damaged != nil {
		log.Warn("the file of ports is set aside, and ports are picked anew: engines that are running may connect to other ones", "file", cfg.StateDir+"/ports.json", "error", picked.Damaged)
	}
	for _, engine := range picked.Moved {
		at := picked.Of[engine]
		log.Warn("an engine has other ports than before, since those are taken or do not suit the configuration: start it anew with what kvsteer engine-args prints",
			"endpoint", engine, "events", at.Events, "replay", at.Replay)
	}
}

// followedEngines lists the event sources of a node.
func followedEngines(cfg *config.Node, picked ports.Picked) []followed {
	var all []followed
	for _, p := range cfg.Pools {
		reading := newReading(p.Tiers.Media, p.Tiers.Demote, p.AdapterIDs, cmp.Or(p.HashSeed, engineargs.HashSeed))
		for _, e := range p.Engines {
			all = append(all, followed{p.Name, e.Local(), eventsOf(e, picked), reading})
		}
	}
	return all
}
