package main

import (
	"log/slog"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/feed"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/ports"
)

// nodeHanded is all that a reload hands to the parts of a running node.
type nodeHanded struct {
	Pools     []pool.Config
	Followed  []followed
	Scraped   []scraped
	Tokenizer map[string]config.Tokenizer
	Announced []feed.Replica // what the configuration alone says in them
	Probe     time.Duration
	Write     bool
}

func nodeHand(t *testing.T, cfg *config.Node) nodeHanded {
	t.Helper()
	keys, err := readKeys(nodeKeyFiles(cfg))
	if err != nil {
		t.Fatal(err)
	}
	h := nodeHanded{
		Pools: nodePoolConfigs(cfg, keys), Followed: followedEngines(cfg, ports.Picked{}), Scraped: scrapedOf(cfg), Tokenizer: tokenizerDirs(cfg),
		Probe: cfg.Probe.Interval.Std(), Write: cfg.Admin.Write,
	}
	for _, p := range cfg.Pools {
		for _, e := range p.Engines {
			h.Announced = append(h.Announced, feed.Replica{Endpoint: e.Address, Pool: p.Name, Models: p.Models, Engine: p.Engine})
		}
	}
	return h
}

// nodeLeaves walks the schema of a node's file. Of lists it takes the first element.
func nodeLeaves(t reflect.Type, key string, at func(*config.Node) reflect.Value) map[string]func(*config.Node) reflect.Value {
	all := map[string]func(*config.Node) reflect.Value{}
	switch {
	case t.Kind() == reflect.Struct:
		for i := range t.NumField() {
			name := strings.TrimPrefix(key+"."+t.Field(i).Tag.Get("yaml"), ".")
			for k, v := range nodeLeaves(t.Field(i).Type, name, func(c *config.Node) reflect.Value { return at(c).Field(i) }) {
				all[k] = v
			}
		}
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return nodeLeaves(t.Elem(), key, func(c *config.Node) reflect.Value { return at(c).Index(0) })
	default:
		all[key] = at
	}
	return all
}

// TestEveryNodeKeyIsClassified changes one key of the schema after the other, and holds for each that a reload either takes it over, or names
// it as waiting for a restart.
func TestEveryNodeKeyIsClassified(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("key "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := `
name: n1
state_dir: ` + filepath.Join(dir, "state") + `
pools:
- name: chat
  models: [tiny]
  api_key_file: ` + filepath.Join(dir, "one") + `
  tokenizer: {dir: ` + dir + `}
  tiers: {media: [{name: cpu, tier: host}]}
  adapter_ids: [{id: 1, name: sql}]
  engines: [{address: "10.0.0.1:8000", events: {dial: "tcp://127.0.0.1:5557"}}]
`
	parse := func() *config.Node {
		cfg, err := config.ParseNode("node.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	n, err := newNodeService("node.yaml", parse(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	before := nodeHand(t, parse())
	all := nodeLeaves(reflect.TypeFor[config.Node](), "", func(c *config.Node) reflect.Value { return reflect.ValueOf(c).Elem() })
	if len(all) < 40 {
		t.Fatalf("the walk finds only %d keys", len(all))
	}
	for key, at := range all {
		next := parse()
		switch v := at(next); {
		case key == "pools.api_key_file":
			v.SetString(filepath.Join(dir, "two"))
		case v.Kind() == reflect.String:
			v.SetString(v.String() + "x")
		case v.Kind() == reflect.Bool:
			v.SetBool(!v.Bool())
		case v.CanInt():
			v.SetInt(v.Int() - 1)
		case v.Kind() == reflect.Slice:
			v.Set(reflect.Append(v, reflect.ValueOf("x")))
		case v.Kind() == reflect.Array:
			v.Index(0).SetUint(v.Index(0).Uint() + 1)
		default:
			t.Fatalf("%s: no rule to change a %s", key, v.Type())
		}
		restart := slices.ContainsFunc(nodeRestartKeys(), func(k string) bool { return key == k || strings.HasPrefix(key, k+".") })
		var done report
		n.reloads.restrain(n.reloads.config(), next, &done)
		done.enter(config.Diff(n.reloads.config(), next), false)
		applied := !reflect.DeepEqual(before, nodeHand(t, next))
		switch {
		case restart:
			if !slices.Equal(done.waiting, []string{key}) || len(done.changes) > 0 || applied {
				t.Errorf("%s waits for a restart: named %v, changes %v, handed to a part %v", key, done.waiting, done.changes, applied)
			}
			continue
		case !applied:
			t.Errorf("%s: no part of a running node is told of its change, and it is not listed as waiting for a restart", key)
		}
		if len(done.waiting) > 0 || len(done.changes) == 0 {
			t.Errorf("%s: changes %v, waiting %v", key, done.changes, done.waiting)
		}
		if touched, other := done.touches("probe"), before.Probe != next.Probe.Interval.Std(); touched != other {
			t.Errorf("%s: the probe's interval is set %v, wanted %v", key, touched, other)
		}
	}
}
