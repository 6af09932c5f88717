package feed

import (
	"cmp"
	"errors"
	"fmt"

	"google.golang.org/grpc"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// invalid is a message that no router sends.
type invalid struct{ error }

func bad(format string, args ...any) error { return &invalid{fmt.Errorf(format, args...)} }

// receive hands over the router's hello, waits until its stream has joined, and takes what it sends until it ends.
func (s *service) receive(g grpc.BidiStreamingServer[feedpb.RouterMessage, feedpb.NodeMessage], hello chan<- *feedpb.RouterHello, joined <-chan *stream) error {
	m, err := g.Recv()
	if err != nil {
		return err
	}
	h := m.GetHello()
	if err := checkHello(h); err != nil {
		return &invalid{err}
	}
	hello <- h
	st := <-joined
	if st == nil {
		return nil // refused
	}
	for {
		m, err := g.Recv()
		if err != nil {
			return err
		}
		if err := s.node.take(st, m); err != nil {
			return err
		}
	}
}

func checkHello(h *feedpb.RouterHello) error {
	switch {
	case h == nil:
		return errors.New("the first message is no hello")
	case h.GetInstance() == "":
		return errors.New("hello without an instance")
	}
	return cmp.Or(short("instance", h.GetInstance(), maxInstance), short("release", h.GetRelease(), maxName))
}

// take takes one message of a router. What it does not know it ignores.
func (n *Node) take(st *stream, m *feedpb.RouterMessage) error {
	switch m := m.GetMessage().(type) {
	case *feedpb.RouterMessage_Hello:
		return bad("a second hello")
	case *feedpb.RouterMessage_Charges:
		return n.takeCharges(st, m.Charges)
	case *feedpb.RouterMessage_Record:
		return n.takeRecord(st, m.Record)
	case *feedpb.RouterMessage_Witness:
		return n.takeWitness(st, m.Witness)
	}
	return nil
}

// The quarters of a queue up to which messages of other routers get in. Charges make room for blocks; a release is worth more than the charge that
// it ends, because what is charged and not released counts for as long as it might have taken.
const (
	quartersCharges  = 2
	quartersReleases = 3
)

// takeCharges passes charges on to the routers other than the one that made them.
func (n *Node) takeCharges(st *stream, c *feedpb.Charges) error {
	if err := cmp.Or(few("charges", len(c.GetMade()), maxCharges), few("releases", len(c.GetReleased()), maxCharges)); err != nil {
		return &invalid{err}
	}
	for _, p := range c.GetMade() {
		if _, err := chargeOf(p); err != nil {
			return &invalid{err}
		}
	}
	for _, p := range c.GetReleased() {
		if _, err := releaseOf(p); err != nil {
			return &invalid{err}
		}
	}
	made, released := len(c.GetMade()), len(c.GetReleased())
	if made+released == 0 {
		return nil
	}
	// Who is connected is not gone, whatever it says.
	all := message{kind: kindCharges, charges: made + released, data: encodeCharges(&feedpb.Charges{Instance: st.instance, Made: c.GetMade(), Released: c.GetReleased()})}
	less := all
	if made > 0 {
		less.charges, less.data = released, encodeCharges(&feedpb.Charges{Instance: st.instance, Released: c.GetReleased()})
	}
	metrics := n.o.Metrics
	for _, other := range n.streams() {
		switch {
		case other.instance == st.instance:
		case other.pass(all, quartersCharges):
		case released > 0 && other.pass(less, quartersReleases):
			metrics.charges[dropped].Add(float64(made))
		default:
			metrics.charges[dropped].Add(float64(made + released))
		}
	}
	return nil
}

// takeRecord passes a record on to the router whose decision it is, at its latest stream.
func (n *Node) takeRecord(st *stream, p *feedpb.Record) error {
	r, err := recordOf(p)
	if err != nil {
		return &invalid{err}
	}
	var to *stream
	if r.Instance != st.instance {
		for _, other := range n.streams() {
			if other.instance == r.Instance {
				to = other
			}
		}
	}
	if to == nil {
		n.o.Metrics.records[unknown].Inc()
	} else if !to.pass(message{kind: kindRecord, data: encodeRecord(p)}, quartersReleases) {
		n.o.Metrics.records[dropped].Inc()
	}
	return nil
}
