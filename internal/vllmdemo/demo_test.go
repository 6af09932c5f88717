package vllmdemo

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/kvsteer/kvsteer/internal/lab"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// example is a folder with configurations at free ports, or at one that is taken.
func example(t *testing.T, config, ranks, admin string) string {
	t.Helper()
	ports, err := lab.FreeRuns(slices.Repeat([]int{2}, 20))
	if err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	if err := os.Mkdir(filepath.Join(dir, "with-node"), 0o755); err != nil {
		t.Fatal(err)
	}
	named := map[string]string{} // addresses that the configurations share, but for those of the ranks
	for _, file := range []struct{ name, config string }{{"kvsteer.yaml", config}, {"ranks.yaml", ranks}, {"with-node/kvsteer.yaml", goodWatching}, {"with-node/node.yaml", goodNode}} {
		name := file.name
		text := os.Expand(file.config, func(key string) string {
			if key == "admin" && admin != "" {
				return admin
			}
			if a, ok := named[key]; ok && name != "ranks.yaml" {
				return a
			}
			p := ports[0]
			ports = ports[1:]
			a := (&net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: p}).String()
			if name != "ranks.yaml" {
				named[key] = a
			}
			return a
		})
		if err := os.WriteFile(filepath.Join(dir, name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return dir
}

const good = `listen: $router
admin: $admin
envoy: {listen: "$envoy", admin: "$envoyadmin"}
pools:
- name: chat
  models: [tiny]
  adapters: [a]
  endpoints:
  - {address: "$one", events: {listen: "tcp://$events1", replay: "tcp://$replay1"}}
  - {address: "$two", events: {listen: "tcp://$events2", replay: "tcp://$replay2"}}
`

const goodWatching = `listen: $router
admin: $admin
envoy: {listen: "$envoy", admin: "$envoyadmin"}
nodes: [{address: "$nodelisten"}]
pools:
- name: chat
  models: [tiny]
  endpoints:
  - {address: "$one"}
  - {address: "$two"}
`

const goodNode = `listen: $nodelisten
admin: $nodeadmin
pools:
- name: chat
  models: [tiny]
  engines:
  - {address: "$one", events: {listen: "tcp://$events1", replay: "tcp://$replay1"}}
  - {address: "$two", events: {listen: "tcp://$events2", replay: "tcp://$replay2"}}
`

const goodRanks = `listen: $router
admin: $admin
envoy: {listen: "$envoy", admin: "$envoyadmin"}
pools:
- name: chat
  models: [tiny]
  adapters: [a]
  pin_rank: true
  endpoints:
  - {address: "$one", events: {listen: "tcp://$events", replay: "tcp://$replay", ranks: 2}}
`

// TestRunFails holds that what cannot work is said, and that nothing is left behind.
func TestRunFails(t *testing.T) {
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	program := filepath.Join(t.TempDir(), "program")
	if err := os.WriteFile(program, []byte("#!/bin/sh\necho \"no such configuration\"\nexit 3\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	cancelled, cancel := context.WithCancel(t.Context())
	cancel()
	for name, tt := range map[string]struct {
		ctx     context.Context
		options Options
		want    string
	}{
		"no binary":        {t.Context(), Options{Kvsteer: "/nothing", Envoy: program, Example: example(t, good, goodRanks, "")}, "kvsteer binary"},
		"no configuration": {t.Context(), Options{Kvsteer: program, Envoy: program, Example: t.TempDir()}, "kvsteer.yaml"},
		"no adapter":       {t.Context(), Options{Kvsteer: program, Envoy: program, Example: example(t, strings.Replace(good, "  adapters: [a]\n", "", 1), goodRanks, "")}, "an adapter"},
		"socket":           {t.Context(), Options{Kvsteer: program, Envoy: program, Example: example(t, strings.Replace(good, "$router", "unix:/tmp/x.sock", 1), goodRanks, "")}, "is not ip:port"},
		"no replay":        {t.Context(), Options{Kvsteer: program, Envoy: program, Example: example(t, strings.Replace(good, `, replay: "tcp://$replay1"`, "", 1), goodRanks, "")}, "events.replay"},
		"one rank":         {t.Context(), Options{Kvsteer: program, Envoy: program, Example: example(t, good, strings.Replace(strings.Replace(goodRanks, ", ranks: 2", "", 1), "pin_rank: true", "pin_rank: false", 1), "")}, "ranks: 2"},
		"another node":     {t.Context(), Options{Kvsteer: program, Envoy: program, Example: example(t, strings.Replace(good, "$events2", "$elsewhere", 1), goodRanks, "")}, "as "},
		"port taken":       {t.Context(), Options{Kvsteer: program, Envoy: program, Example: example(t, good, goodRanks, taken.Addr().String())}, "port is in use"},
		"router ends":      {t.Context(), Options{Kvsteer: program, Envoy: program, Example: example(t, good, goodRanks, "")}, "no such configuration"},
		"too few":          {t.Context(), Options{Size: 11}, "not in the range 12 to 1000"},
		"cancelled":        {cancelled, Options{Kvsteer: program, Envoy: program, Example: example(t, good, goodRanks, "")}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			temp := t.TempDir()
			t.Setenv("TMPDIR", temp)
			tt.options.Out = io.Discard
			err := Run(tt.ctx, tt.options)
			if err == nil || !strings.Contains(err.Error(), tt.want) {
				t.Errorf("error %v, want %q", err, tt.want)
			}
			if left, _ := os.ReadDir(temp); len(left) > 0 && (errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "are kept in")) {
				t.Errorf("%v is left, and the error does not say so: %v", left, err)
			}
		})
	}
}
