package feed

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Messages of nodes.
func tellReplicas(all ...*feedpb.Replica) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Replicas{Replicas: &feedpb.Replicas{Replicas: all}}}
}

func tellReplica(endpoint string, sources ...uint32) *feedpb.Replica {
	return &feedpb.Replica{Endpoint: endpoint, Pool: "chat", Sources: sources}
}

func tellBegin(source uint32, blocks int) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Begin{Begin: &feedpb.Begin{Source: source, Blocks: uint64(blocks)}}}
}

func tellEnd(source uint32) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_End{End: &feedpb.End{Source: source}}}
}

func tellPacked(keys ...uint64) []byte {
	var b []byte
	for _, key := range keys {
		b = appendKey(b, key)
	}
	return b
}

func tellBlocks(source uint32, tiers string, keys ...uint64) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Blocks{Blocks: &feedpb.Blocks{Source: source, Keys: tellPacked(keys...), Tiers: []byte(tiers)}}}
}

func tellAdded(source uint32, tiers string, keys ...uint64) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Delta{Delta: &feedpb.Delta{Source: source, Added: tellPacked(keys...), AddedTiers: []byte(tiers)}}}
}

func tellRemoved(source uint32, tiers string, keys ...uint64) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Delta{Delta: &feedpb.Delta{Source: source, Removed: tellPacked(keys...), RemovedTiers: []byte(tiers)}}}
}

func tellReset(source uint32, cause string) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Reset_{Reset_: &feedpb.Reset{Source: source, Cause: cause}}}
}

func tellConnected(source uint32) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_State{State: &feedpb.State{Source: source, Connected: true, BlockSize: 16}}}
}

func tellAlive() *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Alive{Alive: &feedpb.Alive{}}}
}

func tellLoads(all ...*feedpb.Load) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Loads{Loads: &feedpb.Loads{Loads: all}}}
}

func tellPeersOf(all ...string) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Peers{Peers: &feedpb.Peers{Instances: all}}}
}

func tellCharges(c *feedpb.Charges) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Charges{Charges: c}}
}

func tellMade(endpoint string, number uint64) *feedpb.Charge {
	return &feedpb.Charge{Pool: "chat", Endpoint: endpoint, Number: number, Uncached: 100, Prompt: 200}
}

func tellRecordFor(instance string) *feedpb.NodeMessage {
	return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Record{Record: &feedpb.Record{Instance: instance, Id: instance + "-1", Pool: "chat"}}}
}

// bench is a router without connections: tests hand messages to the inboxes of its nodes.
type bench struct {
	t     testing.TB
	fleet *modelFleet
	r     *Router
	now   time.Time
}

func newBench(t testing.TB) *bench {
	fleet := newModelFleet(t)
	r, err := NewRouter(RouterOptions{Instance: "own", Fleet: fleet})
	if err != nil {
		t.Fatal(err)
	}
	return &bench{t: t, fleet: fleet, r: r, now: time.Unix(1_800_000_000, 0)}
}

func (b *bench) node(addr string, allow ...string) *watched {
	n := newWatched(b.r, mustAddr(addr), prefixes(allow...))
	n.rec.begin()
	return n
}

// say has a node say something.
func (b *bench) say(n *watched, all ...*feedpb.NodeMessage) {
	b.t.Helper()
	for _, m := range all {
		if err := n.rec.apply(m, b.now); err != nil {
			b.t.Fatalf("%v: %v", m, err)
		}
	}
}

const sinkName = "chat 10.0.0.1:8000 0"

