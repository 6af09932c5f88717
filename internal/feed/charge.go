package feed

import (
	"cmp"
	"errors"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// Charge is what a router's decision entered in the account of an endpoint.
type Charge struct {
	Pool     string
	Endpoint string // ip:port
	Rank     int    // −1 where the engine chooses
	Number   uint64 // of the router's decision
	Uncached int    // tokens to compute
	Prompt   int    // tokens
	Key      uint64 // fingerprint of the prompt's last whole block, 0 for not known
}

func (c Charge) proto() *feedpb.Charge {
	return &feedpb.Charge{
		Pool: c.Pool, Endpoint: c.Endpoint, Rank: count32(c.Rank + 1), Number: c.Number, Uncached: count32(c.Uncached), Prompt: count32(c.Prompt), Key: c.Key,
	}
}

// chargeOf reads a received charge.
func chargeOf(p *feedpb.Charge) (Charge, error) {
	c := Charge{
		Pool: p.GetPool(), Endpoint: p.GetEndpoint(), Rank: count(p.GetRank()) - 1, Number: p.GetNumber(), Uncached: count(p.GetUncached()),
		Prompt: count(p.GetPrompt()), Key: p.GetKey(),
	}
	if c.Pool == "" || c.Endpoint == "" {
		return c, errors.New("charge of no endpoint")
	}
	return c, cmp.Or(short("pool", c.Pool, maxName), short("endpoint", c.Endpoint, maxEndpoint))
}

// Release says that what a decision was charged for has ended.
type Release struct {
	Pool   string
	Number uint64 // of the router's decision
}

func (r Release) proto() *feedpb.Release { return &feedpb.Release{Pool: r.Pool, Number: r.Number} }

// releaseOf reads a received release.
func releaseOf(p *feedpb.Release) (Release, error) {
	r := Release{Pool: p.GetPool(), Number: p.GetNumber()}
	if r.Pool == "" {
		return r, errors.New("release in no pool")
	}
	return r, short("pool", r.Pool, maxName)
}

// Record is what Envoy's access log says of the end of a request that another router decided.
type Record struct {
	Instance      string // of the router whose decision it is
	ID            string // of the decision
	Pool          string
	Upstream      string // ip:port that was tried last, "" when there was none
	Attempts      int    // 0 when not known
	Code          int    // status that the client was sent
	Answered      bool   // Code is Upstream's own
	ConnectFailed bool   // no connection to Upstream could be made
	Broken        bool   // the connection to Upstream ended before the answer did
}

func (r Record) proto() *feedpb.Record {
	return &feedpb.Record{
		Instance: r.Instance, Id: r.ID, Pool: r.Pool, Upstream: r.Upstream, Attempts: count32(r.Attempts), Code: count32(r.Code), Answered: r.Answered,
		ConnectFailed: r.ConnectFailed, Broken: r.Broken,
	}
}

// recordOf reads a received record.
func recordOf(p *feedpb.Record) (Record, error) {
	r := Record{
		Instance: p.GetInstance(), ID: p.GetId(), Pool: p.GetPool(), Upstream: p.GetUpstream(), Attempts: count(p.GetAttempts()), Code: count(p.GetCode()),
		Answered: p.GetAnswered(), ConnectFailed: p.GetConnectFailed(), Broken: p.GetBroken(),
	}
	if r.Instance == "" || r.ID == "" {
		return r, errors.New("record of no decision")
	}
	return r, cmp.Or(
		short("instance", r.Instance, maxInstance), short("id", r.ID, maxID), short("pool", r.Pool, maxName), short("upstream", r.Upstream, maxEndpoint))
}
