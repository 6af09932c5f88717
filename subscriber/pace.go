package subscriber

import "time"

// pace is a token bucket: burst at once, then one per interval. It paces accepted connections and log lines that a peer can
// provoke. The zero time of its first use fills it. Not for concurrent use.
type pace struct {
	burst    int
	interval time.Duration

	tokens float64
	last   time.Time
	missed int // refused since the last permission
}

// take asks for permission at now. When it is given, missed is the number of refusals before it; otherwise after says when to
// ask again.
func (p *pace) take(now time.Time) (ok bool, missed int, after time.Duration) {
	if p.last.IsZero() {
		p.tokens, p.last = float64(p.burst), now
	}
	if passed := now.Sub(p.last); passed > 0 {
		p.tokens = min(p.tokens+passed.Seconds()/p.interval.Seconds(), float64(p.burst))
		p.last = now
	}
	if p.tokens < 1 {
		p.missed++
		return false, 0, time.Duration((1 - p.tokens) * float64(p.interval))
	}
	p.tokens--
	missed, p.missed = p.missed, 0
	return true, missed, 0
}

// succession decides when a newer connection may replace a live one. The first time it may at once, since a restarted
// engine can connect before the old connection is seen dead. Two live engines on one address would replace each other for ever:
// so each replacement doubles the time, from shortest to longest, in which the next is refused; ten times the longest without
// any starts over.
type succession struct {
	shortest, longest time.Duration

	last time.Time
	hold time.Duration
}

// allow reports whether a replacement may happen at now, and records it if so.
func (s *succession) allow(now time.Time) bool {
	quiet := now.Sub(s.last)
	switch {
	case s.last.IsZero(), quiet >= 10*s.longest:
		s.hold = s.shortest
	case quiet < s.hold:
		return false
	default:
		s.hold = min(2*s.hold, s.longest)
	}
	s.last = now
	return true
}
