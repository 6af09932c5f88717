package router

import (
	"strconv"
	"strings"
)

// Completion is the end of one request, as a record of Envoy's access log tells it.
//
// A record is believed as far as it names an open decision of this router; any other one is counted and changes nothing. Who can reach the
// listener and guess an id can forge one (ids are not secret: clients may be shown them). The worst that a forged record does is to release a
// charge early, and to make an endpoint wait for a probe before it is a first choice again. It never makes an endpoint known, or one down.
type Completion struct {
	ID          string // of the decision; "" when the record shows none that chose an endpoint
	Pool        string // of the decision
	Undelivered bool   // Envoy was not told the decision: there is no record, and only ID and Pool are set
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
	RecordReleased  RecordOutcome = "released"  // the charge was released where it was made
	RecordMoved     RecordOutcome = "moved"     // the request ran elsewhere than it was sent: the charge was moved there and released
	RecordLate      RecordOutcome = "late"      // the decision is not open any more: it has expired, or an earlier record has ended it
	RecordUnknown   RecordOutcome = "unknown"   // no decision of this router has that id
	RecordForeign   RecordOutcome = "foreign"   // the decision is another router's, or this one's from before a restart
	RecordUndecided RecordOutcome = "undecided" // no decision chose an endpoint for the request
	RecordPartial   RecordOutcome = "partial"   // not the end of a request
)

// RecordOutcomes lists the closed set of outcomes.
func RecordOutcomes() []RecordOutcome {
	return []RecordOutcome{RecordReleased, RecordMoved, RecordLate, RecordUnknown, RecordForeign, RecordUndecided, RecordPartial}
}

// Complete takes the end of a request. It may be called from any goroutine, and waits for nothing.
func (r *Router) Complete(c Completion) {
	if c.Undelivered {
		r.undeliver(c)
		return
	}
	r.m.record(r.complete(c))
}

func (r *Router) complete(c Completion) RecordOutcome {
	switch {
	case c.Partial:
		return RecordPartial
	case c.ID == "":
		return RecordUndecided
	}
	f := r.fleet(c.Pool)
	number, own, ok := r.ids.parse(c.ID)
	switch {
	case !ok:
		return RecordUnknown
	case !own:
		if f != nil {
			f.foreign()
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

// undeliver takes a decision back that Envoy does not know of.
func (r *Router) undeliver(c Completion) {
	number, own, ok := r.ids.parse(c.ID)
	if f := r.fleet(c.Pool); ok && own && f != nil {
		f.undeliver(number, r.now())
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

// ending is what the record of a decision says of its endpoint, and of the one that was tried last.
type ending struct {
	moved    bool   // it was sent to the choice and ran, or was last tried, elsewhere
	computed bool   // the choice may have computed the prompt
	tried    string // endpoint that was tried last
	trial    trial  // and how it did
	missed   trial  // how the choice did that the request missed: unreached or not tried
}

// trial is how an endpoint did with one request; one of a closed set.
type trial int

const (
	trialNone      trial = iota // nothing to be learnt
	trialGood                   // it answered
	trialBad                    // it answered that it is broken, or broke off
	trialUnreached              // no connection
	trialSkipped                // it was told to Envoy and another one was asked
)

// notImplemented is what a sound engine answers to a request that it has no code for.
const notImplemented = 501

// judge reads the record of a decision for an endpoint.
func judge(c Completion, choice string, steered bool) ending {
	e := ending{tried: c.Upstream, computed: true}
	switch {
	case c.ConnectFailed:
		e.trial = trialUnreached
	case c.Broken, c.Answered && c.Code >= 500 && c.Code != notImplemented:
		e.trial = trialBad
	case c.Answered:
		e.trial = trialGood
	}
	switch {
	case !steered: // it goes where Envoy likes, and is charged as if it had been obeyed
	case c.Upstream == "":
		e.tried, e.computed = choice, false
		if e.trial != trialUnreached {
			e.trial = trialNone
		}
	case c.Upstream == choice:
		e.computed = e.trial != trialUnreached
	default:
		e.moved, e.computed, e.missed = true, false, trialSkipped
		if c.Attempts > 1 {
			e.missed = trialUnreached
		}
	}
	return e
}

// report tells the endpoints of a decision how they did.
func (e ending) report(f *fleet, choice *target) {
	tried := choice
	if e.tried != choice.endpoint.Addr() {
		tried = f.target(e.tried)
	}
	e.missed.report(choice)
	e.trial.report(tried)
}

// report tells an endpoint how it did; a nil target is none of ours.
func (t trial) report(to *target) {
	if to == nil {
		return
	}
	switch t {
	case trialNone:
	case trialGood:
		to.endpoint.ReportAnswer()
	case trialBad:
		to.endpoint.ReportServerError()
	case trialUnreached:
		to.endpoint.ReportConnectError()
		to.endpoint.ReportMissed()
	case trialSkipped:
		to.endpoint.ReportMissed()
	}
}
