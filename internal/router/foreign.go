package router

import "time"

const (
	maxForeign       = 4 * maxOpen // charges of other routers in one pool
	maxForeignOrigin = maxOpen     // of these, of one router

	// foreignStep bounds the places of charges looked at in one go under the ledger's lock.
	foreignStep = 1024
)

// ChargeOutcome says what became of another router's charge; one of a closed set.
type ChargeOutcome string

// The outcomes of charges.
const (
	ChargeEntered ChargeOutcome = "entered"
	ChargeMoved   ChargeOutcome = "moved"
	ChargeAgain   ChargeOutcome = "again"
	ChargeUnknown ChargeOutcome = "unknown"
	ChargeFull    ChargeOutcome = "full"
)

// ChargeOutcomeDoc is one outcome and what it means, for documentation.
type ChargeOutcomeDoc struct {
	Outcome ChargeOutcome
	Meaning string
}

// ChargeOutcomes lists the closed set of outcomes.
func ChargeOutcomes() []ChargeOutcomeDoc {
	return []ChargeOutcomeDoc{
		{ChargeEntered, "it counts as load of its endpoint"},
		{ChargeMoved, "its request runs at another endpoint than it was charged at, and counts there"},
		{ChargeAgain, "it counts already"},
		{ChargeUnknown, "its pool or endpoint is not configured here"},
		{ChargeFull, "it does not count, as 65,536 of its router or 262,144 of its pool do"},
	}
}

// origin is another router with charges in a fleet.
type origin struct {
	name    string
	charges int
}

// foreignKey names a charge of another router.
type foreignKey struct {
	origin *origin
	number uint64
}

// foreign are the charges of other routers in one pool. An origin that is gone is not in origins any more, while its charges are taken out.
type foreign struct {
	charges openings[foreignKey]
	origins map[string]*origin
}

// of finds the origin of a name, and makes one where there is none.
func (s *foreign) of(name string) *origin {
	o := s.origins[name]
	if o == nil {
		if s.origins == nil {
			s.origins = map[string]*origin{}
		}
		o = &origin{name: name}
		s.origins[name] = o
	}
	return o
}

// take removes a charge and returns it.
func (s *foreign) take(key foreignKey) (opening, bool) {
	o, ok := s.charges.take(key)
	if !ok {
		return opening{}, false
	}
	if key.origin.charges--; key.origin.charges == 0 && s.origins[key.origin.name] == key.origin {
		delete(s.origins, key.origin.name)
	}
	return o, true
}

// Charge enters what another router has charged, so that requests are priced by what both have sent. origin is its instance. One that is never
// released expires as decisions do.
func (r *Router) Charge(origin string, c Charge) { r.m.charge(r.chargeForeign(origin, c)) }

func (r *Router) chargeForeign(origin string, c Charge) ChargeOutcome {
	f := r.fleet(c.Pool)
	if f == nil || origin == "" || len(origin) > maxInstance || origin == r.ids.instance || c.Number == 0 {
		return ChargeUnknown
	}
	t := f.charged(c)
	if t == nil {
		return ChargeUnknown
	}
	c.Prompt = min(max(c.Prompt, 0), longest(f, r.settings.Load()))
	c.Uncached = min(max(c.Uncached, 0), c.Prompt)
	return f.chargeForeign(origin, t, c, r.now())
}

// charged is the target of another router's charge; nil when there is none. Where only this router's decisions choose ranks, requests of
// the others come to all of them in turn.
func (f *fleet) charged(c Charge) *target {
	all := f.at(c.Endpoint)
	switch {
	case len(all) == 0:
		return nil
	case !all[0].pinned:
		return all[0]
	case c.Rank < 0:
		return all[c.Number%uint64(len(all))]
	}
	for _, t := range all {
		if t.ranks[0].number == c.Rank {
			return t
		}
	}
	return nil
}

