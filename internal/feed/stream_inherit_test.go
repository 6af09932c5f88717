package feed

import (
	"slices"
	"testing"

	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/proto"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// TestStreamsInherit: what waits for a router when its stream ends goes to its later stream, in order, whichever end of the stream is seen first.
func TestStreamsInherit(t *testing.T) {
	for name, endFirst := range map[string]bool{"the sender ends first": true, "the stream leaves first": false} {
		t.Run(name, func(t *testing.T) {
			n := testNode(t, NodeOptions{})
			from, first := n.newStream("b", "", ""), n.newStream("a", "", "")
			n.join(from)
			n.join(first)
			defer from.end()
			send := func(number uint64) {
				t.Helper()
				check(t, n.take(from, &feedpb.RouterMessage{Message: &feedpb.RouterMessage_Charges{Charges: &feedpb.Charges{
					Made: []*feedpb.Charge{Charge{Pool: "chat", Endpoint: ":1", Number: number, Rank: -1}.proto()}, Released: []*feedpb.Release{{Pool: "chat", Number: number - 1}},
				}}}))
				check(t, n.take(from, &feedpb.RouterMessage{Message: &feedpb.RouterMessage_Record{Record: Record{Instance: "a", ID: "a-" + string(rune('0'+number))}.proto()}}))
			}
			send(1)
			second := n.newStream("a", "", "")
			n.join(second)
			defer second.end()
			n.others.Store(false)
			if endFirst {
				first.end()
				n.leave(first)
			} else {
				n.leave(first)
				first.end()
			}
			send(2)
			var records []string
			var charges []uint64
			for {
				m, peers, ok := second.next()
				if !ok && !peers {
					break
				}
				var d feedpb.NodeMessage
				check(t, proto.Unmarshal(m.data, &d))
				for _, c := range d.GetCharges().GetMade() {
					charges = append(charges, c.GetNumber())
				}
				if d.GetCharges().GetGone() {
					t.Error("a router is said to be gone")
				}
				if r := d.GetRecord(); r != nil {
					records = append(records, r.GetId())
				}
			}
			if !slices.Equal(records, []string{"a-1", "a-2"}) || !slices.Equal(charges, []uint64{1, 2}) {
				t.Errorf("the later stream brings the records %q and the charges %d", records, charges)
			}
			if !n.others.Load() {
				t.Error("who is gone meanwhile is not said")
			}
			if queued := testutil.ToFloat64(n.o.Metrics.queued) - float64(from.queue.bytes); queued != 0 || !first.queue.empty() || len(first.left) > 0 {
				t.Errorf("%v bytes are queued, %d messages left", queued, len(first.left))
			}
		})
	}
}

// TestInheritedIsBounded drops what does not fit, and counts it.
func TestInheritedIsBounded(t *testing.T) {
	n := testNode(t, NodeOptions{QueueBytes: 256 << 10})
	first, second := n.newStream("a", "", ""), n.newStream("a", "", "")
	record := message{kind: kindRecord, data: make([]byte, 1000)}
	for range 100 {
		if !first.pass(record, quartersReleases) || !second.pass(record, quartersReleases) {
			t.Fatal("no room")
		}
	}
	second.inherit(first)
	took := 0
	for ; !second.queue.empty(); took++ {
		second.next()
	}
	if lost := testutil.ToFloat64(n.o.Metrics.records[dropped]); took+int(lost) != 200 || lost == 0 || took < 150 {
		t.Errorf("%d were taken, %v dropped", took, lost)
	}
}
