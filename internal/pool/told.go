package pool

import (
	"maps"
	"slices"
)

// Told is what an engine says that it serves.
type Told struct {
	Models   []string  // names of the base weights, sorted
	Adapters []Adapter // sorted by name
	ModelLen int       // prompt and answer in tokens that the base weights take, 0 when it does not say
}

// Adapter is a LoRA adapter that an engine serves.
type Adapter struct {
	Name   string
	Path   string // what it was loaded from, "" when the engine does not say
	Parent string // name of the base weights that it is on
}

// Told is what the engine of Endpoints()[i] says that it serves, in its present life; ok is false when it has not said it.
func (p *Pool) Told(i int) (told Told, ok bool) {
	l := p.endpoints[i].known()
	if l == nil {
		return told, false
	}
	t := tell(p.config.Models, []*listing{l})
	told.ModelLen = t.modelLen
	for _, name := range slices.Sorted(maps.Keys(t.adapters)) {
		c, _ := l.card(name)
		told.Adapters = append(told.Adapters, Adapter{name, t.paths[name], c.parent})
	}
	for _, c := range l.cards {
		if !c.adapts && !slices.Contains(t.ignored, c.id) {
			told.Models = append(told.Models, c.id)
		}
	}
	return told, true
}

// Endpoint finds an endpoint by its pool and address; nil when there is none.
func (s *Set) Endpoint(pool, addr string) *Endpoint {
	for _, p := range s.Pools() {
		if p.config.Name != pool {
			continue
		}
		for _, e := range p.endpoints {
			if e.addr == addr {
				return e
			}
		}
	}
	return nil
}
