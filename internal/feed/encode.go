package feed

import (
	"fmt"

	"google.golang.org/protobuf/proto"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// encode is a message as it goes to routers. Lists of strings come from configurations and engines, and have been made valid before.
func encode(m *feedpb.NodeMessage) []byte {
	data, err := proto.MarshalOptions{Deterministic: true}.Marshal(m)
	if err != nil {
		panic(fmt.Sprintf("encode a message of the feed: %v", err)) // invalid UTF-8, which valid takes out
	}
	return data
}

func encodeBegin(source uint32, blocks int) []byte {
	return encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Begin{Begin: &feedpb.Begin{Source: source, Blocks: uint64(blocks)}}})
}

func encodeEnd(source uint32) []byte {
	return encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_End{End: &feedpb.End{Source: source}}})
}

func encodeReset(source uint32, cause string) []byte {
	return encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Reset_{Reset_: &feedpb.Reset{Source: source, Cause: cause}}})
}

func encodeBlocks(source uint32, keys, tiers []byte) []byte {
	return encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Blocks{Blocks: &feedpb.Blocks{Source: source, Keys: keys, Tiers: packTiers(tiers)}}})
}

// encodeDeltas are the net changes of a window in messages of at most maxKeys keys, in order.
func encodeDeltas(source uint32, c *changes) (all []message) {
	removed, removedTiers, added, addedTiers := c.removed, c.removedTiers, c.added, c.addedTiers
	for len(removedTiers)+len(addedTiers) > 0 {
		r := min(len(removedTiers), maxKeys)
		a := min(len(addedTiers), maxKeys-r)
		if r < len(removedTiers) {
			a = 0
		}
		all = append(all, message{added: a, removed: r, data: encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Delta{Delta: &feedpb.Delta{
			Source: source, Removed: removed[:r*keySize], RemovedTiers: packTiers(removedTiers[:r]),
			Added: added[:a*keySize], AddedTiers: packTiers(addedTiers[:a]),
		}}})})
		removed, removedTiers = removed[r*keySize:], removedTiers[r:]
		added, addedTiers = added[a*keySize:], addedTiers[a:]
	}
	return all
}

func encodeCharges(c *feedpb.Charges) []byte {
	return encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Charges{Charges: c}})
}

func encodeRecord(r *feedpb.Record) []byte {
	return encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Record{Record: r}})
}

func encodeAlive() []byte {
	return encode(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Alive{Alive: &feedpb.Alive{}}})
}
