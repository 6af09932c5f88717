package extproc

import (
	"errors"
	"fmt"
	"time"
)

// settings are the options that Apply replaces. A stream goes by those it began with.
type settings struct {
	maxBody  int64
	budget   time.Duration
	bodyWait time.Duration
	notice   time.Duration
	drain    time.Duration
	gateway  *Gateway // nil: our own headers
	ranked   bool
}

// settings checks the options and fills in the defaults of those that Apply replaces. It reports all wrong ones at once.
func (o *Options) settings() (*settings, error) {
	def := func(d *time.Duration, v time.Duration) {
		if *d == 0 {
			*d = v
		}
	}
	def(&o.Budget, 400*time.Millisecond)
	def(&o.BodyWait, time.Minute)
	def(&o.Drain, 5*time.Second)
	if o.MaxBody == 0 {
		o.MaxBody = 32 << 20
	}
	if o.MaxTotal == 0 {
		o.MaxTotal = max(1<<30, o.MaxBody+slack)
	}
	var errs []error
	if o.MaxBody < 1 || o.MaxBody > 1<<30 {
		errs = append(errs, fmt.Errorf("max body: %d is not within 1 and %d bytes", o.MaxBody, 1<<30))
	} else if o.MaxTotal < o.MaxBody+slack {
		errs = append(errs, fmt.Errorf("max total: %d is less than max body + 1 MiB, %d bytes", o.MaxTotal, o.MaxBody+slack))
	}
	for _, d := range []struct {
		name  string
		value time.Duration
	}{{"budget", o.Budget}, {"body wait", o.BodyWait}, {"notice", o.Notice}, {"drain", o.Drain}} {
		if d.value < 0 {
			errs = append(errs, fmt.Errorf("%s: %v is negative", d.name, d.value))
		}
	}
	s := &settings{maxBody: o.MaxBody, budget: o.Budget, bodyWait: o.BodyWait, notice: o.Notice, drain: o.Drain, ranked: o.Ranked}
	if g := o.Gateway; g.On {
		s.gateway = &g
	}
	if o.Gateway.Shed < 0 {
		errs = append(errs, fmt.Errorf("gateway shed: %d tokens is negative", o.Gateway.Shed))
	}
	return s, errors.Join(errs...)
}

// MaxBody is the longest body that the server can be told to read: gRPC's own limit is that of the options it was made with.
func (s *Server) MaxBody() int64 { return s.mostBody }

// Apply takes over MaxBody, MaxTotal, Budget, BodyWait, Notice, Drain, Gateway and Ranked of o, for streams that begin from here on. An error reports every wrong one,
// a MaxBody above [Server.MaxBody] among them, and changes nothing.
func (s *Server) Apply(o Options) error {
	next, err := o.settings()
	if o.MaxBody > s.mostBody {
		err = errors.Join(err, fmt.Errorf("max body: %d is above the %d that the server was made with", o.MaxBody, s.mostBody))
	}
	if err != nil {
		return fmt.Errorf("extproc options: %w", err)
	}
	s.account.bound(o.MaxBody, o.MaxTotal)
	s.settings.Store(next)
	return nil
}
