package enginesim

import (
	"bufio"
	"context"
	"log/slog"
	"net"
	"slices"
	"strings"
	"sync"
	"time"
)

const (
	handshakeTimeout = 10 * time.Second
	maxSubscribers   = 64
	maxSubscriptions = 1024 // of one subscriber
	maxQueuedBytes   = 64 << 20
	minBackoff       = 50 * time.Millisecond
	maxBackoff       = time.Second
)

// publisher is the PUB socket of one rank. It binds or connects, and in both directions behaves as the real one: what nobody
// has subscribed to is dropped, and a subscriber that does not keep up misses messages and can see it from the gap in the
// sequence numbers. It keeps the last batches for the replay socket.
type publisher struct {
	topic     string
	maxQueued int // bytes queued for one subscriber; further messages are dropped for it
	log       *slog.Logger

	mu     sync.Mutex
	next   uint64 // sequence number
	lose   int    // so many of the next batches go to no subscriber
	subs   map[*subscriber]struct{}
	past   [][]byte // payloads of the batches before next, the oldest first
	buffer int      // most payloads in past; 0 without a replay socket
}

func newPublisher(topic string, buffer int, log *slog.Logger) *publisher {
	return &publisher{topic: topic, buffer: buffer, maxQueued: maxQueuedBytes, log: log, subs: make(map[*subscriber]struct{})}
}

// publish queues one payload for every subscriber and never blocks.
func (p *publisher) publish(payload []byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	msg := pubMessage(p.topic, p.next, payload)
	p.next++
	if p.buffer > 0 {
		p.past = append(p.past[max(0, len(p.past)+1-p.buffer):], payload)
	}
	if p.lose > 0 {
		p.lose--
		return
	}
	for s := range p.subs {
		s.offer(p.topic, msg, p.maxQueued)
	}
}

// since returns the batches from number from on that are still kept, and the number of the first of them.
func (p *publisher) since(from uint64) (first uint64, payloads [][]byte) {
	p.mu.Lock()
	defer p.mu.Unlock()
	oldest := p.next - uint64(len(p.past))
	first = min(max(from, oldest), p.next)
	return first, slices.Clone(p.past[first-oldest:])
}

// loseNext has the next n batches use up their numbers without reaching a subscriber.
func (p *publisher) loseNext(n int) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.lose = n
}

// cut closes the connections of all subscribers.
func (p *publisher) cut() {
	p.mu.Lock()
	defer p.mu.Unlock()
	for s := range p.subs {
		s.conn.Close()
	}
}

// accept serves subscribers that connect, until ctx ends. It returns when all goroutines it started have ended.
func (p *publisher) accept(ctx context.Context, l net.Listener) {
	acceptAll(ctx, l, p.log, func(ctx context.Context, conn net.Conn) error {
		_, err := p.serve(ctx, conn)
		return err
	})
}

// acceptAll serves at most maxSubscribers connections at a time, until ctx ends and all of them have.
func acceptAll(ctx context.Context, l net.Listener, log *slog.Logger, serve func(context.Context, net.Conn) error) {
	var wg sync.WaitGroup
	defer wg.Wait()
	defer context.AfterFunc(ctx, func() { l.Close() })()
	slots := make(chan struct{}, maxSubscribers)
	for {
		select {
		case slots <- struct{}{}:
		case <-ctx.Done():
			return
		}
		conn, err := l.Accept()
		if err != nil {
			if ctx.Err() != nil {
				return
			}
			log.Warn("accept a subscriber", "error", err)
			<-slots
			pause(ctx, minBackoff)
			continue
		}
		wg.Go(func() {
			defer func() { <-slots }()
			if err := serve(ctx, conn); err != nil && ctx.Err() == nil {
				log.Debug("subscriber left", "peer", conn.RemoteAddr(), "error", err)
			}
		})
	}
}

