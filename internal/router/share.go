package router

import (
	"errors"
	"sync"
	"sync/atomic"

	"github.com/kvsteer/kvsteer/kvindex"
)

// While crowdedFrom of the blocks that the index may hold are taken, nobody may have more than fairShare of them, so that one node, whatever it
// announces, leaves room for the others. What is below that fits, however it is spread, and is matched.
const (
	crowdedFrom = 31.0 / 32
	fairShare   = 1.0 / 2
)

// errShare says that an owner has more than its share of the index while others need room.
var errShare = errors.New("more than a fair share of a crowded index")

// owners are those whose sources write into the index: nodes, and engines that are followed directly.
type owners struct {
	several atomic.Bool

	mu  sync.Mutex
	all map[string]*owner
}

type owner struct {
	of   *owners
	name string
	held atomic.Int64 // blocks of all its sources; a block that several hold counts for each

	sources int // guarded by of.mu
}

// join counts a source of an owner.
func (o *owners) join(name string) *owner {
	o.mu.Lock()
	defer o.mu.Unlock()
	if o.all == nil {
		o.all = map[string]*owner{}
	}
	w := o.all[name]
	if w == nil {
		w = &owner{of: o, name: name}
		o.all[name] = w
	}
	w.sources++
	o.several.Store(len(o.all) > 1)
	return w
}

// leave takes a source out.
func (w *owner) leave() {
	w.of.mu.Lock()
	defer w.of.mu.Unlock()
	if w.sources--; w.sources == 0 {
		delete(w.of.all, w.name)
		w.of.several.Store(len(w.of.all) > 1)
	}
}

// exceeds says whether the owner has to give way.
func (w *owner) exceeds(x *kvindex.Index) bool {
	return w.of.several.Load() && x.Used() >= crowdedFrom && x.Share(w.held.Load()) > fairShare
}
