package pool

import "cmp"

// Announced is what somebody else, such as a node, says of an endpoint's engine in its place.
type Announced struct {
	Told           // what the engine serves
	Known   bool   // false: nothing was heard of the engine yet, and Told says nothing
	Version string // of the engine, "" when not known
}

// announcement is what counts of an Announced. It is never changed once made.
type announcement struct {
	listing *listing // nil: not known yet
	version string
}

// sameWeights is what all names of base weights in an announcement were loaded from: who announces has compared them.
const sameWeights = "announced"

func newAnnouncement(a *Announced) *announcement {
	n := &announcement{version: a.Version}
	if !a.Known {
		return n
	}
	var cards []card
	add := func(c card) {
		if servedName(c.id) && len(cards) < maxListed {
			cards = append(cards, c)
		}
	}
	first := ""
	for _, m := range a.Models {
		first = cmp.Or(first, m)
		add(card{id: m, root: sameWeights, modelLen: a.ModelLen})
	}
	for _, l := range a.Adapters {
		path := l.Path
		if len(path) > maxPath {
			path = ""
		}
		add(card{id: l.Name, root: path, parent: cmp.Or(l.Parent, first), adapts: true})
	}
	n.listing = newListing(0, cards)
	return n
}

// Announce takes over what somebody else tells of an endpoint, in place of what was told before; nil when nothing is told any more. As long as something
// is, the endpoint is not asked for its models. It may not be there yet. Where Config.AdaptersRefresh is 0 the names do not count.
func (s *Set) Announce(pool, addr string, a *Announced) {
	s.mu.Lock()
	defer s.mu.Unlock()
	at := place{pool, addr}
	var next *announcement
	if a == nil {
		delete(s.announced, at)
	} else {
		next = newAnnouncement(a)
		s.announced[at] = next
	}
	e := s.Endpoint(pool, addr)
	if e == nil {
		return
	}
	if before := e.announced.Swap(next); before != nil && next == nil {
		e.askModels()
	}
	s.tell()
}

// Unanswered reports whether the engine was reached by the last question for its models, and gave no answer that could be read.
func (e *Endpoint) Unanswered() bool {
	o := e.refreshed.Load()
	return o != nil && *o != refreshOK && *o != refreshUnreachable
}
