package enginesim

import (
	"errors"
	"fmt"
	"net"
	"net/http"
	"strconv"
	"syscall"
	"time"
)

// rankHeader names the rank that shall serve a request.
const rankHeader = "X-data-parallel-rank"

// rank is one data-parallel rank: a scheduler with a cache, and the sockets that tell of it.
type rank struct {
	loop     *loop
	encoder  encoder
	pub      *publisher // nil without events, as replayer
	replayer *replayer
}

func newRank(o *Options, i int, m latencies) *rank {
	r := &rank{encoder: encoder{format: o.Events.Format, hashes: o.Events.Hashes, rank: i}}
	if o.Events.Bind != "" || o.Events.Connect != "" {
		buffer := 0
		if o.Events.Replay != "" {
			buffer = o.Events.BufferSteps
		}
		r.pub = newPublisher(o.Events.Topic, buffer, o.Log)
		r.replayer = newReplayer(r.pub, o.Events.Format, o.Events.ReplayLimit, o.Log)
	}
	sched := scheduler{
		blockSize: o.BlockSize, maxStepTokens: o.Timing.MaxStepTokens, maxRunning: o.Timing.MaxRunning,
		cache: newCache(o.Blocks, o.Events.Format),
	}
	r.loop = newLoop(sched, o.Timing, m, r.publish)
	return r
}

// publish sends one step's events, numbered in order, as one message.
func (r *rank) publish(at time.Time, events []event) {
	if r.pub != nil {
		r.pub.publish(r.encoder.batch(at, events))
	}
}

// pick returns the rank that serves a request: the one that its header names, else the one with the fewest requests, in turn
// among equals. A header that is no number names none.
func (e *Engine) pick(h http.Header) (*rank, *apiError) {
	if text := h.Get(rankHeader); text != "" {
		n, err := strconv.Atoi(text)
		switch {
		case err == nil && n >= 0 && n < len(e.ranks):
			return e.ranks[n], nil
		case err == nil || errors.Is(err, strconv.ErrRange):
			return nil, badRequest("", "data_parallel_rank %s is out of range [0, %d).", text, len(e.ranks))
		}
	}
	var best *rank
	least := 0
	start := int(e.turn.Add(1)-1) % len(e.ranks)
	for i := range e.ranks {
		r := e.ranks[(start+i)%len(e.ranks)]
		l := r.loop.load()
		if n := l.running + l.waiting; best == nil || n < least {
			best, least = r, n
		}
	}
	return best, nil
}

// bindAll listens on an endpoint's port and the ones after it, one for each rank; none for the endpoint "". For port 0 it looks for
// as many free ports in a row.
func bindAll(endpoint string, ranks int) ([]net.Listener, error) {
	if endpoint == "" {
		return nil, nil
	}
	addr, err := tcpAddress(endpoint, 0)
	if err != nil {
		return nil, err
	}
	const attempts = 100
	for try := 1; ; try++ {
		var all []net.Listener
		next := addr
		for len(all) < ranks && err == nil {
			var l net.Listener
			if l, err = net.Listen("tcp", next); err == nil {
				all = append(all, l)
				host, _, _ := net.SplitHostPort(addr)
				next = net.JoinHostPort(host, strconv.Itoa(l.Addr().(*net.TCPAddr).Port+1))
			}
		}
		if err == nil {
			return all, nil
		}
		closeAll(all)
		if free := portOf(addr) == "0"; !free || !errors.Is(err, syscall.EADDRINUSE) || try == attempts {
			return nil, fmt.Errorf("%s for %d ranks: %w", endpoint, ranks, err)
		}
		err = nil
	}
}

func portOf(addr string) string {
	_, port, _ := net.SplitHostPort(addr)
	return port
}

func closeAll(ls []net.Listener) {
	for _, l := range ls {
		l.Close()
	}
}

func firstAddr(ls []net.Listener) net.Addr {
	if len(ls) == 0 {
		return nil
	}
	return ls[0].Addr()
}
