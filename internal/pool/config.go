package pool

import (
	"cmp"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"
)

// Config describes one pool.
type Config struct {
	Name        string   // unique; metric label and part of the block namespace
	Models      []string // served names of the base weights, the first is canonical; at least one
	Adapters    []string // served names of adapters on these weights
	MaxModelLen int      // prompt and answer in tokens that the engines accept; 0 means not known
	PrefillRate float64  // estimated prefill speed of one rank of an endpoint in tokens per second; 0 means not known
	Mode        string   // what becomes of decisions: "on" (also ""), "observe" or "off"
	Unsteered   int      // in mode on, the percentage of requests that is left to Envoy: 0 to 100
	Match       Match    // what Envoy knows about a request of this pool without its body
	Endpoints   []string // ip:port, unique among all pools; none where they are still to be found

	Ranks   map[string]int // data-parallel ranks of those of Endpoints that have more than one
	PinRank bool           // decisions choose a rank of an endpoint; all endpoints have the same number then, and more than one

	CacheTokens   int           // KV cache of one rank of an endpoint in tokens, for matching by text; 0 switches that off
	CacheLifetime time.Duration // how long a prompt plausibly stays in it unused
	Draining      []string      // those of Endpoints that get no more requests, until a call says otherwise
	Leaving       []string      // those of Endpoints that get no more requests, whatever a call says

	AdaptersRefresh time.Duration // time between two questions to an endpoint for its models; 0: nothing is asked
	AdaptersAfter   time.Duration // until an endpoint that is new is asked: somebody else may tell what it serves; see Set.Announce
	APIKey          string        // sent with them as Bearer; "" for none
	SaltHeader      string        // request header that has the cache salt; "" for none
}

// Match selects requests by what Envoy's route table can see. All fields that are set must agree; the zero Match sets none.
type Match struct {
	Host        string // host without port, case-insensitive
	PathPrefix  string // whole leading segments of the path, such as /chat
	HeaderName  string // header that must be present …
	HeaderValue string // … with exactly this value; "" asks for presence only
}

func (m Match) zero() bool { return m == Match{} }

func (m Match) matches(host, path string, header func(string) string) bool {
	if m.Host != "" && !strings.EqualFold(m.Host, host) {
		return false
	}
	if rest, ok := strings.CutPrefix(path, m.PathPrefix); !ok || m.PathPrefix != "" && rest != "" && rest[0] != '/' {
		return false
	}
	if m.HeaderName == "" {
		return true
	}
	if header == nil {
		return false
	}
	got := header(m.HeaderName)
	return got != "" && (m.HeaderValue == "" || got == m.HeaderValue)
}

// bySpecificity orders matches as the routes of Envoy's configuration are ordered: longer path prefixes first, then those with a header, then
// those with a host.
func bySpecificity(a, b Match) int {
	set := func(s string) int { return min(len(s), 1) }
	return cmp.Or(
		cmp.Compare(len(b.PathPrefix), len(a.PathPrefix)),
		cmp.Compare(set(b.HeaderName), set(a.HeaderName)),
		cmp.Compare(set(b.Host), set(a.Host)),
	)
}

