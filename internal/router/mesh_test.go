package router

import (
	"math/rand/v2"
	"slices"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/kvindex"
	"github.com/kvsteer/kvsteer/subscriber"
)

// mesh is several routers over the same endpoints, each a world of its own on one clock, which tell each other of charges and pass records on. What
// is told waits in order, for each router, until it is delivered.
type mesh struct {
	t      testing.TB
	worlds []*world
	links  []*link
	now    time.Time
	silent bool // nobody tells anything
}

// link is the Peers of one router of a mesh.
type link struct {
	mesh    *mesh
	self    *Router
	dead    bool
	waiting [][]func(*Router) // for each router of the mesh
	passed  int
}

func (l *link) tell(f func(*Router)) {
	for i, other := range l.mesh.links {
		if !l.mesh.silent && other != l && !other.dead {
			l.waiting[i] = append(l.waiting[i], f)
		}
	}
}

func (l *link) Charged(c Charge) {
	from := l.self.Instance()
	l.tell(func(r *Router) { r.Charge(from, c) })
}

func (l *link) Released(pool string, number uint64) {
	from := l.self.Instance()
	l.tell(func(r *Router) { r.Release(from, pool, number) })
}

func (l *link) Pass(instance string, c Completion) Passing {
	for i, other := range l.mesh.links {
		if !l.mesh.silent && other != l && !other.dead && other.self.Instance() == instance {
			l.waiting[i] = append(l.waiting[i], func(r *Router) { r.CompletePassed(c) })
			l.passed++
			return Passed
		}
	}
	return NoWay
}

// newMesh makes so many routers over the endpoints of a pool, all of them connected.
func newMesh(t testing.TB, n int, rate float64, config pool.Config) *mesh {
	m := &mesh{t: t, now: epoch}
	for range n {
		m.join(rate, config)
	}
	return m
}

// join adds a router.
func (m *mesh) join(rate float64, config pool.Config) {
	index, err := kvindex.New(kvindex.Options{})
	if err != nil {
		m.t.Fatal(err)
	}
	l := &link{mesh: m}
	w := newWorld(m.t, Options{Index: index, PrefillRate: rate, Peers: l, Now: func() time.Time { return m.now }}, config)
	l.self = w.r
	for _, e := range config.Endpoints {
		for rank := range max(config.Ranks[e], 1) {
			s, err := w.r.Source(config.Name, e, rank)
			if err != nil {
				m.t.Fatal(err)
			}
			s.Describe(subscriber.Description{Connected: true, BlockSize: block, ExtraKeys: true})
			if rank == 0 {
				w.sources[e] = s
			}
		}
	}
	m.worlds, m.links = append(m.worlds, w), append(m.links, l)
	for _, l := range m.links {
		for len(l.waiting) < len(m.links) {
			l.waiting = append(l.waiting, nil)
		}
	}
}

// deliver hands over at most so many of the messages from one router to another.
func (m *mesh) deliver(from, to, most int) {
	l := m.links[from]
	n := min(most, len(l.waiting[to]))
	for _, f := range l.waiting[to][:n] {
		if !m.links[to].dead {
			f(m.worlds[to].r)
		}
	}
	l.waiting[to] = slices.Clone(l.waiting[to][n:])
}

// settle delivers everything.
func (m *mesh) settle() {
	for more := true; more; {
		more = false
		for from, l := range m.links {
			for to := range l.waiting {
				more = more || len(l.waiting[to]) > 0
				m.deliver(from, to, len(l.waiting[to]))
			}
		}
	}
}

// kill ends a router. What it has said may not be heard any more.
func (m *mesh) kill(i int, rnd *rand.Rand) {
	m.links[i].dead = true
	for to, l := range m.links {
		if l.dead {
			continue
		}
		m.deliver(i, to, rnd.IntN(1+len(m.links[i].waiting[to])))
		m.links[i].waiting[to] = nil
		m.worlds[to].r.Gone(m.worlds[i].r.Instance())
	}
}

// alive are the routers that are not dead.
func (m *mesh) alive() []int {
	var all []int
	for i, l := range m.links {
		if !l.dead {
			all = append(all, i)
		}
	}
	return all
}

// fleet is the first pool of a router.
func (m *mesh) fleet(i int) *fleet { return m.worlds[i].r.all()[0] }

// loads are those of a router's endpoints.
func (m *mesh) loads(i int) []load { return m.worlds[i].loads(m.now) }
