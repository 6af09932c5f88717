package scrape

import (
	"io"
	"math"
	"sort"
	"strings"
)

// bound is what a value may be: above is what cannot be or does not fit.
type bound struct {
	most  float64
	whole bool
}

func requests() bound { return bound{1e9, true} }
func tokens() bound   { return bound{1 << 50, true} } // so that the sum of all lines fits
func share() bound    { return bound{1.01, false} }   // engines round

// reading is what one page tells.
type reading struct {
	profile          Profile
	running, waiting int
	usage            float64
	sleeping         bool
	counts           map[string]counts // by rank
}

// counts are the counters of one rank, in tokens.
type counts struct{ hits, queries uint64 }

// read reads a page. Labels are what a series must have to count.
func read(r io.Reader, profile Profile, labels map[string]string) (reading, error) {
	candidates := profile.families()
	names := map[string]bool{}
	for _, f := range candidates {
		for _, family := range f.all() {
			for _, name := range family {
				names[name] = true
			}
		}
		names[f.sleep] = f.sleep != ""
	}
	p, err := readPage(r, names)
	if err != nil {
		return reading{}, err
	}
	f, profile, err := choose(p, candidates, profile)
	if err != nil {
		return reading{}, err
	}
	q := question{page: p, families: f, labels: labels}
	return q.answer(profile)
}

// choose returns the families that are there.
func choose(p page, candidates []*families, profile Profile) (*families, Profile, error) {
	if len(candidates) == 1 {
		return candidates[0], profile, nil
	}
	vllm, sglang := candidates[0], candidates[1]
	_, isVLLM := p[vllm.running[0]]
	_, isSGLang := p[sglang.running[0]]
	switch {
	case isVLLM && isSGLang:
		return nil, "", problemf(OutcomeMissing, "families of both vLLM and SGLang: set the profile")
	case isVLLM:
		return vllm, ProfileVLLM, nil
	case isSGLang:
		return sglang, ProfileSGLang, nil
	}
	return nil, "", problemf(OutcomeMissing, "no series of %s or %s", vllm.running.name(), sglang.running.name())
}

// question is what is asked of one page.
type question struct {
	page     page
	families *families
	labels   map[string]string
}

func (q *question) answer(profile Profile) (reading, error) {
	f := q.families
	running, err := q.byRank(f.running, nil, requests())
	if err != nil {
		return reading{}, err
	}
	waiting, err := q.byRank(f.waiting, running, requests())
	if err != nil {
		return reading{}, err
	}
	usage, err := q.byRank(f.usage, running, share())
	if err != nil {
		return reading{}, err
	}
	r := reading{profile: profile, usage: min(mean(usage), 1), counts: map[string]counts{}}
	r.running, r.waiting = int(sum(running)), int(sum(waiting))
	if err := q.counters(&r, running); err != nil {
		return reading{}, err
	}
	r.sleeping, err = q.sleeping()
	return r, err
}

// counters reads the counters by rank.
func (q *question) counters(r *reading, ranks map[string]value) error {
	queries, err := q.counter(q.families.queries, ranks)
	if err != nil {
		return err
	}
	hits, err := q.counter(q.families.hits, ranks)
	if err != nil {
		return err
	}
	for rank, n := range queries {
		r.counts[rank] = counts{queries: uint64(n.sum)}
	}
	for rank, n := range hits {
		c := r.counts[rank]
		c.hits = uint64(n.sum)
		r.counts[rank] = c
	}
	return nil
}

func (q *question) counter(f family, ranks map[string]value) (map[string]value, error) {
	switch {
	case !q.families.lazy:
		return q.byRank(f, ranks, tokens())
	case len(q.series(f)) == 0:
		return nil, nil
	}
	return q.byRank(f, nil, tokens()) // SGLang's front counts for all ranks
}

// sleeping tells whether a rank sleeps: then requests may wait until somebody wakes the engine.
func (q *question) sleeping() (bool, error) {
	if q.families.sleep == "" {
		return false, nil
	}
	for _, s := range q.page[q.families.sleep] {
		if !q.matches(&s) {
			continue
		}
		if s.value != 0 && s.value != 1 {
			return false, problemf(OutcomeValue, "a value of %s is neither 0 nor 1", q.families.sleep)
		}
		if (s.labels["sleep_state"] == "awake") != (s.value == 1) {
			return true, nil
		}
	}
	return false, nil
}

// matches tells whether a series counts.
func (q *question) matches(s *sample) bool {
	for name, want := range q.labels {
		if got, ok := s.labels[name]; !ok || got != want {
			return false
		}
	}
	return s.labels["priority"] == "" // else it is a part of the series without
}

// series returns the series of the newest name that is there.
func (q *question) series(f family) []sample {
	for _, name := range f {
		if all, ok := q.page[name]; ok {
			var matching []sample
			for _, s := range all {
				if q.matches(&s) {
					matching = append(matching, s)
				}
			}
			return matching
		}
	}
	return nil
}

// value is what one rank has of a family.
type value struct {
	sum   float64
	parts int // that were added up
}

// byRank returns a family's value by rank: of shards, which all tell the same, the largest one, and of what is counted in parts the sum. Each of
// the ranks that are expected has to have one; nil expects any.
func (q *question) byRank(f family, expected map[string]value, b bound) (map[string]value, error) {
	series := q.series(f)
	switch {
	case len(series) == 0 && len(q.labels) > 0:
		return nil, problemf(OutcomeMissing, "no series of %s with the labels asked for", f.name())
	case len(series) == 0:
		return nil, problemf(OutcomeMissing, "no series of %s", f.name())
	}
	type part struct{ rank, labels string }
	parts := map[part]float64{}
	for _, s := range series {
		if math.IsNaN(s.value) || s.value < 0 || s.value > b.most {
			return nil, problemf(OutcomeValue, "a value of %s is out of range", f.name())
		}
		v := s.value
		if b.whole {
			v = math.Round(v)
		}
		p := part{s.labels[q.families.rank], s.parts(q.families.rank)}
		parts[p] = max(parts[p], v)
	}
	ranks := map[string]value{}
	for p, v := range parts {
		r := ranks[p.rank]
		ranks[p.rank] = value{r.sum + v, r.parts + 1}
	}
	for rank := range ranks {
		if _, ok := expected[rank]; expected != nil && !ok {
			return nil, problemf(OutcomeMissing, "%s has a rank that other families lack", f.name())
		}
	}
	if expected != nil && len(ranks) < len(expected) {
		return nil, problemf(OutcomeMissing, "%s lacks a rank that other families have", f.name())
	}
	if len(ranks) > maxRanks {
		return nil, problemf(OutcomeTooLarge, "more than %d ranks in %s", maxRanks, f.name())
	}
	return ranks, nil
}

// parts stands for the labels of a series that are neither its rank nor its shard.
func (s *sample) parts(rank string) string {
	var names []string
	for name := range s.labels {
		if name != rank && name != "pid" && !strings.HasSuffix(name, "_rank") {
			names = append(names, name)
		}
	}
	sort.Strings(names)
	var b strings.Builder
	for _, name := range names {
		b.WriteString(name)
		b.WriteByte(0)
		b.WriteString(s.labels[name])
		b.WriteByte(0)
	}
	return b.String()
}

func sum(ranks map[string]value) (total float64) {
	for _, v := range ranks {
		total += v.sum
	}
	return total
}

func mean(ranks map[string]value) (total float64) {
	for _, v := range ranks {
		total += v.sum / float64(v.parts)
	}
	return total / float64(len(ranks))
}
