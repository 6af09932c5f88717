package router

import (
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/kvsteer/kvsteer/internal/openai"
	"github.com/kvsteer/kvsteer/internal/pool"
)

// Settings are the options of a Router that Apply replaces. They mean what they mean in [Options], and have the same defaults.
type Settings struct {
	Tokenizer Tokenizer
	Render    bool
	APIKeys   map[string]string
	Tiers     map[string]TierWeights
	Budget    time.Duration
	Limits    openai.Limits
}

// withDefaults returns a copy of s with every default filled in, or all that is wrong with it.
func (s Settings) withDefaults() (*Settings, error) {
	var errs []error
	if s.Budget < 0 {
		errs = append(errs, fmt.Errorf("budget: %v, want more than 0", s.Budget))
	}
	for _, name := range slices.Sorted(maps.Keys(s.Tiers)) {
		if err := s.Tiers[name].check(); err != nil {
			errs = append(errs, fmt.Errorf("tiers of pool %q: %w", name, err))
		}
	}
	if len(errs) > 0 {
		return nil, errors.Join(errs...)
	}
	if s.Budget == 0 {
		s.Budget = 400 * time.Millisecond
	}
	if s.Limits.PromptTokens <= 0 {
		s.Limits.PromptTokens = 262_144
	}
	s.APIKeys, s.Tiers = maps.Clone(s.APIKeys), maps.Clone(s.Tiers)
	return &s, nil
}

// Apply replaces the pools and the settings. Endpoints that stay keep what is known of their caches and what they are charged with; the others
// are forgotten, and whoever has a [Source] of one closes it. Decisions under way end by the old configuration. An error reports every problem,
// and changes nothing.
func (r *Router) Apply(pools []pool.Config, s Settings) error {
	settings, err := s.withDefaults()
	r.mu.Lock()
	defer r.mu.Unlock()
	if err != nil {
		return err
	}
	if err := r.pools.Apply(pools); err != nil {
		return err
	}
	r.settings.Store(settings)
	var fleets []*fleet
	var gone []*target
	for _, p := range r.pools.Pools() {
		f := r.fleet(p.Name())
		if f == nil {
			f = newFleet(p, r.rate(p), r.texts, r.peers)
		} else {
			out := f.replace(p, r.rate(p))
			f.dropForeign(out, r.now())
			gone = append(gone, out...)
		}
		fleets = append(fleets, f)
	}
	for _, f := range r.all() {
		if !slices.Contains(fleets, f) {
			gone = append(gone, f.all()...)
		}
	}
	r.fleets.Store(&fleets)
	for _, t := range gone {
		r.forget(t)
		if t.sent != nil {
			t.sent.Close()
		}
	}
	return nil
}

// rate is the prefill rate of a pool's endpoints.
func (r *Router) rate(p *pool.Pool) float64 {
	if rate := p.PrefillRate(); rate > 0 {
		return rate
	}
	return r.prefillRate
}

// ErrUnknown is wrapped by errors about a pool or an endpoint that is not in the configuration.
var ErrUnknown = errors.New("not in the configuration")

// SetMode changes what becomes of a pool's decisions, from the next request on. It lasts until the configuration changes for this pool's mode or
// percentage, which is the share of requests that ModeOn steers.
func (r *Router) SetMode(pool string, m Mode, percent int) error {
	switch m {
	case ModeOn, ModeObserve, ModeOff:
	default:
		return fmt.Errorf("mode of pool %q: %q is none of on, observe and off", pool, string(m))
	}
	if percent < 0 || percent > 100 {
		return fmt.Errorf("mode of pool %q: %d percent, want 0 to 100", pool, percent)
	}
	f := r.fleet(pool)
	if f == nil {
		return fmt.Errorf("mode of pool %q: %w", pool, ErrUnknown)
	}
	f.steering.Store(&steering{mode: m, percent: percent})
	return nil
}

// Drain lets an endpoint get no more requests, or lets it get them again, until the configuration changes in this.
func (r *Router) Drain(endpoint string, on bool) error {
	targets := r.at(endpoint)
	if len(targets) == 0 {
		return fmt.Errorf("drain endpoint %q: %w", endpoint, ErrUnknown)
	}
	targets[0].endpoint.Drain(on)
	if on {
		for _, t := range targets {
			t.forgetSent() // whoever drains an engine is about to end it
		}
	}
	return nil
}

// Reset forgets what is known of an endpoint's cache. Its blocks are matched again when its events start anew: when its engine connects again, or
// after a gap.
func (r *Router) Reset(endpoint string) error {
	targets := r.at(endpoint)
	if len(targets) == 0 {
		return fmt.Errorf("reset endpoint %q: %w", endpoint, ErrUnknown)
	}
	for _, t := range targets {
		r.forget(t)
	}
	return nil
}

// forget lets nothing be matched that is known of a target's cache. A rank for which another target is charged stays.
func (r *Router) forget(t *target) {
	for _, k := range t.ranks {
		if s := k.source.Load(); s != nil && k.target.Load() == t {
			s.forget()
		}
	}
	t.forgetSent()
}

// at are the targets of an endpoint; none when there is no such endpoint.
func (r *Router) at(endpoint string) []*target {
	for _, f := range r.all() {
		if all := f.at(endpoint); len(all) > 0 {
			return all
		}
	}
	return nil
}
