package subscriber

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/blockhash"
)

// testEngine publishes and replays as an engine does, with the faults that a test sets. Its sockets outlive its processes, as ports do.
type testEngine struct {
	t       testing.TB
	events  net.Listener
	replays net.Listener
	wg      sync.WaitGroup

	mu          sync.Mutex
	subscribers map[net.Conn]bool // whether they have subscribed
	askers      map[net.Conn]bool
	batches     [][]byte // of the process, from number 0
	process     int
	asked       []uint64 // replays asked for

	// Faults.
	keep    int                 // batches that are replayed, 0 for all
	old     bool                // replies without a topic
	deaf    bool                // replays are refused
	silent  bool                // replays are not answered
	garbage []byte              // the answer to every request, instead
	drop    func(i, n int) bool // whether reply i of n is lost

	late []lateBatch // on the way
}

// fate is what becomes of a batch on its way to the subscribers.
type fate uint8

const (
	arrives fate = iota
	isLost
	isLate  // comes after some that were published later
	isTwice // comes, and again later
)

type lateBatch struct {
	seq   uint64
	after int // batches that overtake it
}

func newTestEngine(t testing.TB) *testEngine {
	t.Helper()
	e := &testEngine{t: t, subscribers: map[net.Conn]bool{}, askers: map[net.Conn]bool{}}
	for _, l := range []struct {
		ln    *net.Listener
		serve func(net.Conn)
	}{{&e.events, e.subscribe}, {&e.replays, e.answer}} {
		ln, err := net.Listen("tcp", "127.0.0.1:0")
		if err != nil {
			t.Fatal(err)
		}
		*l.ln = ln
		e.wg.Go(func() {
			for {
				c, err := ln.Accept()
				if err != nil {
					return
				}
				e.wg.Go(func() { l.serve(c) })
			}
		})
	}
	t.Cleanup(e.close)
	return e
}

// close ends both sockets.
func (e *testEngine) close() {
	_ = e.events.Close()
	_ = e.replays.Close()
	e.cut()
	e.mu.Lock()
	for c := range e.askers {
		_ = c.Close()
	}
	e.mu.Unlock()
	e.wg.Wait()
}

func (e *testEngine) dial() string   { return "tcp://" + e.events.Addr().String() }
func (e *testEngine) replay() string { return "tcp://" + e.replays.Addr().String() }

// shake does the handshake of a socket of the given type.
func shake(c net.Conn, kind string) (*bufio.Reader, error) {
	if _, err := c.Write(concat(greeting(), ready(property("Socket-Type", kind), property("Identity", "")))); err != nil {
		return nil, err
	}
	in := bufio.NewReader(c)
	if _, err := in.Discard(greetingSize); err != nil {
		return nil, err
	}
	_, _, err := readShort(in)
	return in, err
}

func readShort(in *bufio.Reader) (flags byte, body []byte, err error) {
	head := make([]byte, shortHeader)
	if _, err := io.ReadFull(in, head); err != nil {
		return 0, nil, err
	}
	body = make([]byte, head[1])
	_, err = io.ReadFull(in, body)
	return head[0], body, err
}

func (e *testEngine) subscribe(c net.Conn) {
	defer c.Close()
	e.set(func(e *testEngine) { e.subscribers[c] = false })
	defer e.set(func(e *testEngine) { delete(e.subscribers, c) })
	in, err := shake(c, "PUB")
	if err != nil {
		return
	}
	if _, _, err := readShort(in); err != nil {
		return
	}
	e.set(func(e *testEngine) {
		if _, ok := e.subscribers[c]; ok {
			e.subscribers[c] = true
		}
	})
	_, _ = io.Copy(io.Discard, in)
}

func (e *testEngine) answer(c net.Conn) {
	defer c.Close()
	e.mu.Lock()
	if e.deaf {
		e.mu.Unlock()
		return
	}
	e.askers[c] = true
	e.mu.Unlock()
	defer func() {
		e.mu.Lock()
		delete(e.askers, c)
		e.mu.Unlock()
	}()
	in, err := shake(c, "ROUTER")
	if err != nil {
		return
	}
	for {
		if _, body, err := readShort(in); err != nil || len(body) != 0 {
			return
		}
		_, body, err := readShort(in)
		if err != nil || len(body) != 8 {
			return
		}
		if _, err := c.Write(e.replies(binary.BigEndian.Uint64(body))); err != nil {
			return
		}
	}
}

// replies returns the answer to a request.
func (e *testEngine) replies(from uint64) []byte {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.asked = append(e.asked, from)
	switch {
	case e.silent:
		return nil
	case e.garbage != nil:
		return e.garbage
	}
	reply := func(topic string, seq uint64, payload []byte) []byte {
		number := string(binary.BigEndian.AppendUint64(nil, seq))
		if e.old {
			return message("", number, string(payload))
		}
		return message("", topic, number, string(payload))
	}
	oldest := 0
	if e.keep > 0 {
		oldest = max(0, len(e.batches)-e.keep)
	}
	first := max(oldest, int(min(from, uint64(len(e.batches)))))
	var out []byte
	for i, n := first, len(e.batches); i < n; i++ {
		if e.drop != nil && e.drop(i-first, n-first) {
			continue
		}
		out = append(out, reply("kv-events", uint64(i), e.batches[i])...)
	}
	return append(out, reply("", endOfReplay, nil)...)
}

// publish makes events a batch and sends it to the subscribers, unless it is lost on the way.
func (e *testEngine) publish(lost bool, events ...any) {
	f := arrives
	if lost {
		f = isLost
	}
	e.publishTo(f, 0, events...)
}

