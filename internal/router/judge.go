package router

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
