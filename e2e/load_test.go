package e2e

import (
	"context"
	"fmt"
	"math"
	"math/rand/v2"
	"sync"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

const blockSize = 16

// steady are engine arguments for tests under load: answers take long enough for some to be cut, and a cache never fills.
var steady = []string{"--block-size", "16", "--blocks", "262144", "--prefill-rate", "1000000", "--decode-rate", "200", "--chunk-interval", "10ms"}

// audience is the clients of one pool.
type audience struct {
	pool    string
	clients int
	request lab.ChatRequest // but for the messages
}

// served is one request of a load as its client saw it.
type served struct {
	pool         string
	began, ended time.Time
	reply        lab.Reply
}

// maxLoad bounds the requests of one client.
const maxLoad = 3000

// load is clients that hold one short conversation after the other.
type load struct {
	ending chan struct{}
	once   sync.Once
	wg     sync.WaitGroup

	mu   sync.Mutex
	done []served
}

// startLoad starts the clients; they end with the test if not before.
func startLoad(t *testing.T, site *lab.Site, audiences ...audience) *load {
	t.Helper()
	l := &load{ending: make(chan struct{})}
	client := site.Client()
	for a, who := range audiences {
		for c := range who.clients {
			l.wg.Go(func() { l.converse(t.Context(), client, who, rand.New(rand.NewPCG(uint64(a), uint64(c)))) })
		}
	}
	t.Cleanup(func() {
		l.end()
		client.Close()
	})
	return l
}

func (l *load) converse(ctx context.Context, client *lab.Client, who audience, rng *rand.Rand) {
	request := who.request
	for n := range maxLoad {
		if n%3 == 0 { // a conversation has three turns, and nothing in common with others
			request.Messages = []lab.Message{{Role: "system", Content: prose(rng, 60)}}
		}
		select {
		case <-l.ending:
			return
		default:
		}
		request.Messages = append(request.Messages, lab.Message{Role: "user", Content: prose(rng, 20)})
		s := served{pool: who.pool, began: time.Now()}
		s.reply = client.Chat(ctx, request)
		s.ended = time.Now()
		l.mu.Lock()
		l.done = append(l.done, s)
		l.mu.Unlock()
		request.Messages = append(request.Messages, lab.Message{Role: "assistant", Content: s.reply.Text})
	}
}

// end lets every client finish its request and returns all requests.
func (l *load) end() []served {
	l.once.Do(func() { close(l.ending) })
	l.wg.Wait()
	return l.done
}

// replies returns the answers so far by request id.
func (l *load) replies() map[string]lab.Reply {
	l.mu.Lock()
	defer l.mu.Unlock()
	m := make(map[string]lab.Reply, len(l.done))
	for _, s := range l.done {
		m[s.reply.RequestID] = s.reply
	}
	return m
}

// watch follows the access log of a site.
type watch struct {
	t       *testing.T
	site    *lab.Site
	log     *lab.LogReader
	pools   map[string]string // by endpoint
	entries []lab.LogEntry
}

func startWatch(t *testing.T, site *lab.Site) *watch {
	w := &watch{t: t, site: site, log: site.FollowLog(), pools: map[string]string{}}
	for _, e := range site.Engines {
		w.pools[e.Address] = e.Pool
	}
	return w
}

// since returns the requests that began after a moment and are in the log.
func (w *watch) since(begin time.Time) []lab.LogEntry {
	w.t.Helper()
	more, err := w.log.Next()
	if err != nil {
		w.t.Fatal(err)
	}
	w.entries = append(w.entries, more...)
	var entries []lab.LogEntry
	for _, e := range w.entries {
		if !e.Start.Before(begin) {
			entries = append(entries, e)
		}
	}
	return entries
}

// all returns the whole log once it holds n requests.
func (w *watch) all(n int) []lab.LogEntry {
	w.t.Helper()
	eventually(w.t, fmt.Sprintf("%d requests in the access log", n), func() bool { return len(w.since(time.Time{})) >= n })
	return w.entries
}

// untilEachPool waits until each pool has answered n requests of a kind that began after a moment, and says how long that took.
func (w *watch) untilEachPool(what string, n int, begin time.Time, kind func(lab.LogEntry) bool) {
	w.t.Helper()
	defer func() {
		if !w.t.Failed() {
			return
		}
		kinds := map[string]int{}
		for _, e := range w.since(begin) {
			kinds[fmt.Sprintf("pool %s code %d reason %q", w.pools[e.Upstream], e.Code, e.Reason)]++
		}
		w.t.Logf("requests since: %v", kinds)
	}()
	eventually(w.t, fmt.Sprintf("%d %s in each pool", n, what), func() bool {
		count := map[string]int{}
		for _, e := range w.since(begin) {
			if e.Code == 200 && kind(e) {
				count[w.pools[e.Upstream]]++
			}
		}
		for _, pool := range w.pools {
			if count[pool] < n {
				return false
			}
		}
		return true
	})
	w.t.Logf("%d %s in each pool after %v", n, what, time.Since(begin).Round(time.Millisecond))
}

// metric reads a metric. One that cannot be read is not a number, which fits no condition.
func metric(t *testing.T, url, name string, labels ...string) float64 {
	t.Helper()
	v, err := lab.Metric(t.Context(), url, name, labels...)
	if err != nil {
		t.Log(err)
		return math.NaN()
	}
	return v
}

// routerMetric reads a metric of the router for one endpoint.
func routerMetric(t *testing.T, site *lab.Site, name, endpoint string) float64 {
	t.Helper()
	return metric(t, site.RouterAdmin+"/metrics", name, fmt.Sprintf("endpoint=%q", endpoint))
}
