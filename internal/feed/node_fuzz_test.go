package feed

import (
	"testing"

	"google.golang.org/grpc/mem"
	"google.golang.org/protobuf/proto"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// FuzzNodeReceives checks for any bytes of two routers, one message after the other, that
//
//   - a message is taken or ends its stream, and whatever goes to the other router is one that a router of this release takes;
//   - charges come in the name of the router that made them, and records to the one whose decision it was;
//   - what is queued stays within its bound;
//   - a witness is told as it was sent, if its source wants it, and to nobody else.
func FuzzNodeReceives(f *testing.F) {
	add := func(m *feedpb.RouterMessage) {
		data, err := proto.Marshal(m)
		check(f, err)
		f.Add(data, data[:len(data)/2], true)
	}
	c := Charge{Pool: "chat", Endpoint: "10.0.0.1:8000", Rank: 3, Number: 7, Uncached: 10, Prompt: 20, Key: 30}
	add(hello("a"))
	add(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Charges{Charges: &feedpb.Charges{
		Instance: "x", Gone: true, Made: []*feedpb.Charge{c.proto(), c.proto()}, Released: []*feedpb.Release{Release{"chat", 7}.proto()},
	}}})
	add(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Record{Record: Record{Instance: "b", ID: "b-1", Pool: "chat", Code: 200}.proto()}})
	add(&feedpb.RouterMessage{Message: &feedpb.RouterMessage_Record{Record: Record{Instance: "a", ID: "a-1"}.proto()}})
	add(witnessed(1, someHashes(3)))
	add(witnessed(2, someHashes(2)))

	f.Fuzz(func(t *testing.T, first, second []byte, turn bool) {
		n := testNode(t, NodeOptions{})
		hearer := &hashHearer{}
		s := n.Source()
		n.announceOne(s)
		s.TellHashes(hearer)
		s.Wanted(someWant())
		routers := []*stream{n.newStream("a", "", ""), n.newStream("b", "", "")}
		for _, st := range routers {
			st.queue.limit = 4096
			n.join(st)
			defer st.end()
			for _, _, ok := st.next(); ok; _, _, ok = st.next() {
				continue // what it is told at first
			}
		}
		for _, data := range [][]byte{first, second, first} {
			from, to := routers[0], routers[1]
			if turn {
				from, to = to, from
			}
			turn = !turn
			var m feedpb.RouterMessage
			if err := (codec{}).Unmarshal(mem.BufferSlice{mem.SliceBuffer(data)}, &m); err != nil {
				continue
			}
			if err := checkHello(m.GetHello()); (err == nil) != (m.GetHello() != nil && m.GetHello().GetInstance() != "" &&
				len(m.GetHello().GetInstance()) <= maxInstance && len(m.GetHello().GetRelease()) <= maxName) {
				t.Errorf("hello %v: %v", m.GetHello(), err)
			}
			if err := n.take(from, &m); err != nil {
				if !to.queue.empty() || hearer.all() != nil {
					t.Errorf("%v, and still something of it is passed on", err)
				}
				continue
			}
			if !from.queue.empty() {
				t.Error("a router hears of itself")
			}
			told := hearer.all()
			hearer.got = nil
			if w := m.GetWitness(); w == nil || w.GetSource() != s.Number() || w.GetBlockSize() != 16 {
				if told != nil {
					t.Errorf("of %v is told %v", &m, told)
				}
			} else if len(told) != 1 || !proto.Equal(witnessProto(s.Number(), &told[0]), w) {
				t.Errorf("of %v is told %v", w, told)
			}
			if to.queue.bytes > to.queue.limit {
				t.Errorf("%d bytes are queued", to.queue.bytes)
			}
			for {
				got, peers, ok := to.next()
				if !ok || peers {
					break
				}
				var out feedpb.NodeMessage
				if err := proto.Unmarshal(got.data, &out); err != nil {
					t.Fatal(err)
				}
				switch k := out.GetMessage().(type) {
				case *feedpb.NodeMessage_Charges:
					if k.Charges.GetInstance() != from.instance || k.Charges.GetGone() || len(k.Charges.GetMade()) > maxCharges {
						t.Errorf("charges %v", k)
					}
					for _, p := range k.Charges.GetMade() {
						if _, err := chargeOf(p); err != nil {
							t.Error(err)
						}
					}
					for _, p := range k.Charges.GetReleased() {
						if _, err := releaseOf(p); err != nil {
							t.Error(err)
						}
					}
				case *feedpb.NodeMessage_Record:
					if _, err := recordOf(k.Record); err != nil || k.Record.GetInstance() != to.instance {
						t.Errorf("record %v: %v", k, err)
					}
				default:
					t.Errorf("a router is told %v", &out)
				}
			}
		}
	})
}
