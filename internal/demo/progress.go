package demo

import (
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/kvsteer/kvsteer/internal/lab"
)

// meter shows how far an arm is: one line that is rewritten on a terminal, a line per tenth of the requests elsewhere.
type meter struct {
	out      io.Writer
	name     string
	total    int
	terminal bool
	began    time.Time

	mu             sync.Mutex
	sent, errors   int
	prompt, cached int
}

func progress(out io.Writer, name string, total int) *meter {
	m := &meter{out: out, name: name, total: total, began: time.Now()}
	if f, ok := out.(*os.File); ok {
		info, err := f.Stat()
		m.terminal = err == nil && info.Mode()&os.ModeCharDevice != 0
	}
	return m
}

func (m *meter) done(r lab.Reply) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.sent++
	if r.OK() {
		m.prompt += r.PromptTokens
		m.cached += r.CachedTokens
	} else {
		m.errors++
	}
	if m.terminal || m.sent*10/m.total != (m.sent-1)*10/m.total {
		m.print()
	}
}

func (m *meter) print() {
	share := 0.0
	if m.prompt > 0 {
		share = 100 * float64(m.cached) / float64(m.prompt)
	}
	start, end := "", "\n"
	if m.terminal {
		start, end = "\r\x1b[K", ""
	}
	fmt.Fprintf(m.out, "%s  %-17s %3d/%d requests, %d errors, %.1f %% of prompt tokens from cache, %.0f s%s",
		start, m.name, m.sent, m.total, m.errors, share, time.Since(m.began).Seconds(), end)
}

func (m *meter) end() {
	if m.terminal {
		fmt.Fprintln(m.out)
	}
}
