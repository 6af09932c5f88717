package feed

import (
	"encoding/binary"
	"maps"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// script writes input for FuzzRouterReceives.
type script []byte

func (s script) step(op byte, payload []byte) script {
	s = append(s, op)
	s = binary.AppendUvarint(s, uint64(len(payload)))
	return append(s, payload...)
}

func (s script) say(op byte, all ...*feedpb.NodeMessage) script {
	for _, m := range all {
		data, err := proto.Marshal(m)
		if err != nil {
			panic(err)
		}
		s = s.step(op, data)
	}
	return s
}

// next takes a step off an input.
func (s script) next() (op byte, payload []byte, rest script) {
	op, s = s[0], s[1:]
	n, used := binary.Uvarint(s)
	if used <= 0 {
		return op, nil, nil
	}
	s = s[used:]
	n = min(n, uint64(len(s)))
	return op, s[:n], s[n:]
}

// Steps of a script; what is above stands for the first node's messages.
const (
	stepFirst  = iota // a message of the first node
	stepSecond        // of the second node, at the same address
	stepTime          // as many times 10 ms pass as the payload has bytes
	stepLost          // the first node's stream is lost and another one begins
	stepHonest        // the payload says what an honest node does meanwhile
	steps
)

// FuzzRouterReceives has three nodes say what the input is: two say anything at all, and one is honest and does what the input leads it to. None of
// them gets to speak for another's endpoints, and what the honest one has is known, prefix-closed, and exact when a copy has come.
func FuzzRouterReceives(f *testing.F) {
	first := []*feedpb.NodeMessage{
		tellReplicas(tellReplica(":8000", 7, 8), tellReplica("10.0.0.3:8000", 9)), tellConnected(7), tellBegin(7, 3), tellBlocks(7, "", 1, 2, 3), tellEnd(7),
		tellAdded(7, "\x01\x03", 4, 5), tellRemoved(7, "\x02\x03", 3, 2), tellReset(7, "cleared"), tellLoads(&feedpb.Load{Endpoint: ":8000", Running: 3}), tellPeersOf("a", "b"),
		tellCharges(&feedpb.Charges{Instance: "a", Made: []*feedpb.Charge{tellMade(":8000", 1), tellMade("10.0.0.3:8000", 1)}, Released: []*feedpb.Release{{Pool: "chat", Number: 1}}}),
		tellCharges(&feedpb.Charges{Instance: "a", Gone: true}), tellRecordFor("own"), tellRecordFor("other"), tellAlive(),
		tellWanted(7, someWant()), tellWanted(9, subscriber.Want{Yes: true}), tellWanted(8, subscriber.Want{}),
	}
	f.Add([]byte(script{}.say(stepFirst, first...).say(stepSecond, first...).step(stepTime, make([]byte, 200)).step(stepLost, nil).say(stepFirst, first...)))
	f.Add([]byte(script{}.say(stepFirst, first[:4]...).step(stepLost, nil).step(stepTime, make([]byte, 299)).say(stepFirst, first[:5]...).step(stepTime, make([]byte, 99))))
	f.Add([]byte(script{}.say(stepFirst, tellReplicas(tellReplica(":8000", 7))).say(stepSecond, tellReplicas(tellReplica(":8000", 7))).say(stepFirst, tellReplicas()).say(stepSecond, tellReplicas(tellReplica(":8000", 7)))))
	f.Add([]byte(script{}.step(stepHonest, []byte("\x00\x01\x02\x03\x01\x11\x21\x31\x04\x05\x06\x14\x24\x05\x05\x05\x06\x02\x12\x03\x13\x07\x04\x05\x06\x08\x09\x0a"))))
	f.Fuzz(func(t *testing.T, data []byte) {
		if len(data) < 1<<16 {
			play(t, data)
		}
	})
}

// TestHonestNode leads a node through random histories, in which streams are lost at any point.
func TestHonestNode(t *testing.T) {
	for seed := range uint64(300) {
		r := rand.New(rand.NewPCG(seed, 3))
		var s script
		for range 100 {
			if r.IntN(4) == 0 {
				s = s.step(stepTime, make([]byte, r.IntN(200)))
			}
			what := make([]byte, r.IntN(30))
			for i := range what {
				what[i] = byte(r.IntN(8)) // what comes often
				if r.IntN(20) == 0 {
					what[i] = byte(r.IntN(11))
				}
				what[i] = what[i]%11 + 11*byte(r.IntN(23))
			}
			s = s.step(stepHonest, what)
		}
		play(t, s)
	}
}

// play leads a script to its end.
func play(t *testing.T, data []byte) {
	b := newBench(t)
	b.fleet.parent = honestParent
	nodes := [2]*watched{b.node("10.0.0.1:9010"), b.node("10.0.0.1:9011")}
	honest := newHonestNode(b)
	dead := [2]bool{}
	restart := func(i int) {
		nodes[i].rec.lost(b.now, b.now)
		nodes[i].rec.begin()
		dead[i] = false
	}
	for in := script(data); len(in) > 0; {
		var op byte
		var payload []byte
		op, payload, in = in.next()
		switch op % steps {
		case stepFirst, stepSecond:
			i := int(op % steps)
			m := &feedpb.NodeMessage{}
			if proto.Unmarshal(payload, m) != nil {
				continue
			}
			if dead[i] {
				restart(i)
			}
			dead[i] = nodes[i].rec.apply(m, b.now) != nil
		case stepTime:
			b.now = b.now.Add(time.Duration(len(payload)%1000) * 10 * time.Millisecond)
			for _, n := range []*watched{nodes[0], nodes[1], honest.n} {
				n.rec.tick(b.now)
				n.rec.due()
			}
		case stepLost:
			restart(0)
		case stepHonest:
			for _, what := range payload {
				honest.act(what)
			}
		}
		for i, n := range nodes {
			for _, endpoint := range b.fleet.endpoints(n.name) {
				if !strings.HasPrefix(endpoint, "10.0.0.1:") {
					t.Fatalf("node %d serves %s", i, endpoint)
				}
			}
			n.status()
		}
		honest.check()
	}
	served := map[string]int{}
	for _, n := range append(nodes[:], honest.n) {
		for _, endpoint := range b.fleet.endpoints(n.name) {
			if served[endpoint]++; served[endpoint] > 1 {
				t.Errorf("%s is served by two nodes", endpoint)
			}
		}
	}
	for name, c := range b.fleet.charges {
		if !strings.HasPrefix(c.Endpoint, "10.0.0.1:") {
			t.Errorf("charge %v is of %s", name, c.Endpoint)
		}
	}
	for _, r := range b.fleet.records {
		if r.Instance != "own" {
			t.Errorf("a record of %s", r.Instance)
		}
	}
	for _, n := range append(nodes[:], honest.n) {
		n.leave(true)
	}
	for _, s := range b.fleet.sinks {
		if !s.closed {
			t.Errorf("%s is left open", s.name)
		}
	}
	if len(b.fleet.served) != 0 || len(b.r.owners.claims) != 0 || len(b.r.origins.nodes) != 0 {
		t.Errorf("left are %v, %v, %v", b.fleet.served, b.r.owners.claims, b.r.origins.nodes)
	}
}

// The honest node's blocks are 4 chains of 16 blocks: block 16c+i comes after 16c+i−1. Their keys are too large to be guessed.
const honestKey = 0xfeedfeed_00000000

func honestParent(key uint64) (uint64, bool) {
	return key - 1, key>>32 == honestKey>>32 && key&0xf != 0
}

// honestNode is a node with one source. It keeps its promises: the order of keys, what is told when.
type honestNode struct {
	b      *bench
	n      *watched
	source uint32
	log    []uint64        // in the order in which blocks were stored; 0: removed
	device map[uint64]bool // of those
	depth  [4]int          // of each chain
	near   [4]int          // how much of it is on the device

	begun, copying, known bool // the router knows at least what was known at the last End, or Reset
	at                    int  // of log, up to where the copy has come
}

func newHonestNode(b *bench) *honestNode {
	h := &honestNode{b: b, n: b.node("10.0.0.2:9010"), device: map[uint64]bool{}}
	h.greet()
	return h
}

func (h *honestNode) say(m ...*feedpb.NodeMessage) { h.b.say(h.n, m...) }

// greet begins a stream.
func (h *honestNode) greet() {
	h.source++
	h.begun, h.copying, h.at = false, false, 0
	h.say(tellReplicas(tellReplica(":8000", h.source)), tellConnected(h.source))
}

func (h *honestNode) live() (keys []uint64) {
	return slices.DeleteFunc(slices.Clone(h.log), func(k uint64) bool { return k == 0 })
}

func (h *honestNode) key(chain, i int) uint64 { return honestKey | uint64(chain<<4|i) }

func (h *honestNode) tell(m *feedpb.NodeMessage) {
	if h.begun {
		h.say(m)
	}
}

// act does what a byte says, if that is possible.
func (h *honestNode) act(what byte) {
	chain := int(what>>4) % 4
	switch what % 11 {
	case 0, 1: // the chain grows, on the device if it can
		if i := h.depth[chain]; i < 16 {
			key, tiers := h.key(chain, i), "\x01"
			h.log = append(h.log, key)
			h.depth[chain]++
			if what%11 == 0 && h.near[chain] == i {
				h.device[key], tiers = true, ""
				h.near[chain]++
			}
			h.tell(tellAdded(h.source, tiers, key))
		}
	case 2: // its end goes
		if i := h.depth[chain] - 1; i >= 0 {
			key, tiers := h.key(chain, i), "\x01"
			if h.device[key] {
				tiers = "\x03"
			}
			h.log[slices.Index(h.log, key)] = 0
			delete(h.device, key)
			h.depth[chain]--
			h.near[chain] = min(h.near[chain], i)
			h.tell(tellRemoved(h.source, tiers, key))
		}
	case 3: // its end leaves the device
		if i := h.near[chain] - 1; i >= 0 {
			delete(h.device, h.key(chain, i))
			h.near[chain]--
			h.tell(tellRemoved(h.source, "\x02", h.key(chain, i)))
		}
	case 4: // a block comes back to the device
		if i := h.near[chain]; i < h.depth[chain] {
			h.device[h.key(chain, i)] = true
			h.near[chain]++
			h.tell(tellAdded(h.source, "\x02", h.key(chain, i)))
		}
	case 5: // a copy begins, also anew
		h.say(tellBegin(h.source, len(h.live())))
		h.begun, h.copying, h.at = true, true, 0
	case 6: // a part of it
		if h.copying {
			to := min(h.at+1+int(what>>4), len(h.log))
			var keys []uint64
			var tiers []byte
			for _, key := range h.log[h.at:to] {
				if key != 0 {
					tier := tierAny
					if h.device[key] {
						tier = tierBoth
					}
					keys, tiers = append(keys, key), append(tiers, tier)
				}
			}
			h.at = to
			h.say(tellBlocks(h.source, string(tiers), keys...))
		}
	case 7: // its end, if all has been said
		if h.copying && h.at == len(h.log) {
			h.say(tellEnd(h.source))
			h.copying, h.known = false, true
		}
	case 8: // the engine forgets all
		h.log, h.depth, h.near, h.device, h.at = nil, [4]int{}, [4]int{}, map[uint64]bool{}, 0
		h.say(tellReset(h.source, "cleared"))
		h.begun = true
	case 9: // the stream is lost
		h.n.rec.lost(h.b.now, h.b.now)
		h.n.rec.begin()
		h.greet()
	case 10: // as after a slow router
		h.n.rec.lost(h.b.now, h.b.now.Add(time.Duration(chain)*time.Second))
		h.n.rec.begin()
		h.greet()
	}
}

// check compares what the router knows while no copy is under way on the stream.
func (h *honestNode) check() {
	s := h.b.fleet.sink("chat 10.0.0.2:8000 0")
	if s == nil {
		h.b.t.Fatal("the honest node has no sink")
	}
	if !h.begun || h.copying {
		return
	}
	want := newBlockSet()
	for _, key := range h.live() {
		want[subscriber.Any][key] = true
		if h.device[key] {
			want[subscriber.Device][key] = true
		}
	}
	if got := s.snapshot(); !got.equal(want) {
		h.b.t.Fatalf("the router knows %x, the node has %x", slices.Sorted(maps.Keys(got[subscriber.Any])), slices.Sorted(maps.Keys(want[subscriber.Any])))
	}
	if !s.about.Connected {
		h.b.t.Fatal("what is followed is not matched")
	}
}
