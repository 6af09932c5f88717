package pool

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	// modelsTimeout bounds one question for models, connecting included. An engine that is busy answers late.
	modelsTimeout = 5 * time.Second
	// maxModels bounds the bytes of an answer: some 4,000 models as vLLM writes them, with their permissions.
	maxModels = 4 << 20
	// maxListed bounds the models that are read of one answer; further ones are left out.
	maxListed = 4096
	// maxServed bounds a served name in bytes, as names in requests are bounded.
	maxServed = 1024
	// maxPath bounds the path of an adapter in bytes, as file systems do.
	maxPath = 4096
	// maxVersion bounds the name of a release in bytes.
	maxVersion = 64
)

// refreshOutcome says how a question for models ended; one of a closed set.
type refreshOutcome string

const (
	refreshOK          refreshOutcome = "ok"
	refreshUnreachable refreshOutcome = "unreachable" // no answer, or none in time
	refreshRefused     refreshOutcome = "refused"     // 4xx: a key is wanted, or the engine has no such path
	refreshFailed      refreshOutcome = "failed"      // 5xx, or a redirect
	refreshBadReply    refreshOutcome = "bad_reply"   // not a list of models, or a longer one than is read
)

func refreshOutcomes() []refreshOutcome {
	return []refreshOutcome{refreshOK, refreshUnreachable, refreshRefused, refreshFailed, refreshBadReply}
}

// asking is what a configuration says about questions for models. Two that differ in anything are not the same.
type asking struct {
	every time.Duration // 0: nothing is asked
	after time.Duration // of an endpoint that is new: so long it is waited for who tells in its place
	key   string        // sent as Bearer, "" for none
}

// card is one model of an answer.
type card struct {
	id       string
	root     string // what the weights were loaded from
	parent   string // served name of the base weights, "" without one
	adapts   bool   // has a parent
	modelLen int    // tokens, 0 when not told
}

// listing is what an endpoint told of its models. It is never changed once made.
type listing struct {
	life  uint64 // of the endpoint when it was asked
	cards []card // sorted by id, each id once
}

func newListing(life uint64, cards []card) *listing {
	slices.SortStableFunc(cards, func(a, b card) int { return strings.Compare(a.id, b.id) })
	return &listing{life: life, cards: slices.CompactFunc(cards, func(a, b card) bool { return a.id == b.id })}
}

// card finds a model by its name.
func (l *listing) card(id string) (card, bool) {
	i, ok := slices.BinarySearchFunc(l.cards, id, func(c card, id string) int { return strings.Compare(c.id, id) })
	if !ok {
		return card{}, false
	}
	return l.cards[i], true
}

// ask asks an endpoint for its models when it is told to and every so often, until ctx ends.
func (s *Set) ask(ctx context.Context, e *Endpoint) {
	timer := time.NewTimer(0)
	timer.Stop()
	defer timer.Stop()
	failures := 0
	for {
		select {
		case <-ctx.Done():
			return
		case <-e.ask:
		case <-timer.C:
		}
		a := e.asking.Load()
		if a == nil || a.every == 0 || e.announced.Load() != nil {
			continue // until it is told to, by another configuration or as nobody tells any more
		}
		if wait := time.Until(e.born.Add(a.after)); wait > 0 {
			timer.Reset(wait)
			continue
		}
		if e.Healthy() {
			outcome := s.refresh(ctx, e, a.key)
			if ctx.Err() != nil {
				return
			}
			failures++
			if outcome == refreshOK {
				failures = 0
			}
		} // else it is told to when it is back
		retry := schedule{interval: a.every, first: a.every / 4, cap: a.every}
		timer.Reset(max(retry.delay(health{failures: failures}, rand.Float64()), probeGap))
	}
}

// refresh asks once, and enters the answer.
func (s *Set) refresh(ctx context.Context, e *Endpoint, key string) refreshOutcome {
	q := question{client: s.client, scheme: s.scheme(), key: key}
	life := e.Life()
	if version, ok := q.version(ctx, e.addr); ok {
		e.version.Store(&version)
	}
	cards, outcome, err := q.models(ctx, e.addr)
	if ctx.Err() != nil {
		return outcome
	}
	s.m.refreshed(e, outcome)
	if outcome != refreshOK {
		before := e.refreshed.Swap(&outcome)
		if outcome != refreshUnreachable && (before == nil || *before != outcome) { // probes say who is not reached
			s.log.Warn("an engine does not say what it serves; its adapters stay as they were last known", "pool", e.pool, "endpoint", e.addr, "outcome", string(outcome), "error", err)
		}
		return outcome
	}
	e.refreshed.Store(&outcome)
	next := newListing(life, cards)
	if before := e.listing.Swap(next); before == nil || before.life != life || !slices.Equal(before.cards, next.cards) {
		s.tell()
	}
	return outcome
}

// question asks one endpoint.
type question struct {
	client *http.Client
	scheme string
	key    string
}

func (q question) get(ctx context.Context, url string) (*http.Response, error) {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return nil, err
	}
	if q.key != "" {
		req.Header.Set("Authorization", "Bearer "+q.key)
	}
	return q.client.Do(req)
}