func (f *fleet) chargeForeign(from string, t *target, c Charge, now time.Time) ChargeOutcome {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.expireForeign(now, expireStep)
	o := f.foreign.of(from)
	key := foreignKey{o, c.Number}
	if was := f.foreign.charges.get(key); was != nil {
		if was.target == t {
			return ChargeAgain
		}
		f.release(*was, now)
		was.target.account.forget(was.uncached, now.Sub(was.since))
		was.target, was.uncached, was.prompt = t, float64(c.Uncached), c.Prompt
		t.account.advance(now, &f.pace)
		was.charge = t.account.charge(was.uncached, was.prompt, c.Key)
		return ChargeMoved
	}
	if o.charges >= maxForeignOrigin || f.foreign.charges.len() >= maxForeign {
		if o.charges == 0 {
			delete(f.foreign.origins, from)
		}
		return ChargeFull
	}
	o.charges++
	t.account.advance(now, &f.pace)
	f.foreign.charges.add(key, opening{
		number: c.Number, origin: o, target: t, since: now,
		charge: t.account.charge(float64(c.Uncached), c.Prompt, c.Key), uncached: float64(c.Uncached), prompt: c.Prompt,
	})
	return ChargeEntered
}

// Release takes back what is left of another router's charge. One that is not known, or has been released, changes nothing.
func (r *Router) Release(origin, pool string, number uint64) {
	f := r.fleet(pool)
	if f == nil {
		return
	}
	now := r.now()
	f.mu.Lock()
	defer f.mu.Unlock()
	if from := f.foreign.origins[origin]; from != nil {
		if o, ok := f.foreign.take(foreignKey{from, number}); ok {
			f.release(o, now)
		}
	}
}

// Gone says that nothing will be heard of a router's decisions any more, while their requests go on running. Its charges stay in the queues,
// which work them off, and their prompts fade from the memory as those of requests of which nothing tells when they end.
func (r *Router) Gone(origin string) {
	for _, f := range r.all() {
		f.gone(origin, r.now())
	}
}

func (f *fleet) gone(name string, now time.Time) {
	f.mu.Lock()
	from := f.foreign.origins[name]
	delete(f.foreign.origins, name)
	f.mu.Unlock()
	if from == nil {
		return
	}
	f.eachForeign(func(o *opening) {
		if o.origin != from {
			return
		}
		was, _ := f.foreign.take(foreignKey{from, o.number})
		was.target.account.advance(now, &f.pace)
		was.target.account.fade(was.prompt, now.Sub(was.since), f.tally.exact(now))
	})
}

// dropForeign forgets other routers' charges at targets that are gone.
func (f *fleet) dropForeign(targets []*target, now time.Time) {
	if len(targets) == 0 {
		return
	}
	gone := make(map[*target]bool, len(targets))
	for _, t := range targets {
		gone[t] = true
	}
	f.eachForeign(func(o *opening) {
		if gone[o.target] {
			was, _ := f.foreign.take(foreignKey{o.origin, o.number})
			f.release(was, now)
		}
	})
}

// eachForeign calls do for each of other routers' charges that there is all the time, letting others have the lock in between. do may take the charge
// that it is called for, and no other one.
func (f *fleet) eachForeign(do func(*opening)) {
	for i, more := 1, true; more; i += foreignStep {
		more = f.someForeign(i, do)
	}
}

func (f *fleet) someForeign(from int, do func(*opening)) (more bool) {
	f.mu.Lock()
	defer f.mu.Unlock()
	places := f.foreign.charges.places
	for i := from; i < min(from+foreignStep, len(places)); i++ {
		if places[i].origin != nil { // else the place is free
			do(&places[i])
		}
	}
	return from+foreignStep < len(places)
}

// expireForeign ends at most so many charges of other routers that are beyond the lifetime of decisions, and reports whether some may be left. The
// caller holds mu.
func (f *fleet) expireForeign(now time.Time, most int) (more bool) {
	for range most {
		o := f.foreign.charges.oldest()
		if o == nil || now.Sub(o.since) < openLifetime {
			return false
		}
		was, _ := f.foreign.take(foreignKey{o.origin, o.number})
		f.release(was, now)
	}
	return true
}
