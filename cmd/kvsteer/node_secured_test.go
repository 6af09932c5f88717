package main

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"

	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/lab"
	"github.com/kvsteer/kvsteer/internal/tlsfiles"
)

// served is a fleet that only keeps what is served.
type servedFleet struct {
	mu       sync.Mutex
	replicas []feed.Replica
}

func (f *servedFleet) Serve(_ string, replicas []feed.Replica) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.replicas = replicas
}

func (f *servedFleet) served() []feed.Replica {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.replicas
}

func (f *servedFleet) Sink(string, string, int) (feed.Sink, error) {
	return nil, errors.New("not wanted")
}
func (f *servedFleet) Load(string, []feed.Load)       {}
func (f *servedFleet) Charge(string, feed.Charge)     {}
func (f *servedFleet) Release(string, string, uint64) {}
func (f *servedFleet) Silent(string)                  {}
func (f *servedFleet) Gone(string)                    {}
func (f *servedFleet) Record(feed.Record)             {}

// TestNodeSecured holds that a node with mutual TLS and a token lets only routers in that have both, takes a token over that changes, and hands out
// the tokenizer files that it offers.
func TestNodeSecured(t *testing.T) {
	site := newNodeSite(t)
	authority, err := lab.NewAuthority(site.dir, "ca")
	if err != nil {
		t.Fatal(err)
	}
	certFile, keyFile, err := authority.Issue("node", "node.test", "127.0.0.1")
	if err != nil {
		t.Fatal(err)
	}
	routerCert, routerKey, err := authority.Issue("router", "router.test")
	if err != nil {
		t.Fatal(err)
	}
	ca, tokenPath, model := filepath.Join(site.dir, "ca.pem"), filepath.Join(site.dir, "token"), filepath.Join(site.dir, "model")
	write := func(path, text string) {
		t.Helper()
		if err := errors.Join(os.WriteFile(path+".new", []byte(text), 0o600), os.Rename(path+".new", path)); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(model, 0o700); err != nil {
		t.Fatal(err)
	}
	write(filepath.Join(model, "tokenizer.json"), "{}")
	write(tokenPath, "the-token-of-the-first-day")
	site.head = fmt.Sprintf("tls: {cert_file: %s, key_file: %s, client_ca_file: %s}\ntoken_file: %s\n", certFile, keyFile, ca, tokenPath) +
		strings.Replace(site.head, "  engines:\n", fmt.Sprintf("  tokenizer: {dir: %s}\n  engines:\n", model), 1)
	site.write(`address: ":9"`)
	n := site.start()

	var mu sync.Mutex
	token := "the-token-of-the-first-day"
	start := func(options tlsfiles.ClientOptions) (*servedFleet, *feed.Router, func()) {
		t.Helper()
		options.CAFile, options.Protocols = ca, []string{"h2"}
		c, err := tlsfiles.Client(options)
		if err != nil {
			t.Fatal(err)
		}
		fleet := new(servedFleet)
		r, err := feed.NewRouter(feed.RouterOptions{Release: "test", Instance: "router", Fleet: fleet, TLS: func() *tls.Config { return c }, Token: func() string {
			mu.Lock()
			defer mu.Unlock()
			return token
		}})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(context.Background())
		var wg sync.WaitGroup
		wg.Go(func() { _ = r.Run(ctx) })
		stop := func() { cancel(); wg.Wait() }
		t.Cleanup(stop)
		r.Set([]feed.Address{{Addr: site.listen}})
		return fleet, r, stop
	}
	tried := func(r *feed.Router) func() bool {
		return func() bool { all := r.Nodes(); return len(all) == 1 && all[0].Problem != "" && !all[0].Connected }
	}
	_, bare, stop := start(tlsfiles.ClientOptions{})
	until(t, "a router without a certificate is refused", tried(bare))
	stop()

	own := tlsfiles.ClientOptions{CertFile: routerCert, KeyFile: routerKey}
	fleet, r, stop := start(own)
	until(t, "the engine is served", func() bool { return len(fleet.served()) == 1 })
	replica := fleet.served()[0]
	if replica.Endpoint != "127.0.0.1:9" || len(replica.Files) != 1 {
		t.Errorf("%+v", replica)
	}
	path, err := r.Fetch(t.Context(), site.listen, replica.Files[0], t.TempDir(), 1000)
	if err != nil {
		t.Fatal(err)
	}
	if text, err := os.ReadFile(path); err != nil || string(text) != "{}" {
		t.Errorf("file %q, %v", text, err)
	}
	stop()

	write(tokenPath, "the-token-of-the-second-day")
	n.until("the token is read again", func() bool { return strings.Contains(n.log.String(), "the token is read again") })
	fleet, r, stop = start(own)
	until(t, "a router with the old token is refused", tried(r))
	mu.Lock()
	token = "the-token-of-the-second-day"
	mu.Unlock()
	until(t, "it is let in with the new one", func() bool { return len(fleet.served()) == 1 })
	stop()
	if strings.Contains(n.log.String(), "the-token-of") {
		t.Error("the log tells the token")
	}
}
