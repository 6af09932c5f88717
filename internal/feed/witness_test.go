package feed

import (
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// hashHearer writes down what it is told of.
type hashHearer struct {
	mu  sync.Mutex
	got []subscriber.Hashes
}

func (h *hashHearer) WitnessHashes(one subscriber.Hashes) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.got = append(h.got, one)
}

func (h *hashHearer) all() []subscriber.Hashes {
	h.mu.Lock()
	defer h.mu.Unlock()
	return slices.Clone(h.got)
}

// someWant is what a subscriber wants that knows its engine's block size.
func someWant() subscriber.Want {
	return subscriber.Want{Yes: true, BlockSize: 16, Tagged: true, Chains: []subscriber.Chain{{Algorithm: "sha256", None: [32]byte{1, 31: 2}}, {Algorithm: "sglang"}}}
}

// someHashes are those of a prompt of so many blocks.
func someHashes(blocks int) subscriber.Hashes {
	h, ok := subscriber.NewHasher("chat", someWant()).Hash(subscriber.Prompt{Adapter: "law", AdapterPath: "/law", Salt: "s", Tokens: make([]uint32, 16*blocks)})
	if !ok {
		panic("no hashes")
	}
	return h
}

func witnessed(source uint32, h subscriber.Hashes) *feedpb.RouterMessage {
	return &feedpb.RouterMessage{Message: &feedpb.RouterMessage_Witness{Witness: witnessProto(source, &h)}}
}

func tellWanted(source uint32, w subscriber.Want) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Wanted{Wanted: wantedProto(source, w)}}
}

// TestWitnessCodec: what is sent is what is read.
func TestWitnessCodec(t *testing.T) {
	for _, w := range []subscriber.Want{{}, {Yes: true}, someWant()} {
		data, err := proto.Marshal(wantedProto(7, w))
		check(t, err)
		p := &feedpb.Wanted{}
		check(t, proto.Unmarshal(data, p))
		got, err := wantOf(p)
		if diff := cmp.Diff(w, got); err != nil || diff != "" || p.GetSource() != 7 {
			t.Errorf("%+v: %v %s", w, err, diff)
		}
	}
	h := someHashes(3)
	data, err := proto.Marshal(witnessProto(7, &h))
	check(t, err)
	p := &feedpb.Witness{}
	check(t, proto.Unmarshal(data, p))
	got, err := witnessOf(p)
	if diff := cmp.Diff(h, got); err != nil || diff != "" || p.GetSource() != 7 {
		t.Errorf("%v %s", err, diff)
	}
}

// TestWitnessesAreTaken: routers are told what a source wants, and what they send goes to its subscriber, in bounds and for as long as it is wanted.
func TestWitnessesAreTaken(t *testing.T) {
	x := newSite(t, NodeOptions{}, func(n *Node) {
		now := time.Now()
		n.now = func() time.Time { return now }
	})
	wanted := func(w watching, yes bool) {
		t.Helper()
		m := find(t, w, "a wish", func(m *feedpb.NodeMessage) bool { return m.GetWanted() != nil && m.GetWanted().GetPrompts() == yes }).GetWanted()
		if got, err := wantOf(m); err != nil || m.GetSource() != x.s.Number() || yes && !cmp.Equal(got, someWant()) {
			t.Errorf("told %v: %v", m, err)
		}
	}
	count := func(o outcome) float64 { return testutil.ToFloat64(x.n.o.Metrics.witnesses[o]) }
	hearer := &hashHearer{}
	x.s.TellHashes(hearer)
	first, _ := watch(t, dial(t, x.address), "first")
	check(t, first.Send(witnessed(x.s.Number(), someHashes(2)))) // nobody has asked
	until(t, "it is not wanted", func() bool { return count(unwanted) == 1 })

	x.s.Wanted(someWant())
	wanted(first, true)
	late, _ := watch(t, dial(t, x.address), "late") // is told when it comes
	wanted(late, true)
	other := someHashes(2)
	other.BlockSize = 32
	for _, m := range []*feedpb.RouterMessage{witnessed(x.s.Number(), other), witnessed(x.s.Number()+1, someHashes(2)), witnessed(x.s.Number(), someHashes(3))} {
		check(t, late.Send(m))
	}
	until(t, "one is taken", func() bool { return count(taken) == 1 })
	if diff := cmp.Diff([]subscriber.Hashes{someHashes(3)}, hearer.all()); diff != "" || count(unwanted) != 3 {
		t.Errorf("%v were not wanted, got (-want +got):\n%s", count(unwanted), diff)
	}

	small, long := someHashes(3), someHashes(subscriber.MaxHashed)
	for range 10 {
		check(t, late.Send(witnessed(x.s.Number(), long)))
	}
	until(t, "all are counted", func() bool { return count(taken)+count(dropped) == 11 })
	if n := count(taken) - 1; n != float64((witnessBurst-small.Numbers())/long.Numbers()) || n == 0 || n != float64(len(hearer.all())-1) {
		t.Errorf("%v of 10 long ones are taken at once, %d heard", n, len(hearer.all()))
	}

	x.s.Wanted(subscriber.Want{})
	wanted(late, false)
	before := count(unwanted)
	check(t, late.Send(witnessed(x.s.Number(), someHashes(2))))
	until(t, "it is not wanted any more", func() bool { return count(unwanted) == before+1 })
	x.undisturbed(t)
}

