// Package logtest is for tests that read what other goroutines log.
package logtest

import (
	"strings"
	"sync"
)

// Buffer is a log that can be read while it is written, by any number of goroutines. The zero value is empty.
type Buffer struct {
	mu   sync.Mutex
	text strings.Builder
}

// Write adds to the log. It never fails.
func (b *Buffer) Write(p []byte) (int, error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.Write(p)
}

// String is the log so far.
func (b *Buffer) String() string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.text.String()
}
