package feed

import (
	"fmt"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
	"github.com/kvsteer/kvsteer/subscriber"
)

// Media on the wire. What is colder than the device is all that matters.
const (
	coldestNone uint32 = iota
	coldestHost
	coldestDisk
)

func coldest(m subscriber.Medium) uint32 {
	switch m {
	case subscriber.MediumHost:
		return coldestHost
	case subscriber.MediumDisk:
		return coldestDisk
	}
	return coldestNone
}

// stateOf is a description as it is sent.
func stateOf(source uint32, d subscriber.Description) *feedpb.State {
	return &feedpb.State{
		Source: source, Connected: d.Connected, Complete: d.Complete, BlockSize: count32(d.BlockSize), ExtraKeys: d.ExtraKeys, Coldest: coldest(d.Coldest),
		Problem: string(d.Problem),
	}
}

// describedBy is a received description.
func describedBy(p *feedpb.State) (subscriber.Description, error) {
	d := subscriber.Description{
		Connected: p.GetConnected(), Complete: p.GetComplete(), BlockSize: count(p.GetBlockSize()), ExtraKeys: p.GetExtraKeys(),
		Problem: subscriber.Problem(p.GetProblem()),
	}
	switch p.GetColdest() {
	case coldestNone:
	case coldestHost:
		d.Coldest = subscriber.MediumHost
	case coldestDisk:
		d.Coldest = subscriber.MediumDisk
	default:
		return d, fmt.Errorf("state with medium %d", p.GetColdest())
	}
	return d, short("problem", p.GetProblem(), maxName)
}
