package pool

import (
	"maps"
	"slices"
)

// maxAdapters bounds the adapters of one pool that its engines tell of; further ones are not known.
const maxAdapters = 4096

// found is what the engines of a pool told of it. It is never changed once made.
type found struct {
	adapters []string          // not configured anywhere, sorted
	paths    map[string]string // of all adapters, the configured ones too
	modelLen int               // longest of the base weights, 0 when not told
}

// told puts together what the endpoints of a pool tell.
type told struct {
	adapters map[string]bool
	paths    map[string]string
	modelLen int
	ignored  []string // names without a parent that are not configured
	crowded  bool     // there are more adapters than are kept
}

// tell is what the listings of one pool's endpoints say, in the order of the endpoints. An adapter is a name whose parent is a name of the pool's
// base weights: one that is configured, or that the same engine gives to the weights of a configured one.
func tell(models []string, listings []*listing) told {
	t := told{adapters: map[string]bool{}, paths: map[string]string{}}
	for i, l := range listings {
		if i > 0 && slices.Equal(l.cards, listings[i-1].cards) {
			continue // engines of a pool mostly serve the same
		}
		base, roots := map[string]bool{}, map[string]bool{}
		for _, m := range models {
			base[m] = true
		}
		for _, c := range l.cards {
			if !c.adapts && base[c.id] {
				roots[c.root] = true
				t.modelLen = max(t.modelLen, c.modelLen)
			}
		}
		for _, c := range l.cards {
			if !c.adapts && c.root != "" && roots[c.root] {
				base[c.id] = true
			}
		}
		for _, c := range l.cards {
			switch {
			case !c.adapts && !base[c.id]:
				t.ignored = append(t.ignored, c.id)
			case !c.adapts || !base[c.parent] || base[c.id]:
			case len(t.paths) == maxAdapters && !t.adapters[c.id]:
				t.crowded = true
			case !t.adapters[c.id]:
				t.adapters[c.id], t.paths[c.id] = true, c.root
			}
		}
	}
	return t
}

// share gives each name that pools tell of to one of them: what is configured stays where it is, a name that a pool has already stays there as long as
// that pool tells of it, and among the others the order of the configuration decides. It returns the pools' own by position, and the names
// that further pools claim with their positions.
func share(configs []Config, tales []told, before map[string]int) (own []found, claimed map[string][]int) {
	configured := map[string]bool{}
	for _, c := range configs {
		for _, names := range [][]string{c.Models, c.Adapters} {
			for _, n := range names {
				configured[n] = true
			}
		}
	}
	owner := map[string]int{}
	for name, i := range before {
		if i < len(tales) && tales[i].adapters[name] && !configured[name] {
			owner[name] = i
		}
	}
	own, claimed = make([]found, len(tales)), map[string][]int{}
	for i, t := range tales {
		own[i] = found{paths: map[string]string{}, modelLen: t.modelLen}
		for _, name := range slices.Sorted(maps.Keys(t.adapters)) {
			if slices.Contains(configs[i].Adapters, name) {
				own[i].paths[name] = t.paths[name]
				continue
			}
			if configured[name] {
				claimed[name] = append(claimed[name], i)
				continue
			}
			if has, ok := owner[name]; ok && has != i {
				claimed[name] = append(claimed[name], i)
				continue
			}
			owner[name] = i
			own[i].adapters = append(own[i].adapters, name)
			own[i].paths[name] = t.paths[name]
		}
	}
	return own, claimed
}

// tell has Run take over what endpoints tell. However many have told something, that is done once: with a thousand endpoints it takes some
// milliseconds.
func (s *Set) tell() {
	select {
	case s.told <- struct{}{}:
	default: // about to be done anyway
	}
}

// rename makes what the endpoints tell the names by which pools are found.
func (s *Set) rename() {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.view.Store(s.named(s.view.Load()))
}

// named is a view with the adapters that endpoints tell of. The caller holds mu, or is alone.
func (s *Set) named(v *view) *view {
	configs, tales := make([]Config, len(v.pools)), make([]told, len(v.pools))
	before, owned := map[string]int{}, s.owned
	for i, p := range v.pools {
		configs[i] = p.config
		tales[i] = tell(p.config.Models, p.listings())
		for _, name := range owned[p.Name()] {
			before[name] = i
		}
	}
	own, claimed := share(configs, tales, before)
	next := *v
	next.byModel = make(map[string]served, len(v.byModel))
	s.owned = make(map[string][]string, len(v.pools))
	for i, p := range v.pools {
		for _, m := range p.config.Models {
			next.byModel[m] = served{pool: p}
		}
		for _, a := range slices.Concat(p.config.Adapters, own[i].adapters) {
			next.byModel[a] = served{pool: p, adapter: a}
		}
		s.tellChanges(p, owned[p.Name()], own[i].adapters)
		s.owned[p.Name()] = own[i].adapters
		p.found.Store(&own[i])
		s.m.setAdapters(p)
		s.warn(p, tales[i], claimed, i)
	}
	return &next
}

// listings are what the pool's endpoints told in their present lives, or what is told of them.
func (p *Pool) listings() []*listing {
	var all []*listing
	for _, e := range p.endpoints {
		if l := e.known(); l != nil {
			all = append(all, l)
		}
	}
	return all
}

// maxWarned bounds the names that are remembered as warned of.
const maxWarned = 1024

// tellChanges logs which adapters have come and gone.
func (s *Set) tellChanges(p *Pool, before, after []string) {
	if slices.Equal(before, after) {
		return
	}
	come, gone := without(after, before), without(before, after)
	s.log.Info("adapters as the engines tell", "pool", p.Name(), "come", len(come), "gone", len(gone), "adapters", len(after))
}

// without are the names of a sorted list that another one lacks.
func without(names, other []string) []string {
	var left []string
	for _, n := range names {
		if _, ok := slices.BinarySearch(other, n); !ok {
			left = append(left, n)
		}
	}
	return left
}

// warn says once of each name what is wrong with it.
func (s *Set) warn(p *Pool, t told, claimed map[string][]int, position int) {
	once := func(kind, name string, say func()) {
		key := kind + "\x00" + p.Name() + "\x00" + name
		if len(s.warned) < maxWarned && !s.warned[key] {
			s.warned[key] = true
			say()
		}
	}
	for name, by := range claimed {
		if slices.Contains(by, position) {
			once("claimed", name, func() {
				s.log.Warn("an engine serves an adapter under a name that belongs to another pool; requests for it go there", "pool", p.Name(), "adapter", name)
			})
		}
	}
	for _, name := range t.ignored {
		once("ignored", name, func() {
			s.log.Info("an engine serves a model that is not configured and names no base model; it is ignored", "pool", p.Name(), "model", name)
		})
	}
	if t.crowded {
		once("crowded", "", func() {
			s.log.Warn("the engines of a pool tell of too many adapters; the rest is not known", "pool", p.Name(), "most", maxAdapters)
		})
	}
}
