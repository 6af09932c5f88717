package ports

import (
	"cmp"
	"errors"
	"fmt"
	"slices"
	"time"
)

// Want is what one engine needs.
type Want struct {
	Engine string // its address, by which it is told apart
	Ranks  int    // ports in a row, one for each data-parallel rank
	Events bool   // of the node, for events
	Replay bool   // of the engine, for replays
	Check  bool   // another process may have taken the ports for events, which the node does not listen on at this time
}

// Ports are the first of as many ports as there are ranks; 0 where none was wanted.
type Ports struct{ Events, Replay uint16 }

// Picked is the outcome of Pick.
type Picked struct {
	Of      map[string]Ports // by engine
	Moved   []string         // engines that have other ports than before: they must be started anew with them
	Damaged error            // why the file was set aside; nil when it was not
}

// keep is how long the ports of an engine that is not wanted any more are kept from others.
const keep = 7 * 24 * time.Hour

// maxKept bounds what a file holds beside the wanted engines.
const maxKept = 1024

// entry is what the file says of one engine.
type entry struct {
	Engine string     `json:"engine"`
	Ranks  int        `json:"ranks"`
	Events uint16     `json:"events,omitempty"`
	Replay uint16     `json:"replay,omitempty"`
	Unused *time.Time `json:"unused_since,omitempty"` // nil: the engine is wanted
}

// rules are what ports may be picked.
type rules struct {
	first, last uint16
	taken       map[uint16]bool
	busy        func(uint16) bool // another process listens there
}

// fits says whether ports that were picked before may still be used.
func (r rules) fits(port uint16, ranks int, check bool) bool {
	if port < r.first || int(port)+ranks-1 > int(r.last) {
		return false
	}
	for p := range ranks {
		if at := port + uint16(p); r.taken[at] || check && r.busy(at) {
			return false
		}
	}
	return true
}

// pick gives each want its ports: those of before as far as they fit, then free ones in order. It returns what the file is to hold.
func pick(before []entry, wants []Want, r rules, now time.Time) (after []entry, picked Picked, err error) {
	picked.Of = map[string]Ports{}
	had := map[string]entry{}
	for _, e := range before {
		had[e.Engine] = e
	}
	now = now.UTC().Truncate(time.Second)
	wanted := make([]entry, len(wants))
	for i, w := range wants {
		e := had[w.Engine]
		delete(had, w.Engine)
		wanted[i] = entry{Engine: w.Engine, Ranks: max(w.Ranks, e.Ranks)}
		if e.Ranks < w.Ranks {
			continue
		}
		if r.fits(e.Events, e.Ranks, w.Check && w.Events) {
			wanted[i].Events = e.Events
		}
		if r.fits(e.Replay, e.Ranks, false) { // the engine listens there
			wanted[i].Replay = e.Replay
		}
	}
	var left []entry
	for _, e := range before {
		if _, ok := had[e.Engine]; !ok {
			continue
		}
		if e.Unused == nil {
			e.Unused = &now
		}
		if now.Sub(*e.Unused) < keep {
			left = append(left, e)
		}
	}
	slices.SortStableFunc(left, func(a, b entry) int { return b.Unused.Compare(*a.Unused) }) // the last one goes first
	left = left[:min(len(left), maxKept)]
	for i, w := range wants {
		for _, of := range []struct {
			wanted bool
			port   *uint16
		}{{w.Events, &wanted[i].Events}, {w.Replay, &wanted[i].Replay}} {
			for of.wanted && *of.port == 0 {
				if port, ok := r.free(wanted[i].Ranks, wanted, left); ok {
					*of.port = port
				} else if len(left) > 0 {
					left = left[:len(left)-1]
				} else {
					return nil, Picked{}, fmt.Errorf("engine %s needs %d ports in a row, and of %d-%d no more are free", w.Engine, wanted[i].Ranks, r.first, r.last)
				}
			}
		}
		is := wanted[i]
		for _, was := range before {
			if was.Engine == w.Engine && (w.Events && was.Events != 0 && was.Events != is.Events || w.Replay && was.Replay != 0 && was.Replay != is.Replay) {
				picked.Moved = append(picked.Moved, w.Engine)
			}
		}
		given := Ports{}
		if w.Events {
			given.Events = is.Events
		}
		if w.Replay {
			given.Replay = is.Replay
		}
		picked.Of[w.Engine] = given
	}
	return append(wanted, left...), picked, nil
}

// free finds the first ports in a row that nobody has.
func (r rules) free(ranks int, entries ...[]entry) (uint16, bool) {
	used := map[uint16]bool{}
	for _, e := range slices.Concat(entries...) {
		for _, first := range []uint16{e.Events, e.Replay} {
			for rank := range e.Ranks {
				if first != 0 {
					used[first+uint16(rank)] = true
				}
			}
		}
	}
	row := 0
	for p := int(r.first); p <= int(r.last); p++ {
		if port := uint16(p); used[port] || r.taken[port] || r.busy(port) {
			row = 0
			continue
		}
		if row++; row == ranks {
			return uint16(p - ranks + 1), true
		}
	}
	return 0, false
}

// maxRanks bounds the ranks of one engine, as package subscriber does.
const maxRanks = 64

// check finds what a file that was written by this package cannot hold.
func check(entries []entry) error {
	seen, used := map[string]bool{}, map[uint16]string{}
	for _, e := range entries {
		if e.Engine == "" || seen[e.Engine] || e.Ranks < 1 || e.Ranks > maxRanks {
			return errors.New("an engine without a name, with one twice, or with an impossible number of ranks")
		}
		seen[e.Engine] = true
		for _, first := range []uint16{e.Events, e.Replay} {
			if first == 0 {
				continue
			}
			if int(first)+e.Ranks-1 > 65535 {
				return fmt.Errorf("engine %s has ports beyond 65535", e.Engine)
			}
			for rank := range e.Ranks {
				port := first + uint16(rank)
				if other := used[port]; other != "" {
					return fmt.Errorf("port %d stands at engine %s and at engine %s", port, other, e.Engine)
				}
				used[port] = e.Engine
			}
		}
	}
	return nil
}

// sorted is the order of the file, which is that of people who look for an engine.
func sorted(entries []entry) []entry {
	slices.SortFunc(entries, func(a, b entry) int { return cmp.Compare(a.Engine, b.Engine) })
	return entries
}
