package feed

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"slices"
	"testing"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protodesc"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/descriptorpb"
	"google.golang.org/protobuf/types/dynamicpb"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// older makes messages of testdata/older.binpb.
type older struct{ file protoreflect.FileDescriptor }

func readOlder(t *testing.T) older {
	t.Helper()
	data, err := os.ReadFile("testdata/older.binpb")
	check(t, err)
	var set descriptorpb.FileDescriptorSet
	check(t, proto.Unmarshal(data, &set))
	files, err := protodesc.NewFiles(&set)
	check(t, err)
	file, err := files.FindFileByPath("older.proto")
	check(t, err)
	return older{file}
}

func (o older) message(name protoreflect.Name) *dynamicpb.Message {
	return dynamicpb.NewMessage(o.file.Messages().ByName(name))
}

// fields are set by name.
func fields(m protoreflect.Message, values map[string]any) protoreflect.Message {
	for name, v := range values {
		f := m.Descriptor().Fields().ByName(protoreflect.Name(name))
		if list, ok := v.([]any); ok {
			l := m.Mutable(f).List()
			for _, e := range list {
				l.Append(protoreflect.ValueOf(e))
			}
			continue
		}
		m.Set(f, protoreflect.ValueOf(v))
	}
	return m
}

// say makes a message of one of an oneof's kinds.
func (o older) say(outer, kind, inner protoreflect.Name, values map[string]any) *dynamicpb.Message {
	m := o.message(outer)
	m.Set(m.Descriptor().Fields().ByName(kind), protoreflect.ValueOf(fields(o.message(inner), values)))
	return m
}

func get(m protoreflect.Message, name protoreflect.Name) protoreflect.Value {
	return m.Get(m.Descriptor().Fields().ByName(name))
}

// kind is what a message of an oneof has, "" for what is not known.
func kindOf(m *dynamicpb.Message) (protoreflect.Name, protoreflect.Message) {
	f := m.WhichOneof(m.Descriptor().Oneofs().Get(0))
	if f == nil {
		return "", nil
	}
	return f.Name(), m.Get(f).Message()
}

// TestOlderRouter watches a node of this release.
func TestOlderRouter(t *testing.T) {
	o := readOlder(t)
	x := newSite(t, NodeOptions{})
	x.n.Announce([]Replica{{
		Endpoint: ":8000", Pool: "chat", Models: []string{"llama"}, Adapters: []Adapter{{"law", "/law", "llama"}}, Listing: ListingTold, Sources: []uint32{x.s.Number()},
		Files: []File{{"config.json", [32]byte{1}, 1}}, Draining: true, Problems: []string{"hybrid"},
	}})
	x.s.Describe(subscriber.Description{Connected: true, BlockSize: 16, Problem: subscriber.ProblemHybrid, Coldest: subscriber.MediumDisk})
	x.s.Wanted(someWant())
	x.grow(100)
	x.good.follow(t, x.stream, x.s, x.has)

	c, err := grpc.NewClient("passthrough:///"+x.address, grpc.WithTransportCredentials(insecure.NewCredentials()))
	check(t, err)
	defer c.Close()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	s, err := c.NewStream(ctx, &grpc.StreamDesc{ClientStreams: true, ServerStreams: true}, feedpb.Feed_Watch_FullMethodName)
	check(t, err)
	check(t, s.SendMsg(o.say("RouterMessage", "hello", "RouterHello", map[string]any{"protocol": uint32(1), "oldest": uint32(1), "instance": "older"})))
	keys, unknown, connected := map[uint64]bool{}, 0, false
	for step := 0; len(keys) != 150; {
		m := o.message("NodeMessage")
		check(t, s.RecvMsg(m))
		switch kind, inner := kindOf(m); kind {
		case "":
			unknown++
		case "hello":
			if got := get(inner, "protocol").Uint(); got != 1 {
				t.Errorf("version %d", got)
			}
		case "replicas":
			r := get(inner, "replicas").List().Get(0).Message()
			if get(r, "endpoint").String() != ":8000" || get(r, "pool").String() != "chat" || get(r, "sources").List().Len() != 1 {
				t.Errorf("replica %v", r)
			}
		case "state":
			connected = get(inner, "connected").Bool() && get(inner, "block_size").Uint() == 16
		case "blocks", "delta":
			name := protoreflect.Name("keys")
			if kind == "delta" {
				name = "added"
			}
			list := get(inner, name).Bytes()
			for i := range len(list) / keySize {
				keys[keyAt(list, i)] = true
			}
		}
		if len(keys) == 100 && step == 0 { // what comes later is said in a delta
			step++
			x.n.Loads([]Load{{Endpoint: ":8000"}})
			x.grow(50)
		}
	}
	if unknown == 0 || !connected {
		t.Errorf("%d messages are not known, connected %t", unknown, connected)
	}
	x.undisturbed(t)
}

