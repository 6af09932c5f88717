package subscriber

import (
	"context"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// lifeKinds are the engines whose lives are played.
func lifeKinds() []lifeKind {
	return []lifeKind{
		{name: "sha256", hashes: "sha256", exact: true},
		{name: "sha256_cbor in bytes, keyed", hashes: "sha256_cbor", bytes: true, keyed: true, exact: true},
		{name: "drawn, a second tier", hashes: "drawn", host: 40, exact: true, old: true},
		{name: "drawn in bytes, a second tier that is behind", hashes: "drawn", bytes: true, host: 60, behind: true},
		{name: "sha256, keyed, a second tier", hashes: "sha256", host: 30, keyed: true, exact: true, old: true},
		{name: "drawn, report mode full", hashes: "drawn", full: true},
		{name: "sha256_cbor in bytes, twins", hashes: "sha256_cbor", bytes: true, twins: true},
		{name: "sha256, all of it", hashes: "sha256", host: 50, behind: true, keyed: true, twins: true, full: true, old: true},
	}
}

// TestLife plays 10^6 events of truthful engines through real sockets to Subscribers, with all that can go wrong between them, drawn at
// random: batches lost, late, twice and out of order; connections cut; engines restarted, with prompts of before or others; Subscribers
// restarted with the mirror saved last, an older one, a damaged one or none; replays refused, unanswered, with holes, or of the latest
// batches only; live batches that do not fit while a replay is under way; prompts told of early, late, never, or not run at all.
//
// At no call is what is announced not prefix-closed (lifeSink). At rest, which is when the batch published last has been applied,
//
//   - nothing is announced that a prompt cannot hit, in either tier;
//   - when the engine keeps all its batches, or the history is complete anyhow, exactly that is announced which a mirror announces that
//     heard all of them in order. Where events tell all copies of a block apart, that is all that can be hit; where not (second
//     copies in runs from a sequence's start, as kv_cache_report_mode "full" has them, and blocks first heard of in the second tier), it may be less, and
//     is less than that for a Subscriber with a saved mirror, in which ghosts are left out;
//   - when it keeps the latest batches only, at least that which a mirror announces that heard those.
func TestLife(t *testing.T) {
	events := 1_000_000
	if raceEnabled {
		events /= 4 // the race detector makes a life five times as long
	}
	kinds := lifeKinds()
	lives := make([]*life, len(kinds))
	t.Run("lives", func(t *testing.T) {
		for i, kind := range kinds {
			t.Run(kind.name, func(t *testing.T) {
				t.Parallel()
				l := newLife(t, kind, uint64(i), nil)
				lives[i] = l
				begin := time.Now()
				for l.events < events/len(kinds) {
					l.round()
				}
				l.stop()
				if n := len(l.sink.tiers[Any]) + len(l.sink.tiers[Device]); n > 0 {
					t.Errorf("%d announced after Run", n)
				}
				l.took = time.Since(begin)
			})
		}
	})
	if !t.Failed() {
		reportLives(t, lives, events)
	}
}

// reportLives logs the figures of all lives, and fails when they were too quiet to test anything.
func reportLives(t *testing.T, lives []*life, events int) {
	var all life
	all.happened, all.replays = map[string]int{}, map[outcome]float64{}
	resets := map[Cause]int{}
	for _, l := range lives {
		t.Logf("seed %d, %s: %d events in %d batches, %v; %d rests, all of the batches kept at %d, exact at %d; %d blocks announced at rests; %.0f blocks healed",
			l.seed, l.engine.kind.name, l.events, l.batches, l.took.Round(time.Millisecond), l.rests, l.whole, l.exact, l.announced, l.healed)
		all.events, all.batches, all.rests, all.whole, all.exact = all.events+l.events, all.batches+l.batches, all.rests+l.rests, all.whole+l.whole, all.exact+l.exact
		all.announced, all.healed = all.announced+l.announced, all.healed+l.healed
		for what, n := range l.happened {
			all.happened[what] += n
		}
		for o, n := range l.replays {
			all.replays[o] += n
		}
		for cause, n := range l.sink.resets {
			resets[cause] += n
		}
	}
	t.Logf("in all: %d events in %d batches; %d rests, all of the batches kept at %d, exact at %d; resets %v; replays %v; %.0f blocks healed; %v",
		all.events, all.batches, all.rests, all.whole, all.exact, resets, all.replays, all.healed, all.happened)
	if all.events < events || all.whole < events/5000 || all.exact < events/10_000 || all.announced < 10*all.rests || all.healed == 0 {
		t.Errorf("nothing is tested")
	}
	for _, o := range []outcome{replayComplete, replayEmpty, replayPartial, replayHole, replayNotProven, replayTimeout, replayUnreachable, replayAbandoned} {
		if rare := o == replayHole || o == replayTimeout; all.replays[o] == 0 && (!rare || !raceEnabled) {
			t.Errorf("no replay ended as %s", o)
		}
	}
	for _, what := range []string{
		"cuts", "engine restarts", "batches lost", "batches late or twice", "deaf", "silent", "holes",
		"subscriber restarts with its mirror", "subscriber restarts with an older mirror", "subscriber restarts with a damaged mirror", "subscriber restarts without its mirror",
	} {
		if all.happened[what] == 0 {
			t.Errorf("no %s", what)
		}
	}
}

// life is one engine, one Subscriber at a time, and what happens to them.
type life struct {
	t    *testing.T
	seed uint64
	rnd  *rand.Rand

	engine *lifeEngine
	wire   *testEngine
	oracle *fold // has heard all batches of the process in order
	heard  *checkedSink

	sink    *lifeSink
	beside  func() Sink // hears what sink does, while the Subscriber lives that is about to begin; nil for none
	s       *Subscriber
	stop    func()
	metrics *Metrics
	dir     string
	older   []byte // a saved mirror of before
	prompts []Prompt

	ghostless bool // the Subscriber may have a mirror from a file, without the ghosts that tell how many copies there are of what

	// Of the round.
	loss, lateness float64

	events, batches, rests, whole, exact, announced int
	happened                                        map[string]int
	replays                                         map[outcome]float64
	healed                                          float64
	took                                            time.Duration
}

func newLife(t *testing.T, kind lifeKind, seed uint64, beside func() Sink) *life {
	rnd := rand.New(rand.NewPCG(seed, 11))
	l := &life{
		t: t, seed: seed, rnd: rnd, engine: newLifeEngine(kind, rnd), wire: newTestEngine(t), metrics: NewMetrics(nil), dir: t.TempDir(), beside: beside,
		happened: map[string]int{}, replays: map[outcome]float64{},
	}
	l.wire.set(func(w *testEngine) { w.old = kind.old })
	l.sink = newLifeSink(t, l.engine.tree)
	l.process()
	l.follow()
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d, after %d events: %v", seed, l.events, l.happened)
		}
	})
	return l
}