// models asks for the models. Its errors hold nothing of an answer.
func (q question) models(ctx context.Context, addr string) ([]card, refreshOutcome, error) {
	ctx, cancel := context.WithTimeout(ctx, modelsTimeout)
	defer cancel()
	resp, err := q.get(ctx, q.scheme+"://"+addr+"/v1/models")
	if err != nil {
		return nil, refreshUnreachable, err
	}
	defer resp.Body.Close()
	switch {
	case resp.StatusCode == http.StatusOK:
	case resp.StatusCode >= 400 && resp.StatusCode < 500:
		return nil, refreshRefused, fmt.Errorf("GET /v1/models: status %d", resp.StatusCode)
	default:
		return nil, refreshFailed, fmt.Errorf("GET /v1/models: status %d", resp.StatusCode)
	}
	cards, err := readModels(io.LimitReader(resp.Body, maxModels))
	switch {
	case ctx.Err() != nil:
		return nil, refreshUnreachable, ctx.Err()
	case err != nil:
		return nil, refreshBadReply, fmt.Errorf("GET /v1/models: %w", err)
	}
	return cards, refreshOK, nil
}

// version asks which release the engine is; ok is false when it does not say.
func (q question) version(ctx context.Context, addr string) (version string, ok bool) {
	ctx, cancel := context.WithTimeout(ctx, modelsTimeout)
	defer cancel()
	resp, err := q.get(ctx, q.scheme+"://"+addr+"/version")
	if err != nil {
		return "", false
	}
	defer resp.Body.Close()
	var reply struct {
		Version string `json:"version"`
	}
	if resp.StatusCode != http.StatusOK || json.NewDecoder(io.LimitReader(resp.Body, 4<<10)).Decode(&reply) != nil || len(reply.Version) > maxVersion {
		return "", false
	}
	return reply.Version, true
}

// Errors of readModels. They hold nothing of the answer.
var (
	errNoModels  = errors.New("the answer is not an object with a list of models")
	errManyBytes = fmt.Errorf("the answer has more than %d bytes or breaks off", maxModels)
)

// readModels reads {"data": [{"id", "root", "parent", "max_model_len", …}, …], …}, element by element, so that an answer takes little more memory than what
// is kept of it. Elements that cannot be models are left out.
func readModels(r io.Reader) ([]card, error) {
	dec := json.NewDecoder(r)
	bad := func(err error) error {
		if errors.Is(err, io.EOF) || errors.Is(err, io.ErrUnexpectedEOF) {
			return errManyBytes
		}
		return errNoModels
	}
	if t, err := dec.Token(); err != nil || t != json.Delim('{') {
		return nil, bad(err)
	}
	var cards []card
	found := false
	for dec.More() {
		key, err := dec.Token()
		if err != nil {
			return nil, bad(err)
		}
		if key != "data" {
			var skipped json.RawMessage
			if err := dec.Decode(&skipped); err != nil {
				return nil, bad(err)
			}
			continue
		}
		if t, err := dec.Token(); err != nil || t != json.Delim('[') {
			return nil, bad(err)
		}
		found, cards = true, nil
		for dec.More() {
			var raw rawCard
			if err := dec.Decode(&raw); err != nil {
				if wrong := new(json.UnmarshalTypeError); errors.As(err, &wrong) {
					continue // no object
				}
				return nil, bad(err)
			}
			if c, ok := raw.card(); ok && len(cards) < maxListed {
				cards = append(cards, c)
			}
		}
		if _, err := dec.Token(); err != nil {
			return nil, bad(err)
		}
	}
	if _, err := dec.Token(); err != nil {
		return nil, bad(err)
	}
	if !found {
		return nil, errNoModels
	}
	return cards, nil
}

// rawCard is one model of an answer, its values unread.
type rawCard struct {
	ID          json.RawMessage `json:"id"`
	Root        json.RawMessage `json:"root"`
	Parent      json.RawMessage `json:"parent"` // nil when the engine knows of no parents
	MaxModelLen json.RawMessage `json:"max_model_len"`
}

// card keeps of a model what is of use; ok is false when it has no usable name, or a parent that has none.
func (r rawCard) card() (c card, ok bool) {
	if json.Unmarshal(r.ID, &c.id) != nil || !servedName(c.id) {
		return c, false
	}
	if json.Unmarshal(r.Root, &c.root) != nil || len(c.root) > maxPath {
		c.root = ""
	}
	if json.Unmarshal(r.MaxModelLen, &c.modelLen) != nil || c.modelLen < 0 || c.modelLen > math.MaxInt32 {
		c.modelLen = 0 // SGLang gives the tokenizer's own, which may have thirty digits
	}
	if len(r.Parent) > 0 && string(r.Parent) != "null" {
		c.adapts = true
		return c, json.Unmarshal(r.Parent, &c.parent) == nil && servedName(c.parent)
	}
	return c, true
}

// servedName reports whether a name can be one that requests give, and be shown.
func servedName(name string) bool {
	return name != "" && len(name) <= maxServed && utf8.ValidString(name) && !strings.ContainsFunc(name, unicode.IsControl)
}