// connect keeps a connection to a subscriber that binds, until ctx ends.
func (p *publisher) connect(ctx context.Context, addr string) {
	dialer := net.Dialer{Timeout: handshakeTimeout}
	backoff := minBackoff
	for ctx.Err() == nil {
		conn, err := dialer.DialContext(ctx, "tcp", addr)
		if err == nil {
			var served bool
			if served, err = p.serve(ctx, conn); served {
				backoff = minBackoff
			}
		}
		if ctx.Err() == nil {
			p.log.Debug("subscriber not connected", "address", addr, "error", err, "retry_in", backoff)
		}
		pause(ctx, backoff)
		backoff = min(2*backoff, maxBackoff)
	}
}

// serve speaks to one subscriber until the connection or ctx ends; served is true once the handshake was done.
func (p *publisher) serve(ctx context.Context, conn net.Conn) (served bool, err error) {
	defer conn.Close()
	defer context.AfterFunc(ctx, func() { conn.Close() })()
	r := bufio.NewReader(conn)
	if err := pubSocket().handshake(conn, r); err != nil {
		return false, err
	}
	s := &subscriber{conn: conn, wake: make(chan struct{}, 1), prefixes: make(map[string]int)}
	p.mu.Lock()
	p.subs[s] = struct{}{}
	p.mu.Unlock()
	defer func() {
		p.mu.Lock()
		delete(p.subs, s)
		p.mu.Unlock()
	}()
	writing, stop := context.WithCancel(ctx)
	var wg sync.WaitGroup
	wg.Go(func() { s.write(writing) })
	err = s.read(r)
	stop()
	conn.Close()
	wg.Wait()
	return true, err
}

// subscriber is one connection.
type subscriber struct {
	conn net.Conn
	wake chan struct{} // holds a value after something was queued

	mu       sync.Mutex
	prefixes map[string]int // subscribed topic prefixes and how often
	queue    [][]byte
	queued   int // bytes in queue
}

// offer queues a message, unless the subscriber has not asked for its topic or its queue is full.
func (s *subscriber) offer(topic string, msg []byte, limit int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if !s.wants(topic) || s.queued+len(msg) > limit {
		return
	}
	s.push(msg)
}

func (s *subscriber) push(msg []byte) {
	s.queue = append(s.queue, msg)
	s.queued += len(msg)
	select {
	case s.wake <- struct{}{}:
	default:
	}
}

func (s *subscriber) wants(topic string) bool {
	for p := range s.prefixes {
		if strings.HasPrefix(topic, p) {
			return true
		}
	}
	return false
}

// write sends what is queued until ctx ends or the connection breaks, which read notices too. Messages count as queued
// until they are written.
func (s *subscriber) write(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.wake:
		}
		s.mu.Lock()
		out := net.Buffers(s.queue)
		s.queue = nil
		s.mu.Unlock()
		n, err := out.WriteTo(s.conn)
		if err != nil {
			s.conn.Close()
			return
		}
		s.mu.Lock()
		s.queued -= int(n)
		s.mu.Unlock()
	}
}

// read follows the subscriptions of the peer: messages of ZMTP 3.0, commands of 3.1.
func (s *subscriber) read(r *bufio.Reader) error {
	var buf []byte
	for {
		flags, body, err := readFrame(r, buf)
		if err != nil {
			return err
		}
		buf = body
		if flags&flagCommand == 0 {
			if len(body) > 0 && body[0] <= 1 {
				s.subscribe(string(body[1:]), body[0] == 1)
			}
			continue
		}
		cmd := string(body)
		switch {
		case strings.HasPrefix(cmd, "\x09SUBSCRIBE"):
			s.subscribe(cmd[10:], true)
		case strings.HasPrefix(cmd, "\x06CANCEL"):
			s.subscribe(cmd[7:], false)
		default:
			answer, ok := pong(body)
			s.mu.Lock()
			if ok && len(s.queue) == 0 { // else the peer hears from us anyway
				s.push(answer)
			}
			s.mu.Unlock()
		}
	}
}

func (s *subscriber) subscribe(prefix string, on bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	switch n := s.prefixes[prefix]; {
	case on && (n > 0 || len(s.prefixes) < maxSubscriptions):
		s.prefixes[prefix] = n + 1
	case !on && n > 1:
		s.prefixes[prefix] = n - 1
	case !on:
		delete(s.prefixes, prefix)
	}
}

// pause waits for d or the end of ctx.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
