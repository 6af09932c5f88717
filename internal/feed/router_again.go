package feed

// Again has the node that speaks for an endpoint tell all its blocks anew, on another stream, and reports whether there is such a node. It may be
// called from any goroutine and waits for nothing. Without a stream the next one brings all blocks anyway.
func (r *Router) Again(endpoint string) bool {
	n, _ := r.owners.of(endpoint)
	if n == nil {
		return false
	}
	n.again()
	return true
}
