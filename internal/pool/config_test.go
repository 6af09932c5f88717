package pool

import (
	"strings"
	"testing"
)

func chat() Config {
	return Config{Name: "chat", Models: []string{"llama"}, Adapters: []string{"sql"}, Endpoints: []string{"10.0.0.1:8000"}}
}

func TestNewValidates(t *testing.T) {
	with := func(f func(*Config)) []Config {
		c := chat()
		f(&c)
		return []Config{c}
	}
	second := func(f func(*Config)) []Config {
		c := Config{Name: "code", Models: []string{"qwen"}, Endpoints: []string{"10.0.0.2:8000"}}
		f(&c)
		return []Config{chat(), c}
	}
	tests := []struct {
		name  string
		pools []Config
		want  []string // parts of the error; none: valid
	}{
		{"one pool", []Config{chat()}, nil},
		{"two pools", second(func(*Config) {}), nil},
		{"ipv6", with(func(c *Config) { c.Endpoints = []string{"[fd00::1]:8000"} }), nil},
		{"no pools", nil, []string{"pools: none given"}},
		{"no name", with(func(c *Config) { c.Name = "" }), []string{"pools[0].name: empty"}},
		{"name twice", second(func(c *Config) { c.Name = "chat" }), []string{`pools[1].name: "chat" is used twice`}},
		{"no models", with(func(c *Config) { c.Models = nil }), []string{"pools[0].models: none given"}},
		{"empty adapter", with(func(c *Config) { c.Adapters = []string{""} }), []string{"empty name"}},
		{"adapter named like a base", with(func(c *Config) { c.Adapters = []string{"llama"} }), []string{`"llama" already names a model of pool "chat"`}},
		{"model in two pools", second(func(c *Config) { c.Models = []string{"sql"} }), []string{`pools[1].models: "sql" already names`}},
		{"host name", with(func(c *Config) { c.Endpoints = []string{"engine:8000"} }), []string{`"engine:8000" is not ip:port`}},
		{"port 0", with(func(c *Config) { c.Endpoints = []string{"10.0.0.1:0"} }), []string{"port 0"}},
		{"unspecified address", with(func(c *Config) { c.Endpoints = []string{"0.0.0.0:8000"} }), []string{"not the address of one endpoint"}},
		{"zone", with(func(c *Config) { c.Endpoints = []string{"[fe80::1%eth0]:8000"} }), []string{"zone"}},
		{"same endpoint in two spellings", second(func(c *Config) { c.Endpoints = []string{"[::ffff:10.0.0.1]:8000"} }), []string{`already stands in pool "chat"`}},
		{"negative length", with(func(c *Config) { c.MaxModelLen = -1 }), []string{"max_model_len: -1"}},
		{"header value without name", with(func(c *Config) { c.Match.HeaderValue = "x" }), []string{"without a name"}},
		{"mode", with(func(c *Config) { c.Mode = "ON" }), []string{`mode: "ON" is none of`}},
		{"share above all", with(func(c *Config) { c.Unsteered = 101 }), []string{"percent: 101"}},
		{"draining endpoint of another pool", second(func(c *Config) { c.Draining = []string{"10.0.0.1:8000"} }), []string{"is no endpoint of the pool"}},
		{"leaving endpoint of another pool", second(func(c *Config) { c.Leaving = []string{"10.0.0.1:8000"} }), []string{"is no endpoint of the pool"}},
		{"no endpoints yet", with(func(c *Config) { c.Endpoints = nil }), nil},
		{"draining endpoint in another spelling", with(func(c *Config) { c.Draining = []string{"[::ffff:10.0.0.1]:8000"} }), nil},
		{"ranks", with(func(c *Config) { c.Ranks, c.PinRank = map[string]int{"10.0.0.1:8000": 64}, true }), nil},
		{"too many ranks", with(func(c *Config) { c.Ranks = map[string]int{"10.0.0.1:8000": 65} }), []string{`"10.0.0.1:8000" has 65 ranks, want 1 to 64`}},
		{"no ranks", with(func(c *Config) { c.Ranks = map[string]int{"10.0.0.1:8000": 0} }), []string{`"10.0.0.1:8000" has 0 ranks`}},
		{"ranks of another endpoint", with(func(c *Config) { c.Ranks = map[string]int{"10.0.0.9:8000": 2} }), []string{`"10.0.0.9:8000" has ranks, and is no endpoint of the pool`}},
		{"pinned without ranks", with(func(c *Config) { c.PinRank = true }), []string{`pools[0].pin_rank: endpoint "10.0.0.1:8000" has 1 ranks`}},
		{"pinned with different ranks", with(func(c *Config) {
			c.Endpoints = append(c.Endpoints, "10.0.0.2:8000")
			c.Ranks, c.PinRank = map[string]int{"10.0.0.1:8000": 2, "10.0.0.2:8000": 3}, true
		}), []string{`pools[0].pin_rank: endpoint "10.0.0.2:8000" has 3 ranks`}},
		{"everything at once", []Config{{MaxModelLen: -1}}, []string{"name: empty", "models: none", "max_model_len"}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			_, err := New(Options{Pools: tt.pools})
			if (err == nil) != (len(tt.want) == 0) {
				t.Fatalf("New: error %v, want parts %q", err, tt.want)
			}
			for _, part := range tt.want {
				if !strings.Contains(err.Error(), part) {
					t.Errorf("error %q lacks %q", err, part)
				}
			}
		})
	}
}

