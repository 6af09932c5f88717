package router

import "time"

const (
	maxOpen      = 65_536           // open decisions of one pool; beyond, the oldest one expires
	openLifetime = 10 * time.Minute // after which a decision expires whose record has not come

	// expireStep bounds the decisions that expire in one go under the ledger's lock. Each decision adds one, so any number above one keeps up.
	expireStep = 16
)

// opening is a decision whose request is not known to have ended, and what it has entered in its endpoint's account.
type opening struct {
	number   uint64  // of the decision
	origin   *origin // of the decision, where that is another router
	target   *target
	steered  bool // Envoy was told to send the request to target
	told     bool // peers were told
	since    time.Time
	charge   uint64  // number of the charge in target's account
	uncached float64 // tokens charged
	prompt   int     // tokens held

	older, younger uint32 // neighbours by age, or the next free place
}

// openings are the open decisions of one pool, by key and by age. The zero value is ready for use.
type openings[K comparable] struct {
	places []opening // places[0] closes the ring of neighbours: its younger one is the oldest decision
	free   uint32    // first free place, 0 for none
	at     map[K]uint32
}

func (s *openings[K]) len() int { return len(s.at) }

// add enters a decision as the youngest one, of which there must be none under the key. The caller sees to a bound.
func (s *openings[K]) add(key K, o opening) {
	if s.at == nil {
		s.at, s.places = map[K]uint32{}, make([]opening, 1)
	}
	i := s.free
	if i != 0 {
		s.free = s.places[i].younger
	} else {
		i = uint32(len(s.places))
		s.places = append(s.places, opening{})
	}
	youngest := s.places[0].older
	o.older, o.younger = youngest, 0
	s.places[i] = o
	s.places[youngest].younger = i
	s.places[0].older = i
	s.at[key] = i
}

// oldest is the decision that has been open for longest, nil when none is.
func (s *openings[K]) oldest() *opening {
	if s.len() == 0 {
		return nil
	}
	return &s.places[s.places[0].younger]
}

// get is an open decision, nil when it is not open. It is valid until the next one is added or taken.
func (s *openings[K]) get(key K) *opening {
	i, ok := s.at[key]
	if !ok {
		return nil
	}
	return &s.places[i]
}

// take removes a decision and returns it.
func (s *openings[K]) take(key K) (opening, bool) {
	i, ok := s.at[key]
	if !ok {
		return opening{}, false
	}
	delete(s.at, key)
	o := s.places[i]
	s.places[o.older].younger = o.younger
	s.places[o.younger].older = o.older
	s.places[i] = opening{younger: s.free}
	s.free = i
	return o, true
}

const (
	recordsFresh = time.Minute // after a record in which records are taken to come
	strayWindow  = 64          // endings over which the share of strays is averaged
	mostStrays   = 0.1         // share of strays up to which the open decisions are taken for the running requests
)

// tally tells whether open decisions are the requests that run. They are while records come, from Envoy or passed on by another router, unless
// too many go astray: a record of another router's decision to which there is no way shows that ours go elsewhere too, and an expired
// decision that its record was lost.
type tally struct {
	last   time.Time // of the last record
	strays float64   // share among the last endings
}

func (t *tally) record(now time.Time) {
	t.last = now
	t.strays -= t.strays / strayWindow
}

func (t *tally) stray() { t.strays += (1 - t.strays) / strayWindow }

func (t *tally) exact(now time.Time) bool {
	return !t.last.IsZero() && now.Sub(t.last) <= recordsFresh && t.strays <= mostStrays
}

// booking says what place enters for a request.
type booking struct {
	number  uint64 // of the decision, 0 when nothing is entered
	charge  bool   // the prompt counts as load
	steered bool
	shed    float64 // backlog above which, at every candidate, nothing is entered and nobody chosen; 0 for never
}

// enter opens a decision and charges its endpoint. The caller holds mu and has advanced the account.
func (f *fleet) enter(t *target, b booking, uncached float64, prompt int, key uint64, now time.Time) {
	f.expire(now, expireStep)
	if f.open.len() >= maxOpen {
		f.expireOldest(now)
	}
	told := f.tells(b, prompt)
	if !b.charge {
		uncached, prompt, key = 0, 0, 0
	}
	f.open.add(b.number, opening{
		number: b.number, target: t, steered: b.steered, told: told, since: now,
		charge: t.account.charge(uncached, prompt, key), uncached: uncached, prompt: prompt,
	})
}

// expire ends at most so many decisions that are beyond their lifetime, and as many of other routers, and reports whether some may be left. The
// caller holds mu, and tells peers of f.over.
func (f *fleet) expire(now time.Time, most int) (more bool) {
	more = f.expireForeign(now, most)
	for range most {
		if o := f.open.oldest(); o == nil || now.Sub(o.since) < openLifetime {
			return more
		}
		f.expireOldest(now)
	}
	return true
}

func (f *fleet) expireOldest(now time.Time) {
	o, _ := f.open.take(f.open.oldest().number)
	f.release(o, now)
	f.tally.stray()
	f.expired++
	if o.told {
		f.over = append(f.over, o.number)
	}
}

// takeOver appends the expired decisions that peers are to be told of. The caller holds mu.
func (f *fleet) takeOver(dst []uint64) []uint64 {
	dst = append(dst, f.over...)
	f.over = f.over[:0]
	return dst
}

// release takes back what a decision has entered. The caller holds mu.
func (f *fleet) release(o opening, now time.Time) {
	o.target.account.advance(now, &f.pace)
	o.target.account.release(o.charge, o.uncached, o.prompt, now.Sub(o.since))
}