// process begins the oracle of another process, and says how many batches it keeps.
func (l *life) process() {
	l.heard = newCheckedSink(l.t)
	l.oracle = newFold(foldOptions{pool: "chat", sink: l.heard})
	keep := 0
	if l.rnd.IntN(3) == 0 {
		keep = 20 + l.rnd.IntN(400)
	}
	l.wire.set(func(w *testEngine) { w.keep = keep })
}

// follow starts a Subscriber.
func (l *life) follow() {
	small := l.rnd.IntN(3) == 0
	var sink Sink = l.sink
	if l.beside != nil {
		sink = bothSinks{l.sink, l.beside()}
	}
	l.s, l.stop = followEngine(l.t, l.wire, sink, func(s *Subscriber) {
		s.o.Metrics = l.metrics
		s.o.StateDir = NewStateDir(l.dir)
		f := s.fold.(*fold)
		s.saver = newSaver(s.o, f.o, f)
		s.track.pacing.reply = 300 * time.Millisecond
		if small {
			s.track.pending.limit = 5_000
		}
	})
	stop := l.stop
	l.stop = func() {
		l.tally()
		stop()
	}
}

// tally adds up what the Subscriber counted; its series end with it.
func (l *life) tally() {
	for _, o := range outcomes() {
		if n := testutil.ToFloat64(l.metrics.replays.WithLabelValues("chat", "e", "0", string(o))); n > 0 {
			l.replays[o] += n
		}
	}
	l.healed += testutil.ToFloat64(l.metrics.healed.WithLabelValues("chat", "e", "0", healedByHash.String()))
}

