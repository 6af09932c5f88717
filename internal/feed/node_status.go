package feed

import "time"

// RouterStatus is a router that watches a node.
type RouterStatus struct {
	Instance string
	Release  string
	Address  string // it comes from
	Since    time.Time
}

// Routers are the streams of routers that the node serves at this time, the oldest first.
func (n *Node) Routers() []RouterStatus {
	all := []RouterStatus{}
	for _, st := range n.streams() {
		all = append(all, RouterStatus{Instance: st.instance, Release: st.release, Address: st.address, Since: st.since})
	}
	return all
}