// TestReceive looks at what becomes of the messages of one source.
func TestReceive(t *testing.T) {
	start := []*feedpb.NodeMessage{tellReplicas(tellReplica(":8000", 7)), tellConnected(7), tellBegin(7, 3), tellBlocks(7, "", 1, 2, 3), tellEnd(7)}
	tests := []struct {
		name        string
		more        []*feedpb.NodeMessage
		any, device []uint64
		blocks      int64
	}{
		{"a copy", nil, []uint64{1, 2, 3}, []uint64{1, 2, 3}, 3},
		{"additions", []*feedpb.NodeMessage{tellAdded(7, "", 4, 5)}, []uint64{1, 2, 3, 4, 5}, []uint64{1, 2, 3, 4, 5}, 5},
		{"an addition to any tier", []*feedpb.NodeMessage{tellAdded(7, "\x01\x03", 4, 5)}, []uint64{1, 2, 3, 4, 5}, []uint64{1, 2, 3, 5}, 5},
		{"a promotion", []*feedpb.NodeMessage{tellAdded(7, "\x01", 4), tellAdded(7, "\x02", 4)}, []uint64{1, 2, 3, 4}, []uint64{1, 2, 3, 4}, 4},
		{"to the device alone", []*feedpb.NodeMessage{tellAdded(7, "\x02", 4)}, []uint64{1, 2, 3, 4}, []uint64{1, 2, 3, 4}, 3},
		{"removals", []*feedpb.NodeMessage{tellRemoved(7, "", 3, 2)}, []uint64{1}, []uint64{1}, 1},
		{"a demotion", []*feedpb.NodeMessage{tellRemoved(7, "\x02", 3)}, []uint64{1, 2, 3}, []uint64{1, 2}, 3},
		{"from all tiers but the device", []*feedpb.NodeMessage{tellRemoved(7, "\x01", 3)}, []uint64{1, 2}, []uint64{1, 2}, 2},
		{"a removal of what is unknown", []*feedpb.NodeMessage{tellRemoved(7, "", 99)}, []uint64{1, 2, 3}, []uint64{1, 2, 3}, 2},
		{"a reset", []*feedpb.NodeMessage{tellReset(7, "cleared")}, nil, nil, 0},
		{"a reset, then additions", []*feedpb.NodeMessage{tellReset(7, "cleared"), tellAdded(7, "", 4)}, []uint64{4}, []uint64{4}, 1},
		{"a second copy", []*feedpb.NodeMessage{tellBegin(7, 2), tellBlocks(7, "\x01", 8), tellBlocks(7, "", 9), tellEnd(7)}, []uint64{8, 9}, []uint64{9}, 2},
		{"an unfinished copy", []*feedpb.NodeMessage{tellBegin(7, 2), tellBlocks(7, "", 8)}, []uint64{1, 2, 3}, []uint64{1, 2, 3}, 2},
		{"changes within a copy", []*feedpb.NodeMessage{tellBegin(7, 3), tellBlocks(7, "", 1), tellRemoved(7, "", 3, 1), tellAdded(7, "", 4), tellBlocks(7, "", 2, 4), tellEnd(7)}, []uint64{2, 4}, []uint64{2, 4}, 1},
		{"a copy that starts over", []*feedpb.NodeMessage{tellBegin(7, 3), tellBlocks(7, "", 5), tellBegin(7, 1), tellBlocks(7, "", 6), tellEnd(7)}, []uint64{6}, []uint64{6}, 1},
		{"a reset within a copy", []*feedpb.NodeMessage{tellBegin(7, 3), tellBlocks(7, "", 1), tellReset(7, "gap")}, nil, nil, 0},
		{"a reset within a copy, and its end", []*feedpb.NodeMessage{tellBegin(7, 3), tellBlocks(7, "", 1), tellReset(7, "gap"), tellAdded(7, "", 6), tellBlocks(7, "", 6), tellEnd(7)}, []uint64{6}, []uint64{6}, 1},
		{"an empty copy", []*feedpb.NodeMessage{tellBegin(7, 0), tellEnd(7)}, nil, nil, 0},
		{"an empty change", []*feedpb.NodeMessage{tellAdded(7, "")}, []uint64{1, 2, 3}, []uint64{1, 2, 3}, 3},
		{"the engine is gone", []*feedpb.NodeMessage{{Message: &feedpb.NodeMessage_State{State: &feedpb.State{Source: 7}}}}, nil, nil, 3},
		{"what a newer node says", []*feedpb.NodeMessage{{}, tellAlive()}, []uint64{1, 2, 3}, []uint64{1, 2, 3}, 3},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			n := b.node("10.0.0.1:9010")
			b.say(n, start...)
			b.say(n, tt.more...)
			s := b.fleet.sink(sinkName)
			if diff := cmp.Diff(tt.any, s.matched(subscriber.Any)); diff != "" {
				t.Errorf("any tier: %s", diff)
			}
			if diff := cmp.Diff(tt.device, s.matched(subscriber.Device)); diff != "" {
				t.Errorf("device: %s", diff)
			}
			if got := n.status().Blocks; got != tt.blocks {
				t.Errorf("%d blocks are shown, want %d", got, tt.blocks)
			}
		})
	}
}

