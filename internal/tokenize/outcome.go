package tokenize

import "fmt"

// Outcome says how a lookup ended; one of a closed set.
type Outcome string

// What a lookup can come to. Given, Cached, OK and Shared have token ids, the others have none.
const (
	Given       Outcome = "given"       // the request carries its token ids; nothing was looked up
	Cached      Outcome = "cached"      // found in the cache
	OK          Outcome = "ok"          // the engine answered
	Shared      Outcome = "shared"      // the engine answered an identical call that was under way
	Timeout     Outcome = "timeout"     // no answer in time
	Canceled    Outcome = "canceled"    // the caller gave up
	Shed        Outcome = "shed"        // too many calls under way
	Unreachable Outcome = "unreachable" // no connection, or it broke before an answer
	Refused     Outcome = "refused"     // the engine answered 4xx: it would refuse the request too, or /tokenize is closed
	Failed      Outcome = "failed"      // the engine answered 5xx, or with a redirect
	BadReply    Outcome = "bad_reply"   // an answer that is not a list of token ids, or that broke off
	TooLong     Outcome = "too_long"    // more token ids than Options.MaxTokens, or a body that must have more
	NotOffered  Outcome = "not_offered" // only a render endpoint could tell, and the engine has none that may be asked
	Multimodal  Outcome = "multimodal"  // the engine finds parts in the prompt that are not text
	Unkeyable   Outcome = "unkeyable"   // the request has no prompt that can be asked for
)

// Outcomes lists the closed set.
func Outcomes() []Outcome {
	return []Outcome{
		Given, Cached, OK, Shared, Timeout, Canceled, Shed, Unreachable, Refused, Failed, BadReply, TooLong, NotOffered, Multimodal, Unkeyable,
	}
}

// Error says why there are no token ids. Its text holds the endpoint, and nothing of the request.
type Error struct {
	Endpoint string
	Outcome  Outcome
	Status   int   // HTTP status, 0 when there was none
	Err      error // cause, may be nil
}

func (e *Error) Error() string {
	text := fmt.Sprintf("tokenize at %s: %s", e.Endpoint, e.Outcome)
	if e.Status != 0 {
		text += fmt.Sprintf(": status %d", e.Status)
	}
	if e.Err != nil {
		text += ": " + e.Err.Error()
	}
	return text
}

func (e *Error) Unwrap() error { return e.Err }
