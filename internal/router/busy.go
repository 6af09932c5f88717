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