// TestReceiveInvalid ends a stream at each message that no node sends, with nothing of it applied.
func TestReceiveInvalid(t *testing.T) {
	long := strings.Repeat("x", 5000)
	many := make([]*feedpb.Replica, maxReplicas+1)
	for i := range many {
		many[i] = tellReplica(":1")
	}
	var ranks []uint32
	for i := range uint32(subscriber.MaxRanks + 1) {
		ranks = append(ranks, i)
	}
	tests := []struct {
		name string
		m    *feedpb.NodeMessage
	}{
		{"a second hello", &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Hello{Hello: &feedpb.NodeHello{Protocol: 1}}}},
		{"state of no source", tellConnected(8)},
		{"copy of no source", tellBegin(8, 1)},
		{"blocks of no source", tellBlocks(8, "", 1)},
		{"end of no source", tellEnd(8)},
		{"changes of no source", tellAdded(8, "", 1)},
		{"reset of no source", tellReset(8, "gap")},
		{"blocks outside of a copy", tellBlocks(7, "", 1)},
		{"end of no copy", tellEnd(7)},
		{"changes before a copy", tellAdded(6, "", 1)},
		{"blocks before a copy", tellBlocks(6, "", 1)},
		{"too many blocks", tellBegin(7, 1<<40)},
		{"half a key", &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Delta{Delta: &feedpb.Delta{Source: 7, Added: make([]byte, 12)}}}},
		{"half a key removed", &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Delta{Delta: &feedpb.Delta{Source: 7, Removed: make([]byte, 7)}}}},
		{"fewer tiers than keys", tellAdded(7, "\x03", 4, 5)},
		{"more tiers than keys", tellAdded(7, "\x03\x03", 4)},
		{"tiers without keys", tellRemoved(7, "\x03")},
		{"no tier", tellAdded(7, "\x00", 4)},
		{"an unknown tier", tellAdded(7, "\x04", 4)},
		{"a good addition with a bad removal", &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Delta{Delta: &feedpb.Delta{Source: 7, Added: tellPacked(4), Removed: make([]byte, 7)}}}},
		{"too many keys", tellAdded(7, "", make([]uint64, maxKeys+1)...)},
		{"an unknown medium", &feedpb.NodeMessage{Message: &feedpb.NodeMessage_State{State: &feedpb.State{Source: 7, Coldest: 9}}}},
		{"a long problem", &feedpb.NodeMessage{Message: &feedpb.NodeMessage_State{State: &feedpb.State{Source: 7, Problem: long}}}},
		{"too many replicas", tellReplicas(many...)},
		{"too many ranks", tellReplicas(tellReplica(":8000", ranks...))},
		{"one source twice", tellReplicas(tellReplica(":8000", 7), tellReplica(":8001", 7))},
		{"one source for two ranks", tellReplicas(tellReplica(":8000", 7, 7))},
		{"no endpoint", tellReplicas(tellReplica("", 7))},
		{"a long endpoint", tellReplicas(tellReplica(long, 7))},
		{"no pool", tellReplicas(&feedpb.Replica{Endpoint: ":8000"})},
		{"a long model", tellReplicas(&feedpb.Replica{Endpoint: ":8000", Pool: "chat", Models: []string{long}})},
		{"a file without a hash", tellReplicas(&feedpb.Replica{Endpoint: ":8000", Pool: "chat", Files: []*feedpb.File{{Name: "tokenizer.json", Size: 3}}})},
		{"load of nothing", tellLoads(&feedpb.Load{})},
		{"a usage above 1", tellLoads(&feedpb.Load{Endpoint: ":8000", KvUsage: 1.5})},
		{"a long instance", tellPeersOf(long)},
		{"too many peers", tellPeersOf(make([]string, maxPeers+1)...)},
		{"charges of nobody", tellCharges(&feedpb.Charges{Made: []*feedpb.Charge{tellMade(":8000", 1)}})},
		{"a charge of nothing", tellCharges(&feedpb.Charges{Instance: "other", Made: []*feedpb.Charge{tellMade(":8000", 1), {}}})},
		{"a release of nothing", tellCharges(&feedpb.Charges{Instance: "other", Made: []*feedpb.Charge{tellMade(":8000", 1)}, Released: []*feedpb.Release{{}}})},
		{"charges of a long instance", tellCharges(&feedpb.Charges{Instance: long})},
		{"a record of nothing", &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Record{Record: &feedpb.Record{Instance: "own"}}}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			n := b.node("10.0.0.1:9010")
			b.say(n, tellReplicas(tellReplica(":8000", 7), tellReplica(":8001", 6)), tellConnected(7), tellBegin(7, 3), tellBlocks(7, "", 1, 2, 3), tellEnd(7))
			before, serves := b.fleet.sink(sinkName).events(), b.fleet.serves
			err := n.rec.apply(tt.m, b.now)
			if !errors.Is(err, errInvalid) {
				t.Errorf("the error is %v", err)
			}
			if reason := reasonOf(t.Context(), err, true); reason != endInvalid {
				t.Errorf("the reason is %s", reason)
			}
			if diff := cmp.Diff(before, b.fleet.sink(sinkName).events()); diff != "" {
				t.Errorf("the sink was told: %s", diff)
			}
			if diff := cmp.Diff([]uint64{1, 2, 3}, b.fleet.sink(sinkName).matched(subscriber.Device)); diff != "" {
				t.Errorf("the sink has other blocks: %s", diff)
			}
			if b.fleet.serves != serves || len(b.fleet.charges) > 0 || len(b.fleet.loads) > 0 || len(b.fleet.records) > 0 {
				t.Error("the fleet was told something")
			}
		})
	}
}

