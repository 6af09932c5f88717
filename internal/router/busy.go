package router

// Busy says whether requests that were sent to an endpoint, by this router or by others that tell it, are not known to have ended. Those of a router that
// is gone end by estimate: when what they have to compute is worked off and their prompts have faded.
func (r *Router) Busy(pool, endpoint string) bool {
	f := r.fleet(pool)
	if f == nil {
		return false
	}
	now := r.now()
	f.expireAll(now)
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.at(endpoint) {
		t.account.advance(now, &f.pace)
		if t.account.busy() {
			return true
		}
	}
	return false
}

// Follows says whether what is told to a source counts: its endpoint is still the one that the pool has under that address. One that has left
// the configuration and is back begins anew.
func (r *Router) Follows(s *Source) bool {
	f := r.fleet(s.fleet.name())
	if f != s.fleet {
		return false
	}
	t := f.target(s.endpoint.Addr())
	return t != nil && t.endpoint == s.endpoint && s.rank.number < len(t.of.all) && t.of.all[s.rank.number] == s.rank
}
