package main

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/logtest"
)

// TestStopLeavesNothing runs a whole service with TLS, a token and events, changes its configuration, and holds that no goroutine of it is
// left when run has returned.
func TestStopLeavesNothing(t *testing.T) {
	const dialling, listening = `{address: "127.0.0.1:9", events: {dial: "tcp://127.0.0.1:9"}}`, `{address: "127.0.0.1:10", events: {listen: "tcp://127.0.0.1:0"}}`
	ignore := goleak.IgnoreCurrent()
	dir := t.TempDir()
	authority, err := lab.NewAuthority(dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile, err := authority.Issue("router", "router.test")
	if err != nil {
		t.Fatal(err)
	}
	path, token := filepath.Join(dir, "kvsteer.yaml"), filepath.Join(dir, "token")
	head := fmt.Sprintf("listen: unix:%s\nadmin: {listen: \"127.0.0.1:0\", token_file: %s, tls: {cert_file: %s, key_file: %s}}\ntls: {cert_file: %[3]s, key_file: %[4]s}\ndrain: 0s\n",
		filepath.Join(dir, "s"), token, certFile, keyFile)
	log := new(logtest.Buffer)
	r := &running{t: t, path: path, log: log}
	write := func(path, text string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	write(token, "a-token-of-many-letters")
	write(path, head+site(dialling, listening))
	cfg, err := config.Load(path)
	if err != nil {
		t.Fatal(err)
	}
	if r.service, err = newService(path, cfg, slog.New(slog.NewTextHandler(log, nil))); err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	defer stop()
	done := make(chan error, 1)
	go func() { done <- r.run(ctx) }()
	r.until("it is serving and listens for events", func() bool {
		return strings.Contains(log.String(), "msg=serving") && strings.Contains(log.String(), "waiting for the engine")
	})
	// Another subscriber, another tokenizer, one endpoint less.
	r.change(head + "tokenize: {concurrency: 3}\n" + site(strings.Replace(dialling, "dial:", "topic: kv, dial:", 1)))
	r.reread()
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if _, err := os.Stat(filepath.Join(dir, "s")); !os.IsNotExist(err) {
		t.Errorf("the socket is left: %v", err)
	}
	if strings.Contains(log.String(), "a-token") {
		t.Error("the log tells the token")
	}
	goleak.VerifyNone(t, ignore)
}