// TestReceiveLost follows what can be matched while a stream is lost, and after it is back.
func TestReceiveLost(t *testing.T) {
	copied := func(keys ...uint64) []*feedpb.NodeMessage {
		return []*feedpb.NodeMessage{tellReplicas(tellReplica(":8000", 9)), tellConnected(9), tellBegin(9, len(keys)), tellBlocks(9, "", keys...), tellEnd(9)}
	}
	tests := []struct {
		name  string
		after time.Duration // from the loss to the next stream
		until int           // messages of the next copy that have come
		took  time.Duration // from the next stream's begin
		want  []uint64
	}{
		{"just lost", 0, 0, 0, []uint64{1, 2}},
		{"lost for a while", 2900 * time.Millisecond, 0, 0, []uint64{1, 2}},
		{"lost for too long", 3 * time.Second, 0, 0, nil},
		{"back in time", time.Second, 2, 0, []uint64{1, 2}},
		{"back in time, a copy begins", time.Second, 3, 0, []uint64{1, 2}},
		{"back in time, a copy comes", time.Second, 4, time.Second, []uint64{1, 2}},
		{"back in time, a copy comes slowly", time.Second, 4, 2 * time.Second, nil},
		{"back in time, a copy came slowly", time.Second, 5, 10 * time.Second, []uint64{1, 3}},
		{"back in time, a copy came", time.Second, 5, time.Second, []uint64{1, 3}},
		{"late, and the engine is connected", 5 * time.Second, 2, 0, nil},
		{"late, a copy begins", 5 * time.Second, 3, 0, nil},
		{"late, a copy comes", 5 * time.Second, 4, 0, nil},
		{"late, a copy came", 5 * time.Second, 5, 0, []uint64{1, 3}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			b := newBench(t)
			n := b.node("10.0.0.1:9010")
			b.say(n, copied(1, 2)...)
			n.rec.lost(b.now, b.now)
			b.now = b.now.Add(tt.after)
			n.rec.tick(b.now)
			n.rec.begin()
			b.say(n, copied(1, 3)[:tt.until]...)
			b.now = b.now.Add(tt.took)
			n.rec.tick(b.now)
			if diff := cmp.Diff(tt.want, b.fleet.sink(sinkName).matched(subscriber.Device)); diff != "" {
				t.Error(diff)
			}
			if b.fleet.serves != 1 {
				t.Errorf("the same replicas were served %d times", b.fleet.serves)
			}
		})
	}
}
