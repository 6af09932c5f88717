package router

import (
	"strconv"
	"strings"
)

// Completion is the end of one request, as a record of Envoy's access log tells it.
//
// A record is believed as far as it names an open decision of this router; one of another router's is passed to it, and any other one is counted and changes nothing. Who can reach the
// listener and guess an id can forge one (ids are not secret: clients may be shown them). The worst that a forged record does is to release a
// charge early, and to make an endpoint wait for a probe before it is a first choice again. It never makes an endpoint known, or one down.
type Completion struct {
	ID          string // of the decision; "" when the record shows none that chose an endpoint
	Pool        string // of the decision
	Undelivered bool   // Envoy was not told the decision: there is no record, and only ID and Pool are set
	Serving     bool   // the answer begins, at Upstream, and the request goes on; only ID, Pool and Upstream are set
	Partial     bool   // the record is not that of the request's end

	Upstream      string // ip:port that was tried last, "" when there was none
	Attempts      int    // 0 when not known
	Code          int    // status that the client was sent
	Answered      bool   // Code is Upstream's own
	ConnectFailed bool   // no connection to Upstream could be made
	Broken        bool   // the connection to Upstream ended before the answer did, by no doing of the client
}

// RecordOutcome says what became of a record; one of a closed set.
type RecordOutcome string

// The outcomes of records.
const (
	RecordReleased  RecordOutcome = "released"
	RecordMoved     RecordOutcome = "moved"
	RecordLate      RecordOutcome = "late"
	RecordUnknown   RecordOutcome = "unknown"
	RecordPassed    RecordOutcome = "passed"
	RecordKept      RecordOutcome = "kept"
	RecordForeign   RecordOutcome = "foreign"
	RecordUndecided RecordOutcome = "undecided"
	RecordPartial   RecordOutcome = "partial"
)

// RecordOutcomeDoc is one outcome and what it means, for documentation.
type RecordOutcomeDoc struct {
	Outcome RecordOutcome
	Meaning string
}

// RecordOutcomes lists the closed set of outcomes.
func RecordOutcomes() []RecordOutcomeDoc {
	return []RecordOutcomeDoc{
		{RecordReleased, "the request has ended, and its charge is released"},
		{RecordMoved, "the request ran, or was last tried, elsewhere than it was sent; its charge is moved there and released"},
		{RecordLate, "the decision is not open any more: an earlier record has ended it, or it has expired"},
		{RecordUnknown, "this router has made no decision of that id"},
		{RecordPassed, "the decision is another router's, and the record was passed to it"},
		{RecordKept, "the decision is another router's, or this one's from before a restart, and no node knows that router: the record is passed to it if one does within a minute"},
		{RecordForeign, "the decision is another router's, to which there is no way and none is waited for, or this one's from before a restart"},
		{RecordUndecided, "no decision chose an endpoint for the request"},
		{RecordPartial, "not the end of a request"},
	}
}

// Complete takes the end of a request, and passes that of another router's decision to it where there is a way. It may be called from any
// goroutine, and waits for nothing.
func (r *Router) Complete(c Completion) {
	switch {
	case c.Undelivered:
		r.undeliver(c)
		return
	case c.Serving:
		r.serving(c)
		return
	}
	r.m.record(r.complete(c, false))
}

// CompletePassed takes the end of a request that another router has passed to this one. It is never passed on.
func (r *Router) CompletePassed(c Completion) { r.m.record(r.complete(c, true)) }

func (r *Router) complete(c Completion, passed bool) RecordOutcome {
	switch {
	case c.Partial, c.Undelivered, c.Serving:
		return RecordPartial
	case c.ID == "":
		return RecordUndecided
	}
	f := r.fleet(c.Pool)
	number, own, ok := r.ids.parse(c.ID)
	switch {
	case !ok:
		return RecordUnknown
	case !own && passed:
		return RecordForeign // whoever passed it knows no better, and it says nothing of this router's own records
	case !own:
		passing := r.pass(c)
		if passing == Passed {
			return RecordPassed
		}
		if f != nil {
			f.strayed() // records of this router's decisions may not find it now either
		}
		if passing == Kept {
			return RecordKept
		}
		return RecordForeign
	case f == nil:
		return RecordLate // its pool is not configured any more
	}
	o, v, ok := f.complete(number, c, r.now())
	if !ok {
		return RecordLate
	}
	v.report(f, o.target)
	if v.moved {
		return RecordMoved
	}
	return RecordReleased
}

// pass hands a record to the router that its id names.
func (r *Router) pass(c Completion) Passing {
	instance, _, _ := strings.Cut(c.ID, "-")
	if r.peers == nil || len(instance) > maxInstance {
		return NoWay
	}
	return r.peers.Pass(instance, c)
}

// undeliver takes a decision back that Envoy does not know of.
func (r *Router) undeliver(c Completion) {
	number, own, ok := r.ids.parse(c.ID)
	if f := r.fleet(c.Pool); ok && own && f != nil {
		f.undeliver(number, r.now())
	}
}

// serving moves what a decision has entered to the endpoint that serves its request.
func (r *Router) serving(c Completion) {
	number, own, ok := r.ids.parse(c.ID)
	if f := r.fleet(c.Pool); ok && own && f != nil {
		if choice := f.move(number, c.Upstream, r.now()); choice != nil {
			trialSkipped.report(choice)
		}
	}
}

// parse reads an id: own says that it is one of this instance, ok that there is or may be such a decision.
func (i *ids) parse(id string) (number uint64, own, ok bool) {
	instance, text, found := strings.Cut(id, "-")
	if !found || instance == "" {
		return 0, false, false
	}
	number, err := strconv.ParseUint(text, 36, 64)
	if err != nil || number == 0 {
		return 0, false, false
	}
	if instance != i.instance {
		return number, false, true
	}
	return number, true, number <= i.last.Load()
}
