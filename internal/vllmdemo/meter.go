package vllmdemo

import (
	"fmt"
	"io"
	"sync"
	"time"
)

// meter prints a line per fifth of the requests.
type meter struct {
	out   io.Writer
	total int

	mu    sync.Mutex
	n     int
	began time.Time
}

func (m *meter) done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.n == 0 {
		m.began = time.Now()
	}
	m.n++
	if m.n*5/m.total != (m.n-1)*5/m.total {
		fmt.Fprintf(m.out, "  %d of %d requests, %.0f s\n", m.n, m.total, time.Since(m.began).Seconds())
	}
}