// round is a stretch of life and a rest.
func (l *life) round() {
	l.weather()
	for range 1 + l.rnd.IntN(6) {
		l.act()
	}
	l.rest()
}

// weather draws what will go wrong until the next rest.
func (l *life) weather() {
	holes := rand.New(rand.NewPCG(l.seed, uint64(l.rests)))
	deaf, silent, gappy := l.rnd.IntN(8) == 0, l.rnd.IntN(16) == 0, l.rnd.IntN(3) == 0
	l.wire.set(func(w *testEngine) {
		w.deaf, w.silent, w.drop = deaf, silent, nil
		if gappy {
			w.drop = func(_, n int) bool { return n > 60 && holes.IntN(n) < 1 }
		}
	})
	l.count("deaf", deaf)
	l.count("silent", silent)
	l.count("holes", gappy)
	l.loss, l.lateness = 0, 0
	if l.rnd.IntN(2) == 0 {
		l.loss = l.rnd.Float64() / 20
	}
	if l.rnd.IntN(3) == 0 {
		l.lateness = l.rnd.Float64() / 50
	}
}

// act is a stretch of life.
func (l *life) act() {
	l.happen()
	for range l.rnd.IntN(150) {
		l.step()
	}
}

func (l *life) count(what string, yes bool) {
	if yes {
		l.happened[what]++
	}
}

// happen draws what goes wrong.
func (l *life) happen() {
	r := l.rnd.IntN(20)
	switch {
	case r < 4:
		l.wire.cut()
		l.count("cuts", true)
	case r < 5:
		l.restart()
	case r < 6:
		l.renew()
	}
}

// restart begins another process of the engine.
func (l *life) restart() {
	e := l.engine
	if l.rnd.IntN(2) == 0 {
		e.talks = nil // other prompts, beside the common ones
	}
	e.begin()
	l.wire.restart()
	l.process()
	l.ghostless = false
	l.count("engine restarts", true)
}

// renew replaces the Subscriber by one of another process.
func (l *life) renew() {
	l.stop()
	path := newSavedFile(l.dir, identity{pool: "chat", endpoint: "e"}).path()
	content, err := os.ReadFile(path)
	if err != nil && !os.IsNotExist(err) {
		l.t.Fatal(err)
	}
	replace := func(with []byte) {
		if err := os.WriteFile(path, with, 0o600); err != nil {
			l.t.Fatal(err)
		}
	}
	what := "with its mirror"
	switch r := l.rnd.IntN(6); {
	case content == nil:
		what = "with nothing saved"
	case r == 0:
		what = "without its mirror"
		if err := os.Remove(path); err != nil {
			l.t.Fatal(err)
		}
	case r == 1 && l.older != nil:
		what = "with an older mirror"
		replace(l.older)
	case r == 2:
		what = "with a damaged mirror"
		damaged := slices.Clone(content)
		damaged[l.rnd.IntN(len(damaged))] ^= 1 << l.rnd.IntN(8)
		replace(damaged)
	}
	l.ghostless = !l.engine.kind.exact
	if l.older == nil || l.rnd.IntN(2) == 0 {
		l.older = content
	}
	l.happened["subscriber restarts "+what]++
	for range l.rnd.IntN(60) {
		l.step()
	}
	l.follow()
}

