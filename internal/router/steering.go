package router

// steering says what becomes of a pool's decisions.
type steering struct {
	mode    Mode
	percent int // in ModeOn, of the requests that are steered
}

// draw says in which mode one request is decided, and whether the decision counts: whether it charges and teaches as if the request went where
// it says. One that ModeOn leaves to Envoy does not, because others of the same prompt are steered and it is not known where this one runs.
func (s steering) draw(random func(int) int) (m Mode, counts bool) {
	if s.mode == ModeOn && s.percent < 100 && random(100) >= s.percent {
		return ModeObserve, false
	}
	return s.mode, true
}

// shares is the percentage of requests that are decided in each mode.
func (s steering) shares() map[Mode]int {
	shares := map[Mode]int{ModeOn: 0, ModeObserve: 0, ModeOff: 0}
	if s.mode == ModeOn {
		shares[ModeOn], shares[ModeObserve] = s.percent, 100-s.percent
	} else {
		shares[s.mode] = 100
	}
	return shares
}
