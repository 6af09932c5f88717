package router

import "github.com/kvsteer/kvsteer/internal/openai"

// Request is what the router reads of one HTTP request. It holds no reference that outlives Decide.
type Request struct {
	Meta    openai.Meta              // method, path and content headers
	Host    string                   // :authority
	Header  func(name string) string // value of a request header, "" when absent; nil means no headers
	Several func(name string) bool   // whether there are several request headers of a name; nil means never
	Body    []byte                   // whole body; nil for a request without one
	Unread  bool                     // the body was not read, as it exceeds a byte cap or cannot be waited for: routed by load, pool by Envoy's own key

	Subset func(addr string) bool // the endpoints that may be chosen; nil for all of the pool
	Ranked int                    // how many endpoints Decision.Ranked names at most
	Shed   int                    // backlog in tokens above which, at every candidate, a request that would be steered is shed; 0 for never
}

// Decision says where one request goes and why. An empty Endpoint, and a Mode other than ModeOn, mean that Envoy's own fallback decides.
type Decision struct {
	ID       string // unique among routers: names its router
	Pool     string // "" when no pool could be told
	Mode     Mode   // whether the decision is to be obeyed
	Endpoint string // first choice, ip:port
	Second   string // second choice, ip:port, "" when there is none
	Pinned   bool   // Rank was chosen too, for both choices; else their engines choose among their ranks
	Rank     int    // data-parallel rank
	Rung     Rung   // what the choice rests on
	Reason   Reason // closed set
	Matched  int    // leading prompt tokens that Endpoint holds, the mean over its ranks unless Rank was chosen
	Prompt   int    // prompt tokens, estimated when the prompt was looked up by its text, 0 when not known

	Ranked     []string // Endpoint, Second, then the others by cost, no address twice; as many as Request.Ranked asks for
	Overloaded bool     // the request is to be refused for now, as Request.Shed asks
}

// Steers reports whether Envoy is to be told the choice.
func (d Decision) Steers() bool { return d.Mode == ModeOn && d.Endpoint != "" }

// lookedUp reports whether it was looked up, by tokens or by text, who holds the prompt. Prompts of which nobody was sent a block count too: without
// them the cached share of a pool that is matched by text would be that of its hits.
func (d Decision) lookedUp() bool {
	switch d.Rung {
	case RungExact, RungApproximate:
		return true
	case RungLoad:
		return d.Prompt > 0 && recalled(d.Reason)
	}
	return false
}

// Mode says what becomes of a pool's decisions. The zero value is ModeOn.
type Mode string

// The modes.
const (
	ModeOn      Mode = ""        // obeyed
	ModeObserve Mode = "observe" // made and counted, not told to Envoy
	ModeOff     Mode = "off"     // none is made
)

// String is the mode as configurations and metrics write it.
func (m Mode) String() string {
	if m == ModeOn {
		return "on"
	}
	return string(m)
}

// Rung says what a choice rests on; one of a closed set.
type Rung string

// The rungs, from the best one down.
const (
	RungExact       Rung = "exact"       // the prompt's tokens, matched against what engines announce
	RungApproximate Rung = "approximate" // the prompt's text, matched against this router's own past decisions
	RungLoad        Rung = "load"        // least cost, without knowing who holds the prompt
	RungNone        Rung = "none"        // no choice: Envoy decides
)

// Reason says why a decision came out as it did; one of a closed set.
type Reason string