// TestNewerRouter says what a node of this release does not know.
func TestNewerRouter(t *testing.T) {
	x := newSite(t, NodeOptions{})
	x.grow(10)
	w, err := dial(t, x.address).Watch(t.Context())
	check(t, err)
	h := hello("newer")
	h.GetHello().Protocol = 9
	unknown := protowire.AppendString(protowire.AppendTag(nil, 999, protowire.BytesType), "what is this")
	h.GetHello().ProtoReflect().SetUnknown(unknown)
	check(t, w.Send(h))
	m, err := w.Recv()
	check(t, err)
	if m.GetHello().GetProtocol() != Protocol {
		t.Errorf("hello %v", m)
	}
	later := &feedpb.RouterMessage{}
	later.ProtoReflect().SetUnknown(unknown)
	check(t, w.Send(later))
	check(t, w.Send(witnessed(x.s.Number(), someHashes(2)))) // that nobody has asked for
	(&receiver{tree: x.tree}).follow(t, w, x.s, x.has)
	x.undisturbed(t)
}

// TestOlderNode is watched by a router of this release.
func TestOlderNode(t *testing.T) {
	o := readOlder(t)
	l, err := net.Listen("tcp", "127.0.0.1:0")
	check(t, err)
	node := func(_ any, s grpc.ServerStream) error {
		m := o.message("RouterMessage")
		if err := s.RecvMsg(m); err != nil {
			return err
		}
		if kind, inner := kindOf(m); kind != "hello" || get(inner, "instance").String() != "own" {
			t.Errorf("%s %v", kind, inner)
		}
		list := func(keys ...uint64) (data []byte) {
			for _, k := range keys {
				data = appendKey(data, k)
			}
			return data
		}
		one := uint32(1)
		replica := fields(o.message("Replica"), map[string]any{
			"endpoint": ":8000", "pool": "chat", "models": []any{"llama"}, "engine": "vllm", "block_size": uint32(16), "sources": []any{one},
		})
		for _, m := range []*dynamicpb.Message{
			o.say("NodeMessage", "hello", "NodeHello", map[string]any{"protocol": one, "name": "older", "instance": "x"}),
			o.say("NodeMessage", "replicas", "Replicas", map[string]any{"replicas": []any{replica}}),
			o.say("NodeMessage", "state", "State", map[string]any{"source": one, "connected": true, "block_size": uint32(16)}),
			o.say("NodeMessage", "begin", "Begin", map[string]any{"source": one}),
			o.say("NodeMessage", "blocks", "Blocks", map[string]any{"source": one, "keys": list(1, 2, 3)}),
			o.say("NodeMessage", "end", "End", map[string]any{"source": one}),
			o.say("NodeMessage", "delta", "Delta", map[string]any{"source": one, "removed": list(3), "added": list(4), "added_tiers": []byte{tierAny}}),
		} {
			if err := s.SendMsg(m); err != nil {
				return err
			}
		}
		for {
			if err := s.RecvMsg(o.message("RouterMessage")); err != nil {
				if errors.Is(err, io.EOF) {
					return nil
				}
				return err
			}
		}
	}
	g := grpc.NewServer(grpc.UnknownServiceHandler(node))
	served := make(chan error, 1)
	go func() { served <- g.Serve(l) }()
	defer func() { g.Stop(); <-served }()

	fleet := newModelFleet(t)
	r, err := NewRouter(RouterOptions{Instance: "own", Fleet: fleet})
	check(t, err)
	r.Set([]Address{{Addr: l.Addr().String()}})
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	defer func() { cancel(); check(t, <-ended) }()
	until(t, "the router has the node's blocks", func() bool {
		s := fleet.sink("chat 127.0.0.1:8000 0")
		return s != nil && slices.Equal(s.matched(subscriber.Any), []uint64{1, 2, 4}) && slices.Equal(s.matched(subscriber.Device), []uint64{1, 2})
	})
	if all := fleet.replicas(l.Addr().String()); len(all) != 1 || all[0].Listing != ListingNone {
		t.Errorf("a node that does not know of listings serves %+v", all)
	}
	r.Charged(Charge{Pool: "chat", Endpoint: "127.0.0.1:8000", Rank: -1, Number: 1}) // which the node ignores
	hearer := fleet.sink("chat 127.0.0.1:8000 0").hearer
	if hearer.Wants() {
		t.Error("a node that asks for no prompts wants some")
	}
	hearer.Witness(subscriber.Prompt{Tokens: make([]uint32, 100)})
	until(t, "the router goes on", func() bool { return len(r.Nodes()) == 1 && r.Nodes()[0].Connected })
}