// publishTo is publish with any fate; after is how many batches overtake a late one.
func (e *testEngine) publishTo(f fate, after int, events ...any) {
	e.mu.Lock()
	defer e.mu.Unlock()
	// The time says which process it is.
	payload := pack([]any{1_700_000_000.5 + float64(e.process), events, 0})
	seq := uint64(len(e.batches))
	e.batches = append(e.batches, payload)
	if f == arrives || f == isTwice {
		e.send(seq)
	}
	late := e.late
	e.late = nil
	for _, b := range late {
		if b.after--; b.after > 0 {
			e.late = append(e.late, b)
			continue
		}
		e.send(b.seq)
	}
	if f == isLate || f == isTwice {
		e.late = append(e.late, lateBatch{seq, after})
	}
}

// send sends a batch to the subscribers. The caller holds mu.
func (e *testEngine) send(seq uint64) {
	for c, subscribed := range e.subscribers {
		if subscribed {
			_, _ = c.Write(live(seq, string(e.batches[seq])))
		}
	}
}

// cut ends all connections of subscribers.
func (e *testEngine) cut() {
	e.mu.Lock()
	defer e.mu.Unlock()
	for c := range e.subscribers {
		_ = c.Close()
		delete(e.subscribers, c)
	}
	e.late = nil
}

// restart begins another process, which holds nothing.
func (e *testEngine) restart() {
	e.set(func(e *testEngine) { e.batches, e.late, e.process = nil, nil, e.process+1 })
	e.cut()
}

// subscribed tells whether there is a subscriber.
func (e *testEngine) subscribed() bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	for _, yes := range e.subscribers {
		if yes {
			return true
		}
	}
	return false
}

func (e *testEngine) set(do func(e *testEngine)) {
	e.mu.Lock()
	defer e.mu.Unlock()
	do(e)
}

// holds returns the fingerprints that the process holds: those that a Subscriber announces which heard everything.
func (e *testEngine) holds() map[uint64]bool {
	e.mu.Lock()
	defer e.mu.Unlock()
	sink := newCheckedSink(e.t)
	f := newFold(foldOptions{pool: "chat", sink: sink})
	for _, b := range e.batches {
		sink.begin()
		mustHold(e.t, f, b)
	}
	return sink.tiers[Device]
}

func mustHold(t testing.TB, f *fold, payload []byte) {
	t.Helper()
	if _, err := f.fold(payload, time.Time{}); err != nil {
		t.Fatal(err)
	}
}

// cacheOf draws the events of an engine's cache: chains of blocks that are stored, extended and removed from their ends.
type cacheOf struct {
	rnd    *rand.Rand
	chains [][]uint64
	next   uint64
}

func (c *cacheOf) events() (out []any) {
	for range 1 + c.rnd.IntN(3) {
		i := c.rnd.IntN(len(c.chains) + 1)
		switch {
		case i == len(c.chains) || len(c.chains[i]) == 0:
			c.chains = append(c.chains, nil)
			i = len(c.chains) - 1
			fallthrough
		case c.rnd.IntN(5) > 1:
			out = append(out, c.store(i))
		default:
			chain := c.chains[i]
			n := 1 + c.rnd.IntN(len(chain))
			gone := make([]uint64, 0, n)
			for j := range n {
				gone = append(gone, chain[len(chain)-1-j])
			}
			c.chains[i] = chain[:len(chain)-n]
			out = append(out, removedEvent(gone...))
		}
	}
	return out
}

func (c *cacheOf) store(i int) any {
	var parent any
	if n := len(c.chains[i]); n > 0 {
		parent = c.chains[i][n-1]
	}
	var hashes []uint64
	var tokens []uint32
	for range 1 + c.rnd.IntN(4) {
		c.next++
		hashes = append(hashes, blockhash.Chain(c.next, 1))
		tokens = append(tokens, uint32(c.next), uint32(c.next>>32))
	}
	c.chains[i] = append(c.chains[i], hashes...)
	return storedEvent(parent, 2, tokens, hashes...)
}

// heldSink is a Sink that other goroutines may read.
type heldSink struct {
	mu     sync.Mutex
	t      testing.TB
	tiers  [2]map[uint64]bool
	about  Description
	resets map[Cause]int
	calls  int
}

func newHeldSink(t testing.TB) *heldSink {
	return &heldSink{t: t, tiers: [2]map[uint64]bool{{}, {}}, resets: map[Cause]int{}}
}

func (s *heldSink) Store(tier Tier, keys []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	for _, k := range keys {
		if s.tiers[tier][k] {
			s.t.Errorf("store of %x, which is there", k)
		}
		s.tiers[tier][k] = true
	}
}

func (s *heldSink) Remove(tier Tier, keys []uint64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.calls++
	for _, k := range keys {
		if !s.tiers[tier][k] {
			s.t.Errorf("remove of %x, which is not there", k)
		}
		delete(s.tiers[tier], k)
	}
}

func (s *heldSink) Reset(cause Cause) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.resets[cause]++
	s.tiers = [2]map[uint64]bool{{}, {}}
}

func (s *heldSink) Describe(d Description) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.about = d
}

// compare says how the announced set differs from what is held.
func (s *heldSink) compare(held map[uint64]bool) (connected, complete bool, lacks, exceeds int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for k := range held {
		if !s.tiers[Device][k] {
			lacks++
		}
	}
	for k := range s.tiers[Device] {
		if !held[k] {
			exceeds++
		}
	}
	return s.about.Connected, s.about.Complete, lacks, exceeds
}

func (s *heldSink) complete() bool {
	_, complete, _, _ := s.compare(nil)
	return complete
}

func (s *heldSink) resetCount() string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return fmt.Sprint(s.resets)
}