// TestOddWitnesses: a stream with a witness that no router sends ends, and nothing of it is told.
func TestOddWitnesses(t *testing.T) {
	x := newSite(t, NodeOptions{})
	hearer := &hashHearer{}
	x.s.TellHashes(hearer)
	x.s.Wanted(someWant())
	for name, change := range map[string]func(w *feedpb.Witness){
		"no blocks":       func(w *feedpb.Witness) { w.Contents, w.Chains = nil, nil },
		"no block size":   func(w *feedpb.Witness) { w.BlockSize = 0 },
		"half a number":   func(w *feedpb.Witness) { w.Contents = w.Contents[1:] },
		"half a hash":     func(w *feedpb.Witness) { w.Chains[0].Hashes = w.Chains[0].Hashes[1:] },
		"too many blocks": func(w *feedpb.Witness) { w.Contents, w.Chains = make([]byte, (subscriber.MaxHashed+1)*keySize), nil },
		"more hashes":     func(w *feedpb.Witness) { w.Contents = w.Contents[:8] },
		"too many chains": func(w *feedpb.Witness) { w.Chains = make([]*feedpb.ChainHashes, maxChains+1) },
		"too long a name": func(w *feedpb.Witness) { w.Chains[0].Algorithm = strings.Repeat("x", maxName+1) },
		"too many in all": func(w *feedpb.Witness) {
			w.Contents = make([]byte, subscriber.MaxHashed*keySize)
			w.Chains = []*feedpb.ChainHashes{{Hashes: w.Contents}, {Hashes: w.Contents[:keySize]}}
		},
	} {
		m := witnessed(x.s.Number(), someHashes(3))
		change(m.GetWitness())
		w, _ := watch(t, dial(t, x.address), "odd")
		check(t, w.Send(m))
		var err error
		for err == nil {
			_, err = w.Recv()
		}
		if status.Code(err) != codes.InvalidArgument {
			t.Errorf("%s: %v", name, err)
		}
	}
	if got := hearer.all(); got != nil {
		t.Errorf("%d are told", len(got))
	}
	x.undisturbed(t)
}

// TestWantedSurvivesOverflow: a router whose queue was dropped is told what is wanted.
func TestWantedSurvivesOverflow(t *testing.T) {
	n := testNode(t, NodeOptions{})
	s := n.Source()
	n.announceOne(s)
	st := n.newStream("a", "", "")
	n.join(st)
	defer st.end()
	s.Wanted(someWant())
	st.mu.Lock()
	st.overflow(message{data: encodeAlive()})
	st.mu.Unlock()
	told := 0
	for m, _, ok := st.next(); ok; m, _, ok = st.next() {
		var p feedpb.NodeMessage
		check(t, proto.Unmarshal(m.data, &p))
		if w := p.GetWanted(); w != nil && w.GetPrompts() && w.GetSource() == s.Number() {
			told++
		}
	}
	if told != 1 {
		t.Errorf("told %d times", told)
	}
}

