package doctor

import (
	"strconv"
	"strings"
)

// series is one line of a metrics page.
type series struct {
	name   string
	labels map[string]string
	value  float64
}

// page is a metrics page in Prometheus' text format; a nil page is one that was not read.
type page struct{ all map[string][]series }

// parsePage reads what it understands and skips the rest; the size of text is bounded by who read it.
func parsePage(text string) *page {
	p := &page{all: map[string][]series{}}
	for line := range strings.Lines(text) {
		if s, ok := parseSeries(strings.TrimSpace(line)); ok {
			p.all[s.name] = append(p.all[s.name], s)
		}
	}
	return p
}

func parseSeries(line string) (series, bool) {
	end := strings.IndexAny(line, "{ \t")
	if end <= 0 || line[0] == '#' {
		return series{}, false
	}
	s := series{name: line[:end], labels: map[string]string{}}
	rest := line[end:]
	if rest[0] == '{' {
		var ok bool
		if rest, ok = s.readLabels(rest[1:]); !ok {
			return series{}, false
		}
	}
	fields := strings.Fields(rest) // the value, then perhaps a time
	if len(fields) == 0 {
		return series{}, false
	}
	v, err := strconv.ParseFloat(fields[0], 64)
	s.value = v
	return s, err == nil
}

// readLabels reads name="value",… up to the closing brace and returns what follows it.
func (s *series) readLabels(rest string) (string, bool) {
	for {
		rest = strings.TrimLeft(rest, ", \t")
		if after, ok := strings.CutPrefix(rest, "}"); ok {
			return after, true
		}
		name, after, ok := strings.Cut(rest, "=\"")
		if !ok {
			return "", false
		}
		value, tail, ok := cutQuoted(after)
		if !ok {
			return "", false
		}
		s.labels[strings.TrimSpace(name)] = value
		rest = tail
	}
}

// cutQuoted reads up to the next quote that no backslash precedes.
func cutQuoted(s string) (value, rest string, ok bool) {
	var b strings.Builder
	for i := 0; i < len(s); i++ {
		switch c := s[i]; {
		case c == '"':
			return b.String(), s[i+1:], true
		case c == '\\' && i+1 < len(s):
			i++
			if s[i] == 'n' {
				b.WriteByte('\n')
			} else {
				b.WriteByte(s[i])
			}
		default:
			b.WriteByte(c)
		}
	}
	return "", "", false
}

// named returns the series of a name that have all the labels, given as name, value, name, value ….
func (p *page) named(name string, labels ...string) []series {
	if p == nil {
		return nil
	}
	var found []series
next:
	for _, s := range p.all[name] {
		for i := 0; i+1 < len(labels); i += 2 {
			if s.labels[labels[i]] != labels[i+1] {
				continue next
			}
		}
		found = append(found, s)
	}
	return found
}

// sum adds the series up; ok is false when there is none.
func (p *page) sum(name string, labels ...string) (total float64, ok bool) {
	all := p.named(name, labels...)
	for _, s := range all {
		total += s.value
	}
	return total, len(all) > 0
}

// has reports whether a name on the page begins with prefix.
func (p *page) has(prefix string) bool {
	if p == nil {
		return false
	}
	for name := range p.all {
		if strings.HasPrefix(name, prefix) {
			return true
		}
	}
	return false
}
