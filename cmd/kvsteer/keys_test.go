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

	"github.com/kvsteer/kvsteer/extproc"
	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/discover"
	"github.com/kvsteer/kvsteer/internal/pool"
	"github.com/kvsteer/kvsteer/internal/router"
	"github.com/kvsteer/kvsteer/internal/tokenize"
)

// handed is all that a reload hands to the parts of a running router.
type handed struct {
	Pools     []pool.Config
	Settings  router.Settings
	Limits    extproc.Options
	Followed  []followed
	Probe     time.Duration
	Tokenizer tokenize.Options
	Write     bool
	Names     []discover.Name
	Refresh   time.Duration
	Nodes     []nodeAddress
	Announced bool
}

func hand(t *testing.T, cfg *config.Config) handed {
	t.Helper()
	keys, err := readKeys(keyFiles(cfg))
	if err != nil {
		t.Fatal(err)
	}
	return handed{
		poolConfigs(cfg, keys), settings(cfg, nil, keys), limits(cfg), followedBy(cfg), cfg.Probe.Interval.Std(), new(tokenizers).options(cfg), cfg.Admin.Write,
		namesOf(cfg), cfg.DNSRefresh.Std(), nodesOf(cfg, nil), cfg.Announces(&cfg.Pools[0]),
	}
}

// leaf is a key of the schema with a value of its own.
type leaf struct {
	key string
	at  func(*config.Config) reflect.Value
}

// leaves walks the schema. Of lists it takes the first element.
func leaves(t reflect.Type, key string, at func(*config.Config) reflect.Value) []leaf {
	switch {
	case t.Kind() == reflect.Struct:
		var all []leaf
		for i := range t.NumField() {
			name := t.Field(i).Tag.Get("yaml")
			if key != "" {
				name = key + "." + name
			}
			all = append(all, leaves(t.Field(i).Type, name, func(c *config.Config) reflect.Value { return at(c).Field(i) })...)
		}
		return all
	case t.Kind() == reflect.Slice && t.Elem().Kind() == reflect.Struct:
		return leaves(t.Elem(), key, func(c *config.Config) reflect.Value { return at(c).Index(0) })
	}
	return []leaf{{key, at}}
}

// TestEveryKeyIsClassified changes one key of the schema after the other, and holds for each that a reload either takes it over, or names it
// as waiting for a restart, or that kvsteer envoy alone reads it.
func TestEveryKeyIsClassified(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{"one", "two"} {
		if err := os.WriteFile(filepath.Join(dir, name), []byte("key "+name), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	text := `nodes: [{address: "127.0.0.1:9010", allow: ["10.0.0.1"]}]
pools: [{name: chat, models: [tiny], api_key_file: ` + filepath.Join(dir, "one") + `, tiers: {media: [{name: cpu, tier: host}]}, adapter_ids: [{id: 1, name: sql}], endpoints: [{address: "10.0.0.1:8000", events: {dial: "tcp://10.0.0.1:5557"}}]}]`
	parse := func() *config.Config {
		cfg, err := config.Parse("kvsteer.yaml", []byte(text))
		if err != nil {
			t.Fatal(err)
		}
		return cfg
	}
	s, err := newService("kvsteer.yaml", parse(), slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.reloads.tokenizers.current.Close()
	before := hand(t, parse())
	all := leaves(reflect.TypeFor[config.Config](), "", func(c *config.Config) reflect.Value { return reflect.ValueOf(c).Elem() })
	if len(all) < 50 {
		t.Fatalf("the walk finds only %d keys", len(all))
	}
	for _, l := range all {
		next := parse()
		switch v := l.at(next); {
		case l.key == "pools.api_key_file":
			v.SetString(filepath.Join(dir, "two"))
		case l.key == "envoy.layout":
			v.SetString("override_host")
		case l.key == "nodes.address":
			v.SetString("127.0.0.2:9010")
		case l.key == "nodes.allow":
			v.Set(reflect.ValueOf([]string{"10.0.0.0/8"}))
		case l.key == "pools.announced":
			v.SetString("true")
		case v.Kind() == reflect.String:
			v.SetString(v.String() + "x")
		case v.Kind() == reflect.Bool:
			v.SetBool(!v.Bool())
		case v.CanFloat():
			v.SetFloat(v.Float() / 2)
		case v.CanInt():
			v.SetInt(v.Int() - 1)
		case v.Kind() == reflect.Slice:
			v.Set(reflect.Append(v, reflect.ValueOf("x")))
		default:
			t.Fatalf("%s: no rule to change a %s", l.key, v.Type())
		}
		under := func(keys []string) bool {
			return slices.ContainsFunc(keys, func(k string) bool { return l.key == k || strings.HasPrefix(l.key, k+".") })
		}
		printed := !reflect.DeepEqual(new(envoyCmd).options(parse()), new(envoyCmd).options(next))
		var done report
		s.reloads.restrain(next, &done)
		done.enter(config.Diff(s.reloads.current, next), false)
		after := hand(t, next)
		applied := !reflect.DeepEqual(before, after)
		switch {
		case under(restartKeys()):
			if !slices.Equal(done.waiting, []string{l.key}) || len(done.changes) > 0 || applied {
				t.Errorf("%s waits for a restart: named %v, changes %v, handed to a part %v", l.key, done.waiting, done.changes, applied)
			}
			continue
		case under(envoyKeys()):
			if applied || !printed {
				t.Errorf("%s is Envoy's alone: handed to a part %v, printed %v", l.key, applied, printed)
			}
		case !applied:
			t.Errorf("%s: no part of a running router is told of its change, and it is listed neither as waiting for a restart nor as Envoy's", l.key)
		}
		if len(done.waiting) > 0 || len(done.changes) == 0 {
			t.Errorf("%s: changes %v, waiting %v", l.key, done.changes, done.waiting)
		}
		if touched, other := done.touches(tokenizerKeys()...), !reflect.DeepEqual(before.Tokenizer, after.Tokenizer); touched != other {
			t.Errorf("%s: another tokenizer is made %v, wanted %v", l.key, touched, other)
		}
		if touched, other := done.touches("probe"), before.Probe != after.Probe; touched != other {
			t.Errorf("%s: the probe's interval is set %v, wanted %v", l.key, touched, other)
		}
	}
}

// TestBodyLimitWaits holds that more than the start's body limit waits for a restart, and is named.
func TestBodyLimitWaits(t *testing.T) {
	const pools = `pools: [{name: chat, models: [tiny], endpoints: [{address: "10.0.0.1:8000"}]}]`
	cfg, err := config.Parse("a", []byte(pools))
	if err != nil {
		t.Fatal(err)
	}
	s, err := newService("kvsteer.yaml", cfg, slog.New(slog.DiscardHandler))
	if err != nil {
		t.Fatal(err)
	}
	defer s.reloads.tokenizers.current.Close()
	next, err := config.Parse("b", []byte("limits: {body: 64MiB}\n"+pools))
	if err != nil {
		t.Fatal(err)
	}
	var done report
	s.reloads.restrain(next, &done)
	if !slices.Equal(done.waiting, []string{"limits.body"}) || next.Limits.Body != cfg.Limits.Body {
		t.Errorf("waiting %v, body limit %v", done.waiting, next.Limits.Body)
	}
}
