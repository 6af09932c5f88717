package feed

import (
	"sync"
	"time"

	"google.golang.org/protobuf/proto"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

const (
	maxRecords   = 1024    // records that wait for one node; beyond, none is taken
	maxKept      = 1 << 14 // records to whose router there is no way, and as many that were sent lately; beyond, the oldest is forgotten
	maxKeptBytes = 8 << 20 // of either

	// keepFor is how long a record is looked after: a router that is not back by then has ended, and its decisions with it.
	keepFor = time.Minute
	// unsureFor is how long a node may take to see that a router hangs and does not hear it: its keepalive, 10 s and 5 s, and some time to say so.
	unsureFor = 20 * time.Second
	// keepLook is the time between two looks for what is over.
	keepLook = 10 * time.Second
)

// Passing says what becomes of a record for another router.
type Passing uint8

// What becomes of records.
const (
	NoWay  Passing = iota // it is not kept either: no node is watched, or the way is full
	Passed                // to a node that has the router as a peer
	Kept                  // until a node has it, for a minute at most
)

// Pass sends a record to the router of another instance, through a node that has it as a peer, or as soon as one has. A record is sent again when its
// way turns out to have been lost soon after; its router takes the second one for late. It may be called from any goroutine, and waits for no peer.
func (r *Router) Pass(instance string, rec Record) Passing {
	if instance == "" || len(instance) > maxInstance || !r.watches() {
		return NoWay
	}
	rec.Instance = instance
	return r.mail.post(rec.proto(), time.Now())
}

// watches says whether there is a node that might come to know other routers.
func (r *Router) watches() bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	return len(r.wanted) > 0
}

// mail are records of other routers' decisions: those that wait for nodes, in the outboxes of these, those to whose routers there is no way, and those that
// were sent lately. What moves from one to another does so under one lock, which is taken before that of origins: a record that is posted while a
// router comes or goes is seen either by that or by the move.
type mail struct {
	ways    func(instance string) []*watched
	metrics *RouterMetrics

	mu   sync.Mutex
	kept letters
	sent letters
}

// letter is one record.
type letter struct {
	record *feedpb.Record
	size   int       // bytes in memory, about
	came   time.Time // to this router
	sent   time.Time
	by     *outbox // that it was sent from
}

// letterBytes is what a record takes beside its texts, rounded up.
const letterBytes = 256

func (m *mail) post(record *feedpb.Record, now time.Time) Passing {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked(now)
	l := &letter{record: record, size: letterBytes + proto.Size(record), came: now}
	ways := m.ways(record.GetInstance())
	for _, n := range ways {
		if len(n.out.letters) < maxRecords {
			n.out.enterLocked(l)
			return Passed
		}
		n.metrics.record(recordDropped)
	}
	if len(ways) > 0 {
		return NoWay
	}
	m.keepLocked(l)
	return Kept
}

// againLocked finds another way for a letter. The bound of an outbox is for those that come: these are bounded where they were.
func (m *mail) againLocked(l *letter) {
	for _, n := range m.ways(l.record.GetInstance()) {
		if len(n.out.letters) < maxRecords+2*maxKept {
			n.out.enterLocked(l)
			return
		}
	}
	m.keepLocked(l)
}

func (o *outbox) enterLocked(l *letter) {
	o.letters = append(o.letters, l)
	o.poke()
}

func (m *mail) keepLocked(l *letter) {
	m.metrics.givenUp(givenUpFull, m.kept.add(l))
	m.metrics.kept.Set(float64(len(m.kept.list)))
}

// met hands over what is kept for routers that a node has as peers.
func (m *mail) met(instances []string) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(m.kept.list) == 0 {
		return
	}
	here := setOf(instances)
	for _, l := range m.kept.take(func(l *letter) bool { return here[l.record.GetInstance()] }) {
		m.againLocked(l)
	}
	m.metrics.kept.Set(float64(len(m.kept.list)))
}

// parted takes back what a node may not have handed to routers that it has lost: what waits for it, and what it was sent since a time.
func (m *mail) parted(o *outbox, instances []string, since, now time.Time) {
	if len(instances) == 0 {
		return
	}
	gone := setOf(instances)
	m.mu.Lock()
	defer m.mu.Unlock()
	back := m.sent.take(func(l *letter) bool {
		return l.by == o && gone[l.record.GetInstance()] && !l.sent.Before(since) && now.Sub(l.came) < keepFor
	})
	var wait []*letter
	for _, l := range o.letters {
		if gone[l.record.GetInstance()] {
			back = append(back, l)
		} else {
			wait = append(wait, l)
		}
	}
	o.letters = wait
	for _, l := range back {
		m.againLocked(l)
	}
}

// take is the next record to be sent from an outbox, nil when there is none.
func (m *mail) take(o *outbox, now time.Time) *feedpb.Record {
	m.mu.Lock()
	defer m.mu.Unlock()
	if len(o.letters) == 0 {
		return nil
	}
	l := o.letters[0]
	o.letters[0] = nil
	o.letters = o.letters[1:]
	l.by, l.sent = o, now
	m.sent.add(l)
	return l.record
}

func (m *mail) waits(o *outbox) bool {
	m.mu.Lock()
	defer m.mu.Unlock()
	return len(o.letters) > 0
}

// expire forgets what has been kept, and what was sent, for too long.
func (m *mail) expire(now time.Time) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.expireLocked(now)
}

func (m *mail) expireLocked(now time.Time) {
	over := 0
	for len(m.kept.list) > 0 && now.Sub(m.kept.list[0].came) >= keepFor {
		m.kept.pop()
		over++
	}
	if over > 0 {
		m.metrics.givenUp(givenUpExpired, over)
		m.metrics.kept.Set(float64(len(m.kept.list)))
	}
	for len(m.sent.list) > 0 && now.Sub(m.sent.list[0].sent) >= unsureFor {
		m.sent.pop()
	}
}

// letters is a bounded list, the oldest first.
type letters struct {
	list  []*letter
	bytes int
}

// add reports how many of the oldest have made room.
func (s *letters) add(l *letter) (dropped int) {
	for len(s.list) > 0 && (len(s.list) >= maxKept || s.bytes+l.size > maxKeptBytes) {
		s.pop()
		dropped++
	}
	s.list = append(s.list, l)
	s.bytes += l.size
	return dropped
}

func (s *letters) pop() {
	s.bytes -= s.list[0].size
	s.list[0] = nil
	if s.list = s.list[1:]; len(s.list) == 0 {
		s.list = nil
	}
}

// take removes those that are wanted, and returns them in their order.
func (s *letters) take(wanted func(*letter) bool) (taken []*letter) {
	var stay []*letter
	for _, l := range s.list {
		if wanted(l) {
			taken = append(taken, l)
			s.bytes -= l.size
		} else {
			stay = append(stay, l)
		}
	}
	s.list = stay
	return taken
}

func setOf(names []string) map[string]bool {
	set := make(map[string]bool, len(names))
	for _, n := range names {
		set[n] = true
	}
	return set
}