// validate reports every problem of the pools at once.
func validate(pools []Config) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if len(pools) == 0 {
		bad("pools: none given, at least one is needed")
	}
	names := map[string]bool{}
	models := map[string]string{}    // served name → pool
	addresses := map[string]string{} // ip:port → pool
	matches := map[Match]string{}
	for i, c := range pools {
		key := fmt.Sprintf("pools[%d]", i)
		switch {
		case c.Name == "":
			bad("%s.name: empty", key)
		case names[c.Name]:
			bad("%s.name: %q is used twice", key, c.Name)
		}
		names[c.Name] = true
		if len(c.Models) == 0 {
			bad("%s.models: none given, at least one is needed", key)
		}
		for _, m := range append(append([]string(nil), c.Models...), c.Adapters...) {
			if m == "" {
				bad("%s.models: empty name", key)
			} else if other, taken := models[m]; taken {
				bad("%s.models: %q already names a model of pool %q", key, m, other)
			}
			models[m] = c.Name
		}
		if c.MaxModelLen < 0 {
			bad("%s.max_model_len: %d, want 0 (not known) or more", key, c.MaxModelLen)
		}
		if c.CacheTokens < 0 || c.CacheLifetime < 0 {
			bad("%s.approximate: %d tokens for %s, want 0 or more", key, c.CacheTokens, c.CacheLifetime)
		}
		if c.AdaptersRefresh < 0 {
			bad("%s.adapters_refresh: %s, want 0 (off) or more", key, c.AdaptersRefresh)
		}
		if c.AdaptersAfter < 0 {
			bad("%s: %s until endpoints are asked for adapters, want 0 or more", key, c.AdaptersAfter)
		}
		switch c.Mode {
		case "", "on", "observe", "off":
		default:
			bad("%s.mode: %q is none of on, observe and off", key, c.Mode)
		}
		if c.Unsteered < 0 || c.Unsteered > 100 {
			bad("%s.percent: %d percent left to Envoy, want 0 to 100", key, c.Unsteered)
		}
		if c.Match.HeaderName == "" && c.Match.HeaderValue != "" {
			bad("%s.match.header: value %q without a name", key, c.Match.HeaderValue)
		}
		if other, taken := matches[c.Match]; taken && !c.Match.zero() {
			bad("%s.match: the same as that of pool %q", key, other)
		}
		matches[c.Match] = c.Name
		for _, text := range c.Endpoints {
			addr, err := parseAddress(text)
			if err != nil {
				bad("%s.endpoints: %w", key, err)
				continue
			}
			if other, taken := addresses[addr]; taken {
				bad("%s.endpoints: %q already stands in pool %q", key, text, other)
			}
			addresses[addr] = c.Name
		}
		c.validateRanks(key, bad)
		for _, text := range slices.Concat(c.Draining, c.Leaving) {
			if addr, err := parseAddress(text); err != nil || addresses[addr] != c.Name {
				bad("%s.endpoints: %q is to drain, and is no endpoint of the pool", key, text)
			}
		}
	}
	return errors.Join(errs...)
}

// maxRanks bounds the data-parallel ranks of one endpoint.
const maxRanks = 64

func (c Config) validateRanks(key string, bad func(format string, args ...any)) {
	for text, n := range c.Ranks {
		if n < 1 || n > maxRanks {
			bad("%s.endpoints: %q has %d ranks, want 1 to %d", key, text, n, maxRanks)
		}
		if !slices.Contains(c.Endpoints, text) {
			bad("%s.endpoints: %q has ranks, and is no endpoint of the pool", key, text)
		}
	}
	for i, text := range c.Endpoints {
		if n := c.ranks(i); c.PinRank && (n < 2 || n != c.ranks(0)) {
			bad("%s.pin_rank: endpoint %q has %d ranks, want more than one, and the same number everywhere", key, text, n)
		}
	}
}

// ranks is the number of ranks of Endpoints[i].
func (c Config) ranks(i int) int { return max(1, c.Ranks[c.Endpoints[i]]) }

// parseAddress returns the canonical ip:port. Envoy's ORIGINAL_DST clusters take an IP address and port, never a name.
func parseAddress(text string) (string, error) {
	ap, err := netip.ParseAddrPort(text)
	switch {
	case err != nil:
		return "", fmt.Errorf("%q is not ip:port", text)
	case ap.Port() == 0:
		return "", fmt.Errorf("%q has port 0, want 1 to 65535", text)
	case ap.Addr().IsUnspecified(), ap.Addr().IsMulticast():
		return "", fmt.Errorf("%q is not the address of one endpoint", text)
	case ap.Addr().Zone() != "":
		return "", fmt.Errorf("%q has a zone, which cannot be sent to Envoy", text)
	}
	return netip.AddrPortFrom(ap.Addr().Unmap(), ap.Port()).String(), nil
}
