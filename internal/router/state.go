package router

import (
	"fmt"
	"time"
)

// State is what a router holds and believes at one moment, for people and their tools. It has no text of any request.
type State struct {
	Time  time.Time   `json:"time"`
	Pools []PoolState `json:"pools"`

	// Of who watches nodes and asks DNS; the Router leaves them empty.
	Nodes   []NodeState       `json:"nodes,omitempty"`
	Refused []RefusedEndpoint `json:"refused,omitempty"`
}

// NodeState is one node that is watched.
type NodeState struct {
	Address   string    `json:"address"`
	Name      string    `json:"name,omitempty"` // as it calls itself
	Connected bool      `json:"connected"`
	Since     time.Time `json:"since,omitzero"`    // when it connected, or was lost
	Problem   string    `json:"problem,omitempty"` // why it is not connected
	Stale     bool      `json:"stale"`             // some of its blocks are not matched because they were not heard of for too long
	Heard     float64   `json:"heard_seconds_ago"` // since its last message
	Release   string    `json:"release,omitempty"`
	Protocol  uint32    `json:"protocol,omitempty"`
	Endpoints int       `json:"endpoints"`
	Copies    int       `json:"copies"` // of blocks, under way
	Blocks    int64     `json:"blocks"`
	Bytes     uint64    `json:"received_bytes"`
	Peers     int       `json:"peers"` // other routers that watch it
}

// RefusedEndpoint is an endpoint that DNS gives or a node announces, and that is not taken.
type RefusedEndpoint struct {
	Node     string `json:"node,omitempty"` // that announces it
	Pool     string `json:"pool"`
	Endpoint string `json:"endpoint"`
	Why      string `json:"why"`
}

// PoolState is one pool.
type PoolState struct {
	Name      string          `json:"name"`
	Models    []string        `json:"models"`
	Adapters  []string        `json:"adapters,omitempty"`
	Mode      Mode            `json:"mode"`
	Percent   int             `json:"percent"` // of the requests that are steered in mode on
	Endpoints []EndpointState `json:"endpoints"`
}

// EndpointState is one endpoint.
type EndpointState struct {
	Address  string `json:"address"`
	Healthy  bool   `json:"healthy"`
	Suspect  bool   `json:"suspect"`  // no first choice; see [pool.Endpoint.Suspect]
	Draining bool   `json:"draining"` // gets no new requests
	Leaving  bool   `json:"leaving"`  // drains because DNS does not give it, or its node says so: no call ends that

	Origin string `json:"origin,omitempty"` // where it comes from; the Router leaves it and the next empty
	Node   string `json:"node,omitempty"`   // that announces it

	Events       bool   `json:"events"`            // has an event source
	Connected    bool   `json:"connected"`         // which is connected, with all its ranks
	Copying      bool   `json:"copying,omitempty"` // a copy of its blocks is under way, or of those of some of its ranks
	Matchable    bool   `json:"matchable"`         // its blocks are matched, or those of some of its ranks
	Problem      string `json:"problem,omitempty"` // what keeps them from it, one of docs/metrics.md
	BlockSize    int    `json:"block_size"`        // tokens; 0 while not known
	Blocks       int    `json:"blocks"`            // held in any tier, of all ranks together
	DeviceBlocks int    `json:"device_blocks"`     // held in the engine's own memory

	ApproximateBlocks int `json:"approximate_blocks"` // blocks of text believed to be there

	Engine *EngineState `json:"engine,omitempty"` // what the engine says of itself, where a node tells it

	Backlog int `json:"backlog_tokens"` // prompt tokens charged and not worked off, rounded, other routers' that are told included
	Memory  int `json:"memory_tokens"`  // tokens of running and recent requests

	Ranks []RankState `json:"ranks,omitempty"` // its data-parallel ranks, where it has several
}

// RankState is one data-parallel rank of an endpoint.
type RankState struct {
	Rank         int    `json:"rank"`
	Connected    bool   `json:"connected"`
	Copying      bool   `json:"copying,omitempty"`
	Matchable    bool   `json:"matchable"`
	Problem      string `json:"problem,omitempty"`
	BlockSize    int    `json:"block_size"`
	Blocks       int    `json:"blocks"`
	DeviceBlocks int    `json:"device_blocks"`

	Backlog int `json:"backlog_tokens"` // as that of the endpoint; 0 where its engine chooses the rank
}

// PastDecision is one decision that was made.
type PastDecision struct {
	Time     time.Time
	Duration time.Duration // of making it
	Decision Decision
}

// ParseMode reads a mode as configurations write it.
func ParseMode(text string) (Mode, error) {
	switch text {
	case "on":
		return ModeOn, nil
	case "observe":
		return ModeObserve, nil
	case "off":
		return ModeOff, nil
	}
	return ModeOff, fmt.Errorf("mode %q is none of on, observe and off", text)
}

// MarshalText writes the mode as configurations do.
func (m Mode) MarshalText() ([]byte, error) { return []byte(m.String()), nil }

// UnmarshalText reads the mode as configurations write it.
func (m *Mode) UnmarshalText(text []byte) error {
	v, err := ParseMode(string(text))
	if err == nil {
		*m = v
	}
	return err
}