// step lets the engine do something, publishes it, and tells the Subscriber of prompts.
func (l *life) step() {
	if t := l.engine.step(); t != nil && l.rnd.IntN(2) == 0 {
		l.prompts = append(l.prompts, t.Prompt)
	}
	if l.rnd.IntN(40) == 0 { // runs elsewhere
		l.prompts = append(l.prompts, l.engine.next().Prompt)
	}
	for len(l.prompts) > 0 && l.rnd.IntN(2) == 0 {
		i := l.rnd.IntN(len(l.prompts))
		if l.engine.chain != nil { // what is inferred where nobody can compute the hashes may be wrong for a time
			l.s.Witness(l.prompts[i])
		}
		l.prompts = slices.Delete(l.prompts, i, i+1)
	}
	if len(l.engine.events) == 0 || l.rnd.IntN(3) == 0 {
		return
	}
	f, after := arrives, 0
	switch r := l.rnd.Float64(); {
	case r < l.loss:
		f = isLost
		l.count("batches lost", true)
	case r < l.loss+l.lateness:
		f, after = isLate, 1+l.rnd.IntN(6)
		if l.rnd.IntN(4) == 0 {
			f = isTwice
		}
		l.count("batches late or twice", true)
	}
	l.publish(f, after, l.engine.batch(false))
}

func (l *life) publish(f fate, after int, events []any) {
	l.events += len(events)
	l.batches++
	l.wire.publishTo(f, after, events...)
	l.wire.mu.Lock()
	payload := l.wire.batches[len(l.wire.batches)-1]
	l.wire.mu.Unlock()
	l.heard.begin()
	mustHold(l.t, l.oracle, payload)
}

// rest publishes what is left, lets the replay socket be itself again, and compares. It returns what the engine holds, and what of it must be
// announced because the engine can still replay it.
func (l *life) rest() (held, due [2]map[uint64]bool) {
	for l.engine.kind.behind && len(l.engine.behind) > 0 {
		l.publish(arrives, 0, l.engine.batch(true))
	}
	l.wire.set(func(w *testEngine) {
		w.deaf, w.silent, w.drop = false, false, nil
		for _, b := range w.late {
			w.send(b.seq)
		}
		w.late = nil
	})
	// A block that nobody has heard of shows that all before it was applied, once it is announced.
	mark := l.mark()
	l.publish(arrives, 0, l.engine.batch(true))
	held = l.engine.held()
	for tier, set := range l.heard.tiers {
		for key := range set {
			if !held[tier][key] {
				l.t.Fatalf("seed %d: a mirror that heard everything has %x, which is not held", l.seed, key)
			}
		}
	}

	var have sunk
	l.until("the last batch applied", &have, func() bool { return have.about.Connected && have.tiers[Device][mark] })
	l.holds(&have, held)
	l.rests++

	l.wire.mu.Lock()
	n, keep := len(l.wire.batches), l.wire.keep
	l.wire.mu.Unlock()
	if all := keep == 0 || n <= keep; all || have.about.Complete {
		l.until("all that can be restored", &have, func() bool {
			return have.about.Connected && have.about.Complete && (l.ghostless || maps.Equal(have.tiers[Any], l.heard.tiers[Any]) &&
				maps.Equal(have.tiers[Device], l.heard.tiers[Device]))
		})
		l.whole++
		if !l.ghostless {
			due = [2]map[uint64]bool{maps.Clone(l.heard.tiers[Device]), maps.Clone(l.heard.tiers[Any])}
		}
		if l.engine.kind.exact {
			for tier := range held {
				if !maps.Equal(held[tier], have.tiers[tier]) {
					l.t.Fatalf("seed %d: %d blocks announced in tier %d of %d that are held", l.seed, len(have.tiers[tier]), tier, len(held[tier]))
				}
			}
			l.exact++
		}
	} else {
		part := newCheckedSink(l.t)
		f := newFold(foldOptions{pool: "chat", sink: part})
		l.wire.mu.Lock()
		latest := slices.Clone(l.wire.batches[n-keep:])
		l.wire.mu.Unlock()
		for _, b := range latest {
			part.begin()
			mustHold(l.t, f, b)
		}
		due = part.tiers
		l.until("what the latest batches say", &have, func() bool {
			return have.about.Connected && includes(have.tiers[Any], part.tiers[Any]) && includes(have.tiers[Device], part.tiers[Device])
		})
	}
	l.holds(&have, held)
	l.announced += len(have.tiers[Any])
	return held, due
}