// TestRouterWitnesses: a router hashes the prompts that a source wants, once it knows how, and sends nothing else.
func TestRouterWitnesses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		<-l.up // the hello
		l.say(copyOf(1, 2)...)
		hearer := s.fleet.sink(sinkName).hearer
		rnd := rand.New(rand.NewPCG(1, 1))
		prompt := func(blocks int) subscriber.Prompt {
			p := subscriber.Prompt{Salt: "s"}
			for range 16*blocks + 3 {
				p.Tokens = append(p.Tokens, rnd.Uint32N(1000))
			}
			return p
		}
		sent := func() (all []subscriber.Hashes) {
			t.Helper()
			for range 60 {
				time.Sleep(time.Second)
				l.say(tellAlive()) // or the node counts as silent
			}
			for {
				select {
				case m := <-l.up:
					h, err := witnessOf(m.GetWitness())
					if err != nil || m.GetWitness().GetSource() != 7 {
						t.Errorf("sent %v: %v", m, err)
					}
					all = append(all, h)
				default:
					return all
				}
			}
		}
		hashed := func(w subscriber.Want, p subscriber.Prompt) subscriber.Hashes {
			h, _ := subscriber.NewHasher("chat", w).Hash(p)
			return h
		}
		p := prompt(3)
		hearer.Witness(p)
		if got := sent(); hearer.Wants() || got != nil {
			t.Errorf("nothing is wanted, and %d are sent", len(got))
		}
		unsized := someWant()
		unsized.BlockSize = 0
		l.say(tellWanted(7, unsized))
		hearer.Witness(p)
		if got := sent(); !hearer.Wants() || got != nil {
			t.Errorf("the block size is not known, and %d are sent", len(got))
		}
		l.say(tellWanted(7, someWant()))
		hearer.Witness(prompt(0)) // not one whole block
		q := prompt(5)
		hearer.Witness(q)
		if diff := cmp.Diff([]subscriber.Hashes{hashed(someWant(), p), hashed(someWant(), q)}, sent()); diff != "" {
			t.Error(diff)
		}
		// A flood is sent at its pace, and the rest is dropped.
		long := prompt(1000)
		for range 200 {
			hearer.Witness(long)
		}
		m := s.r.o.Metrics.witnesses
		all := len(sent())
		if n := testutil.ToFloat64(m.WithLabelValues("10.0.0.1:9010", "dropped")); all == 0 || all > 70 || int(n) != 200-all {
			t.Errorf("%d of 200 are sent, %v dropped", all, n)
		}
		if n := testutil.ToFloat64(m.WithLabelValues("10.0.0.1:9010", "sent")); int(n) != all+2 {
			t.Errorf("%v are sent", n)
		}

		l.say(tellWanted(7, subscriber.Want{}))
		if hearer.Wants() {
			t.Error("prompts are wanted")
		}
		l.say(tellWanted(7, someWant()))
		if !hearer.Wants() {
			t.Error("no prompts are wanted")
		}
		l.say(status.Error(codes.Unavailable, "gone"))
		if hearer.Wants() {
			t.Error("prompts are wanted by a node that is lost")
		}
	})
}

// TestOddWishes: a stream with a wish that no node sends ends.
func TestOddWishes(t *testing.T) {
	many := someWant()
	for range maxChains {
		many.Chains = append(many.Chains, many.Chains[0])
	}
	named := someWant()
	named.Chains[0].Algorithm = strings.Repeat("x", maxName+1)
	short := tellWanted(7, someWant())
	short.GetWanted().Chains[0].None = []byte{1}
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		for i, m := range []*feedpb.NodeMessage{tellWanted(7, many), tellWanted(7, named), short, tellWanted(8, someWant())} {
			l := s.answer()
			l.say(copyOf(1)...)
			l.say(m)
			if s.fleet.sink(sinkName).hearer.Wants() {
				t.Errorf("wish %d is taken", i)
			}
			if n := testutil.ToFloat64(s.r.o.Metrics.ended.WithLabelValues("10.0.0.1:9010", "invalid")); int(n) != i+1 {
				t.Errorf("after wish %d, %v streams ended as invalid", i, n)
			}
		}
		// What a newer node may say is none.
		newer := someWant()
		newer.Chains = append(newer.Chains, subscriber.Chain{Algorithm: "sha3"})
		l := s.answer()
		l.say(copyOf(1)...)
		l.say(tellWanted(7, newer))
		if !s.fleet.sink(sinkName).hearer.Wants() {
			t.Error("a way of hashing that is not known ends it all")
		}
	})
}
