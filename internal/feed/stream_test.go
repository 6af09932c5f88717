package feed

import "testing"

// A router that reads slowly may never have heard of an engine that comes and goes meanwhile. What it is told in place of what was dropped must not be of that one.
func TestOverflowOfAnnouncements(t *testing.T) {
	n := testNode(t, NodeOptions{QueueBytes: 256 << 10})
	stays, goes := n.Source(), n.Source()
	one := Replica{Endpoint: ":1", Pool: "chat", Sources: []uint32{stays.Number()}}
	n.Announce([]Replica{one})
	r := &receiver{stream: n.newStream("router", "", "10.0.0.1:1"), tree: flat(1), sources: map[uint32]*received{}}
	n.join(r.stream)
	defer n.leave(r.stream)
	defer r.stream.end()
	settle(t, r)

	n.Announce([]Replica{one, {Endpoint: ":2", Pool: "chat", Sources: []uint32{goes.Number()}}})
	full := message{data: encodeCharges(nil)}
	for r.stream.pass(full, 4) { // up to where the next announcement does not fit
	}
	n.Announce([]Replica{one})
	settle(t, r)
	if len(r.sources) != 1 || r.sources[stays.Number()] == nil || r.sources[stays.Number()].ends != 2 {
		t.Errorf("the router knows %v", r.sources)
	}
}
