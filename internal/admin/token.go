package admin

import (
	"context"
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"time"

	"github.com/kvsteer/kvsteer/internal/watch"
)

const (
	minToken = 16       // characters: 64 bits if they are random hexadecimal digits
	maxToken = 4 << 10  // bytes of the file
	scheme   = "bearer" // compared without case
)

// token is what requests must bring. Only its SHA-256 is kept, which also makes what is compared equally long.
type token struct {
	path    string
	log     *slog.Logger
	watcher *watch.Watcher
	sum     atomic.Pointer[[sha256.Size]byte]
}

func newToken(path string, poll time.Duration, log *slog.Logger) (*token, error) {
	watcher, err := watch.New(watch.Options{Paths: []string{path}, Poll: poll, Log: log})
	if err != nil {
		return nil, fmt.Errorf("admin.token_file: %w", err)
	}
	t := &token{path: path, log: log, watcher: watcher}
	return t, t.read()
}

// read takes over what the file holds; what was in use stays if that is no token.
func (t *token) read() error {
	text, err := ReadToken(t.path)
	if err != nil {
		return fmt.Errorf("admin.token_file: %w", err)
	}
	sum := sha256.Sum256([]byte(text))
	t.sum.Store(&sum)
	return nil
}

// ReadToken reads a token file, as both sides of the listener need it. The token shows in no error.
func ReadToken(path string) (string, error) {
	data, err := watch.ReadFile(path, maxToken)
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(string(data))
	switch {
	case strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }):
		return "", fmt.Errorf("%q does not hold one word of visible ASCII characters", path)
	case len(text) < minToken:
		return "", fmt.Errorf("%q holds fewer than %d characters", path, minToken)
	}
	return text, nil
}

// brought reports whether a request brings the token.
func (t *token) brought(r *http.Request) bool {
	kind, text, ok := strings.Cut(r.Header.Get("Authorization"), " ")
	if !ok || !strings.EqualFold(kind, scheme) {
		return false
	}
	sum := sha256.Sum256([]byte(strings.TrimSpace(text)))
	return subtle.ConstantTimeCompare(sum[:], t.sum.Load()[:]) == 1
}

// follow reads the file again when it changes, until ctx ends.
func (t *token) follow(ctx context.Context) {
	_ = t.watcher.Run(ctx, t.reload) // it ends with ctx only
}

func (t *token) reload() {
	if err := t.read(); err != nil {
		t.log.Warn("the changed token file is refused; the old token stays in use", "error", err)
		return
	}
	t.log.Info("the admin token is read again")
}