// mark has the engine hold a block that it never held, and returns its fingerprint.
func (l *life) mark() uint64 {
	e := l.engine
	t := e.talk(Prompt{}, e.size+1)
	for e.request(t) == nil {
		e.finish(l.rnd.IntN(len(e.active)))
	}
	return t.blocks[0].key
}

// holds fails when something is announced that is not held.
func (l *life) holds(have *sunk, held [2]map[uint64]bool) {
	l.t.Helper()
	for tier, set := range have.tiers {
		n := 0
		for key := range set {
			if !held[tier][key] {
				n++
			}
		}
		if n > 0 && have.about.Connected {
			l.t.Fatalf("seed %d: %d of %d blocks announced in tier %d are not held, %+v", l.seed, n, len(set), tier, have.about)
		}
	}
}

func includes(set, part map[uint64]bool) bool {
	for key := range part {
		if !set[key] {
			return false
		}
	}
	return true
}

// until looks at what is announced until ok holds.
func (l *life) until(what string, have *sunk, ok func() bool) {
	l.t.Helper()
	late := time.Now().Add(3 * patience)
	for {
		*have = l.sink.look()
		if ok() {
			return
		}
		if time.Now().After(late) {
			l.t.Fatalf("seed %d: %s: not so after %v: announced %d and %d of %d and %d, %+v", l.seed, what, 3*patience,
				len(have.tiers[Device]), len(have.tiers[Any]), len(l.heard.tiers[Device]), len(l.heard.tiers[Any]), have.about)
		}
		_ = wait(context.Background(), 500*time.Microsecond)
	}
}

// lifeSink is a Sink that other goroutines may look at. It fails the test when a call leaves what is announced not prefix-closed.
type lifeSink struct {
	*heldSink
	tree     *lifeTree
	children [2]map[uint64]int
}

// sunk is what a lifeSink has.
type sunk struct {
	tiers [2]map[uint64]bool
	about Description
}

func newLifeSink(t testing.TB, tree *lifeTree) *lifeSink {
	return &lifeSink{heldSink: newHeldSink(t), tree: tree, children: [2]map[uint64]int{{}, {}}}
}

func (s *lifeSink) look() sunk {
	s.mu.Lock()
	defer s.mu.Unlock()
	return sunk{[2]map[uint64]bool{maps.Clone(s.tiers[0]), maps.Clone(s.tiers[1])}, s.about}
}

// Store implements Sink.
func (s *lifeSink) Store(tier Tier, keys []uint64) {
	s.heldSink.Store(tier, keys)
	for _, k := range keys {
		parent, known := s.tree.parentOf(k)
		switch {
		case !known:
			s.t.Errorf("store of %x, which is no block of the engine", k)
		case tier == Device && !s.tiers[Any][k]:
			s.t.Errorf("store of %x on the device alone", k)
		case parent != 0 && !s.tiers[tier][parent]:
			s.t.Errorf("store of %x without its parent", k)
		}
		s.children[tier][parent]++
	}
}

// Remove implements Sink.
func (s *lifeSink) Remove(tier Tier, keys []uint64) {
	s.heldSink.Remove(tier, keys)
	for _, k := range keys {
		parent, _ := s.tree.parentOf(k)
		s.children[tier][parent]--
		if tier == Any && s.tiers[Device][k] || s.children[tier][k] > 0 {
			s.t.Errorf("remove of %x, before its children or the device", k)
		}
	}
}

// Reset implements Sink.
func (s *lifeSink) Reset(cause Cause) {
	s.heldSink.Reset(cause)
	s.children = [2]map[uint64]int{{}, {}}
}