func TestSameMatchTwice(t *testing.T) {
	a, b := chat(), Config{Name: "code", Models: []string{"qwen"}, Endpoints: []string{"10.0.0.2:8000"}}
	a.Match.Host, b.Match.Host = "x.example", "x.example"
	if _, err := New(Options{Pools: []Config{a, b}}); err == nil || !strings.Contains(err.Error(), `the same as that of pool "chat"`) {
		t.Fatalf("New: %v", err)
	}
}

func TestByModel(t *testing.T) {
	s, err := New(Options{Pools: []Config{chat()}})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		model, pool, adapter string
	}{
		{"llama", "chat", ""},
		{"sql", "chat", "sql"},
		{"Llama", "", ""},
		{"", "", ""},
		{"chat", "", ""},
	}
	for _, tt := range tests {
		p, adapter, ok := s.ByModel(tt.model)
		name := ""
		if ok {
			name = p.Name()
		}
		if name != tt.pool || adapter != tt.adapter {
			t.Errorf("ByModel(%q) = %q, %q; want %q, %q", tt.model, name, adapter, tt.pool, tt.adapter)
		}
	}
}

func TestByRequest(t *testing.T) {
	pool := func(name string, m Match) Config {
		return Config{Name: name, Models: []string{"m-" + name}, Endpoints: []string{"10.0.0.1:" + map[string]string{"host": "1", "path": "2", "header": "3", "value": "4", "open": "5", "open2": "6"}[name]}, Match: m}
	}
	host, six := pool("host", Match{Host: "a.example"}), pool("host", Match{Host: "[fd00::1]"})
	path := pool("path", Match{PathPrefix: "/code"})
	header := pool("header", Match{HeaderName: "x-team", HeaderValue: "red"})
	value := pool("value", Match{HeaderName: "x-any"})
	open, open2 := pool("open", Match{}), pool("open2", Match{})
	keyed := []Config{host, path, header, value}
	headers := func(kv ...string) func(string) string {
		return func(name string) string {
			for i := 0; i < len(kv); i += 2 {
				if kv[i] == name {
					return kv[i+1]
				}
			}
			return ""
		}
	}
	tests := []struct {
		name   string
		pools  []Config
		host   string
		path   string
		header func(string) string
		want   string
	}{
		{"host with port and other case", keyed, "A.example:8080", "/", nil, "host"},
		{"IPv6 host with port", []Config{six, path}, "[FD00::1]:8080", "/", nil, "host"},
		{"IPv6 host without port", []Config{six, path}, "[fd00::1]", "/", nil, "host"},
		{"path", keyed, "b.example", "/code/v1/completions?x=1", nil, "path"},
		{"header value", keyed, "", "/", headers("x-team", "red"), "header"},
		{"header presence", keyed, "", "/", headers("x-any", "1"), "value"},
		{"path goes before header and host", keyed, "a.example", "/code/", headers("x-team", "red"), "path"},
		{"header goes before host", keyed, "a.example", "/", headers("x-team", "red"), "header"},
		{"path alone", keyed, "", "/code", nil, "path"},
		{"half a segment", keyed, "", "/codex/v1", nil, ""},
		{"only pool", []Config{open}, "", "", nil, "open"},
		{"pool without a match takes the rest", append([]Config{open}, keyed...), "b.example", "/", nil, "open"},
		{"match goes before", append([]Config{open}, keyed...), "a.example", "/", nil, "host"},
		{"wrong header value", keyed, "", "/", headers("x-team", "blue"), ""},
		{"prefix in the query only", keyed, "", "/v1?q=/code", nil, ""},
		{"no header", keyed, "b.example", "/", nil, ""},
		{"two pools without a match", []Config{open, open2}, "", "/", nil, ""},
		{"only pool asks for a host", []Config{host}, "b.example", "/", nil, ""},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s, err := New(Options{Pools: tt.pools})
			if err != nil {
				t.Fatal(err)
			}
			p, ok := s.ByRequest(tt.host, tt.path, tt.header)
			got := ""
			if ok {
				got = p.Name()
			}
			if got != tt.want {
				t.Errorf("got pool %q, want %q", got, tt.want)
			}
		})
	}
}
