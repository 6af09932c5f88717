package lab

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"sync"
	"syscall"
)

// Options names the programs of a lab and its folder.
type Options struct {
	Kvsteer string // the kvsteer binary
	Envoy   string // an Envoy binary, 1.37 or newer
	Dir     string // existing folder for configurations, sockets and logs; the router's socket in it must not exceed 107 bytes
}

// Lab owns a set of processes.
type Lab struct {
	opt   Options
	spawn *spawner

	mu        sync.Mutex
	processes []*Process // in the order they were started
	relays    []*Relay
	closed    bool
}

// New returns a lab without processes.
func New(o Options) (*Lab, error) {
	for name, path := range map[string]string{"kvsteer": o.Kvsteer, "Envoy": o.Envoy} {
		if path == "" {
			return nil, fmt.Errorf("lab: the path of the %s binary is needed", name)
		}
		if _, err := os.Stat(path); err != nil {
			return nil, fmt.Errorf("lab: %s binary: %w", name, err)
		}
	}
	if info, err := os.Stat(o.Dir); err != nil || !info.IsDir() {
		return nil, fmt.Errorf("lab: %q is not a folder", o.Dir)
	}
	return &Lab{opt: o, spawn: newSpawner()}, nil
}

// Close stops all processes at the same time, so that it takes as long as the slowest of them, and returns when all have ended.
func (l *Lab) Close() {
	l.mu.Lock()
	l.closed = true
	processes, relays := l.processes, l.relays
	l.mu.Unlock()
	var wg sync.WaitGroup
	for _, p := range processes {
		wg.Go(p.Stop)
	}
	wg.Wait()
	for _, r := range relays {
		r.close()
	}
	l.spawn.close()
}

// StartRelay returns a relay from a free loopback port to ip:port. It ends with the lab.
func (l *Lab) StartRelay(to string) (*Relay, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return nil, fmt.Errorf("relay to %s: the lab is closed", to)
	}
	r, err := newRelay(to)
	if err == nil {
		l.relays = append(l.relays, r)
	}
	return r, err
}

// Ports that FreePorts gives: below those that Linux gives to outgoing connections (32768 and up), so that no connection takes one
// between the choice and its use, and apart from those that the examples use (18000 and 28000 up).
const (
	lowestPort  = 19_000
	highestPort = 27_999
)

// FreePorts returns n loopback TCP ports that nothing listened on a moment ago. Another process may take one before its use;
// whoever starts on it then says so.
func FreePorts(n int) ([]int, error) { return FreeRuns(slices.Repeat([]int{1}, n)) }

// FreeRuns returns the first ports of runs of consecutive free ports, as many in each as lengths say.
func FreeRuns(lengths []int) ([]int, error) {
	ports := make([]int, 0, len(lengths))
	var open []net.Listener
	defer func() { closeAll(open) }()
	var last error
	for range 100 * len(lengths) {
		if len(ports) == len(lengths) {
			break
		}
		n := lengths[len(ports)]
		port := lowestPort + rand.IntN(highestPort-lowestPort+2-n)
		run, err := listenRun(port, n)
		if err != nil {
			last = err
			continue
		}
		open = append(open, run...)
		ports = append(ports, port)
	}
	if len(ports) < len(lengths) {
		return nil, fmt.Errorf("find %d runs of free ports from %d to %d: %w", len(lengths), lowestPort, highestPort, last)
	}
	return ports, nil
}

func listenRun(port, n int) ([]net.Listener, error) {
	var run []net.Listener
	for i := range n {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port+i))
		if err != nil {
			closeAll(run)
			return nil, err
		}
		run = append(run, l)
	}
	return run, nil
}

func closeAll(ls []net.Listener) {
	for _, l := range ls {
		l.Close()
	}
}

// ErrPortTaken is wrapped by CheckPorts.
var ErrPortTaken = errors.New("port is in use")

// CheckPorts reports the first of n loopback ports from base on that is taken, or that cannot be had for another reason.
func CheckPorts(base, n int) error {
	for port := base; port < base+n; port++ {
		l, err := net.Listen("tcp", fmt.Sprintf("127.0.0.1:%d", port))
		switch {
		case errors.Is(err, syscall.EADDRINUSE):
			return fmt.Errorf("127.0.0.1:%d: %w", port, ErrPortTaken)
		case err != nil:
			return fmt.Errorf("check port %d: %w", port, err)
		}
		l.Close()
	}
	return nil
}
