package feed

import (
	"cmp"
	"slices"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// readAll reads the elements of a list.
func readAll[P, T any](what string, list []P, limit int, read func(P) (T, error)) ([]T, error) {
	if err := few(what, len(list), limit); err != nil {
		return nil, malformed("%v", err)
	}
	all := make([]T, 0, len(list))
	for _, p := range list {
		t, err := read(p)
		if err != nil {
			return nil, malformed("%v", err)
		}
		all = append(all, t)
	}
	return all, nil
}

// missedLoad is a load that a node has told and tells no more, since a time. A node that has just been started tells of its engines one after the other.
type missedLoad struct {
	Load
	since time.Time
}

// load passes on what the engines of accepted replicas say of themselves.
func (r *inbox) load(m *feedpb.Loads, now time.Time) error {
	all, err := readAll("loads", m.GetLoads(), maxReplicas, loadOf)
	if err != nil {
		return err
	}
	for _, l := range r.loads {
		r.missed[l.Endpoint] = missedLoad{l, now}
	}
	r.loads = nil
	for _, l := range all {
		if endpoint, ok := r.endpoints[l.Endpoint]; ok {
			l.Endpoint = endpoint
			r.loads = append(r.loads, l)
			delete(r.missed, endpoint)
		}
	}
	if len(r.loads) > 0 {
		r.fleet.Load(r.n.name, r.loads)
	}
	return nil
}

// staleLoads says of loads that the node tells no more since a time, or before it, that they are stale.
func (r *inbox) staleLoads(since time.Time) {
	var stale []Load
	for endpoint, l := range r.missed {
		if !l.since.After(since) {
			l.Stale = true
			stale = append(stale, l.Load)
			delete(r.missed, endpoint)
		}
	}
	if len(stale) > 0 {
		r.fleet.Load(r.n.name, stale)
	}
}

// silence says that a node is stale, and of all its loads that they are, once.
func (r *inbox) silence(now time.Time) {
	if r.replicas != nil && !r.silent {
		r.silent = true
		r.fleet.Silent(r.n.name)
	}
	for _, l := range r.loads {
		r.missed[l.Endpoint] = missedLoad{l, now}
	}
	r.loads = nil
	r.staleLoads(now)
}

// meet takes over who else watches the node.
func (r *inbox) meet(m *feedpb.Peers, now time.Time) error {
	all, err := readAll("peers", m.GetInstances(), maxPeers, func(i string) (string, error) { return i, short("instance", i, maxInstance) })
	if err != nil {
		return err
	}
	unsure := now.Add(-unsureFor)
	gone := r.part(all, unsure)
	r.origins.set(r.n, all)
	r.n.r.mail.parted(r.n.out, gone, unsure, now)
	r.n.r.mail.met(all)
	var since time.Time
	for _, i := range all {
		at, back := r.parted[i]
		if back && (since.IsZero() || at.Before(since)) {
			since = at
		}
		delete(r.parted, i)
	}
	if !since.IsZero() {
		r.n.out.again(since)
	}
	r.n.alone.Store(r.origins.count(r.n) == 0)
	return nil
}

// partSlack is how long a node may have passed on nothing any more when its last message came: its queue for another router, and what that had not read.
const partSlack = 5 * time.Second

// part notes which of the node's peers are not among these any more, and until when they have heard what the node was told. Few come back: another life of a router is another instance.
func (r *inbox) part(stay []string, at time.Time) (gone []string) {
	stays := setOf(stay)
	for _, i := range r.origins.of(r.n) {
		if !stays[i] {
			r.partOf(i, at)
			gone = append(gone, i)
		}
	}
	return gone
}

func (r *inbox) partOf(instance string, at time.Time) {
	if _, known := r.parted[instance]; !known && len(r.parted) >= maxPeers {
		for one := range r.parted { // so many are names that a node made up; a search for the oldest would let it cost time
			delete(r.parted, one)
			break
		}
	}
	r.parted[instance] = at
}

// charges passes on what another router has sent to endpoints of this node. A node cannot tell of others' endpoints, and not twice of one charge.
func (r *inbox) charges(m *feedpb.Charges, now time.Time) error {
	origin := m.GetInstance()
	made, err := readAll("charges", m.GetMade(), maxCharges, chargeOf)
	released, err2 := readAll("releases", m.GetReleased(), maxCharges, releaseOf)
	if err := cmp.Or(err, err2); err != nil {
		return err
	}
	switch {
	case origin == "" || len(origin) > maxInstance:
		return malformed("charges of no router, or of one with a name of %d bytes", len(origin))
	case origin == r.own:
		return nil
	case m.GetGone():
		defer func() { // after its last releases
			r.origins.drop(r.n, origin)
			r.n.r.mail.parted(r.n.out, []string{origin}, now.Add(-unsureFor), now)
		}()
		if slices.Contains(r.origins.of(r.n), origin) {
			r.partOf(origin, now.Add(-unsureFor))
		}
	default:
		fresh, ok := r.origins.add(r.n, origin)
		if !ok {
			r.metrics.charge(chargeDropped, len(made))
			return nil
		}
		if fresh {
			r.n.r.mail.met([]string{origin})
		}
	}
	for _, c := range made {
		endpoint, ok := r.endpoints[c.Endpoint]
		if !ok || !r.origins.charged(r.n, chargeName{origin, c.Pool, c.Number}) {
			r.metrics.charge(chargeDropped, 1)
			continue
		}
		c.Endpoint = endpoint
		r.metrics.charge(chargeReceived, 1)
		r.fleet.Charge(origin, c)
	}
	for _, c := range released {
		if r.origins.mayRelease(r.n, chargeName{origin, c.Pool, c.Number}) {
			r.metrics.charge(chargeReceived, 1)
			r.fleet.Release(origin, c.Pool, c.Number)
		}
	}
	return nil
}

// record passes on a record of one of this router's decisions.
func (r *inbox) record(m *feedpb.Record) error {
	rec, err := recordOf(m)
	if err != nil {
		return malformed("%v", err)
	}
	if rec.Instance != r.own {
		r.metrics.record(recordForeign)
		return nil
	}
	r.metrics.record(recordReceived)
	r.fleet.Record(rec)
	return nil
}
