package eventsources

import (
	"encoding/json"
	"errors"
	"fmt"
	"strconv"
	"strings"
)

// maxRanks bounds the ranks of one engine.
const maxRanks = 64

// Rank is what one data-parallel rank says of itself.
type Rank struct {
	Events uint16 // port of its events; 0 when it publishes none over TCP
	Replay uint16 // port of its replay; 0 when there is none
}

// parse reads a reply. Fields that are not known are left; ranks must be numbered from 0 on without a gap, since a mean over some of them, or a
// pin to one that is not there, would be wrong.
func parse(body []byte) ([]Rank, error) {
	var reply map[string]struct {
		Enabled   *bool   `json:"enable_kv_cache_events"`
		Publisher *string `json:"publisher"`
		Endpoint  *string `json:"endpoint"`
		Replay    *string `json:"replay_endpoint"`
	}
	if err := json.Unmarshal(body, &reply); err != nil {
		return nil, errors.New("not a JSON object of sources by rank") // the error may quote the reply
	}
	if n := len(reply); n < 1 || n > maxRanks {
		return nil, fmt.Errorf("%d ranks, want 1 to %d", n, maxRanks)
	}
	ranks := make([]Rank, len(reply))
	for i := range ranks {
		s, ok := reply[strconv.Itoa(i)]
		if !ok {
			return nil, fmt.Errorf("%d ranks, and none of them is rank %d", len(reply), i)
		}
		if s.Enabled != nil && !*s.Enabled || s.Publisher == nil || *s.Publisher != "zmq" {
			continue
		}
		ranks[i] = Rank{Events: port(s.Endpoint), Replay: port(s.Replay)}
	}
	return ranks, nil
}

// port is the port of a tcp:// address, whatever its host; 0 for none.
func port(address *string) uint16 {
	if address == nil || !strings.HasPrefix(*address, "tcp://") {
		return 0
	}
	text := (*address)[strings.LastIndexByte(*address, ':')+1:]
	n, err := strconv.ParseUint(text, 10, 16)
	if err != nil || strconv.FormatUint(n, 10) != text {
		return 0
	}
	return uint16(n)
}
