package router

// Busy says whether requests that were sent to an endpoint are not known to have ended.
func (r *Router) Busy(pool, endpoint string) bool {
	f := r.fleet(pool)
	if f == nil {
		return false
	}
	f.expireAll(r.now())
	f.mu.Lock()
	defer f.mu.Unlock()
	for _, t := range f.at(endpoint) {
		if t.account.held > 0 {
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
