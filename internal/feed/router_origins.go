package feed

import (
	"slices"
	"sync"
)

// maxSeen is after how many charges of other routers the oldest are forgotten.
const maxSeen = 1 << 16

// chargeName names a charge of another router.
type chargeName struct {
	origin, pool string
	number       uint64
}

// origins are the other routers that watch the nodes of this one, and the charges they told of lately. A router is gone when no node that is connected
// has it any more.
type origins struct {
	own   string // instance of this router
	fleet Fleet

	telling sync.Mutex // held while the fleet is told who is gone; taken before mu

	mu    sync.Mutex
	nodes map[string][]*watched // that have it, by instance
	seen  seenCharges
}

// set makes a node's peers exactly these.
func (o *origins) set(n *watched, instances []string) {
	wanted := map[string]bool{}
	for _, i := range instances {
		if i != o.own && i != "" {
			wanted[i] = true
		}
	}
	o.telling.Lock()
	defer o.telling.Unlock()
	var gone []string
	o.mu.Lock()
	for instance := range o.nodes {
		if !wanted[instance] && o.dropLocked(n, instance) {
			gone = append(gone, instance)
		}
	}
	for instance := range wanted {
		o.addLocked(n, instance)
	}
	o.mu.Unlock()
	for _, instance := range gone {
		o.fleet.Gone(instance)
	}
}

// add enters one peer of a node, which may be there already. ok is false when the node has too many.
func (o *origins) add(n *watched, instance string) (fresh, ok bool) {
	o.telling.Lock() // until the fleet knows that it was gone before
	defer o.telling.Unlock()
	o.mu.Lock()
	defer o.mu.Unlock()
	before := n.peers
	ok = o.addLocked(n, instance)
	return n.peers > before, ok
}

func (o *origins) addLocked(n *watched, instance string) bool {
	if slices.Contains(o.nodes[instance], n) {
		return true
	}
	if n.peers >= maxPeers {
		return false
	}
	if o.nodes == nil {
		o.nodes = map[string][]*watched{}
	}
	o.nodes[instance] = append(o.nodes[instance], n)
	n.peers++
	return true
}

// drop says that a node does not have the peer any more.
func (o *origins) drop(n *watched, instance string) {
	o.telling.Lock()
	defer o.telling.Unlock()
	o.mu.Lock()
	gone := o.dropLocked(n, instance)
	o.mu.Unlock()
	if gone {
		o.fleet.Gone(instance)
	}
}

// dropLocked reports whether no node has the peer any more.
func (o *origins) dropLocked(n *watched, instance string) (gone bool) {
	i := slices.Index(o.nodes[instance], n)
	if i < 0 {
		return false
	}
	n.peers--
	if all := slices.Delete(o.nodes[instance], i, i+1); len(all) > 0 {
		o.nodes[instance] = all
		return false
	}
	delete(o.nodes, instance)
	return true
}

// of returns the peers of a node.
func (o *origins) of(n *watched) []string {
	o.mu.Lock()
	defer o.mu.Unlock()
	var peers []string
	for instance, nodes := range o.nodes {
		if slices.Contains(nodes, n) {
			peers = append(peers, instance)
		}
	}
	return peers
}

// count is how many peers a node has.
func (o *origins) count(n *watched) int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return n.peers
}

// with returns the nodes that have the peer.
func (o *origins) with(instance string) []*watched {
	o.mu.Lock()
	defer o.mu.Unlock()
	return append([]*watched(nil), o.nodes[instance]...)
}

// charged enters a charge. It reports false for one that is known already.
func (o *origins) charged(n *watched, c chargeName) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.seen.add(n, c)
}

// mayRelease says whether a node may release a charge: not one that another node told of.
func (o *origins) mayRelease(n *watched, c chargeName) bool {
	o.mu.Lock()
	defer o.mu.Unlock()
	by := o.seen.get(c)
	return by == nil || by == n
}

// seen remembers charges for a while, at least the last maxSeen and at most twice as many. What is released stays: a charge that came again after its
// release would never be released.
type seenCharges struct {
	young, old map[chargeName]*watched
}

func (s *seenCharges) get(c chargeName) *watched {
	if n, ok := s.young[c]; ok {
		return n
	}
	return s.old[c]
}

func (s *seenCharges) add(n *watched, c chargeName) bool {
	if s.get(c) != nil {
		return false
	}
	if len(s.young) >= maxSeen {
		s.young, s.old = nil, s.young
	}
	if s.young == nil {
		s.young = map[chargeName]*watched{}
	}
	s.young[c] = n
	return true
}
