package subscriber

import (
	"slices"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestMedia(t *testing.T) {
	own, err := lowerMedia(map[string]MediumRule{"CPU": {}, "Tape": {Medium: MediumDisk, Lifetime: time.Hour}, "hbm": {Medium: MediumDevice}})
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		name       string
		plain, own MediumRule
	}{
		{"", MediumRule{Medium: MediumDevice}, MediumRule{Medium: MediumDevice}},
		{"GPU", MediumRule{Medium: MediumDevice}, MediumRule{Medium: MediumDevice}},
		{"gpu", MediumRule{Medium: MediumDevice}, MediumRule{Medium: MediumDevice}},
		{"HBM", MediumRule{}, MediumRule{Medium: MediumDevice}},
		{"CPU", MediumRule{Medium: MediumHost}, MediumRule{}},
		{"cpu", MediumRule{Medium: MediumHost}, MediumRule{}},
		{"CPU_PINNED", MediumRule{Medium: MediumHost}, MediumRule{Medium: MediumHost}},
		{"DISK", MediumRule{Medium: MediumDisk, Lifetime: 10 * time.Minute}, MediumRule{Medium: MediumDisk, Lifetime: 10 * time.Minute}},
		{"TAPE", MediumRule{}, MediumRule{Medium: MediumDisk, Lifetime: time.Hour}},
		{"STORAGE", MediumRule{}, MediumRule{}},
		{"EXTERNAL", MediumRule{}, MediumRule{}},
		{"?", MediumRule{}, MediumRule{}},
	} {
		if got := newMediaSet(nil).of([]byte(c.name)); got != c.plain {
			t.Errorf("%q is %+v, want %+v", c.name, got, c.plain)
		}
		if got := newMediaSet(own).of([]byte(c.name)); got != c.own {
			t.Errorf("%q is %+v by rules of one's own, want %+v", c.name, got, c.own)
		}
	}
}

func TestParseMedium(t *testing.T) {
	for text, want := range map[string]Medium{"device": MediumDevice, "host": MediumHost, "disk": MediumDisk, "ignore": MediumNone} {
		if got, err := ParseMedium(text); err != nil || got != want {
			t.Errorf("%q is %v, %v", text, got, err)
		}
	}
	for _, text := range []string{"", "none", "GPU", "Host"} {
		if got, err := ParseMedium(text); err == nil {
			t.Errorf("%q is %v", text, got)
		}
	}
}

// tierStep is a batch after so many seconds, or a tick when there are no events.
type tierStep struct {
	at     int
	events []any
}

// TestTiers: what copies outside of the device do, and when they end.
func TestTiers(t *testing.T) {
	both := func(words string) []string { return []string{"+any " + words, "+dev " + words} }
	disk := map[string]MediumRule{"slow": {Medium: MediumDisk}, "brief": {Medium: MediumHost, Lifetime: 5 * time.Second}, "gpu": {Medium: MediumDevice}}
	second := func(word, group string) fields { return st("", word).with("group_idx", int(group[0])) }
	late := int(ghostLife / time.Second)
	for _, c := range []struct {
		name    string
		media   map[string]MediumRule
		demote  time.Duration
		plays   []tierStep
		want    []string
		coldest Medium
	}{
		{name: "demoted", plays: []tierStep{{0, []any{st("", "ab"), known("CPU", "ab")}}, {1, []any{rm("ba")}}, {999_999, nil}}, want: append(both("a ab"), "-dev ab a"), coldest: MediumHost},
		{name: "demoted, and gone from the host", plays: []tierStep{{0, []any{st("", "ab"), known("CPU", "ab")}}, {1, []any{rm("ba")}}, {2, []any{knownRemoved("CPU", "a")}}}, want: append(both("a ab"), "-dev ab a", "-any ab a"), coldest: MediumHost},
		{name: "gone from the host first", plays: []tierStep{{0, []any{st("", "ab"), known("CPU", "ab")}}, {1, []any{knownRemoved("CPU", "ba")}}, {2, []any{rm("b")}}}, want: append(both("a ab"), "-dev ab", "-any ab"), coldest: MediumHost},
		{name: "loaded back", plays: []tierStep{{0, []any{st("", "a"), known("CPU", "a")}}, {1, []any{rm("a")}}, {2, []any{st("", "a")}}}, want: append(both("a"), "-dev a", "+dev a"), coldest: MediumHost},
		{name: "two media", media: disk, plays: []tierStep{{0, []any{st("", "a"), known("CPU", "a"), known("SLOW", "a")}}, {1, []any{rm("a"), knownRemoved("CPU", "a")}}, {999_999, nil}, {999_999, []any{knownRemoved("slow", "a")}}}, want: append(both("a"), "-dev a", "-any a"), coldest: MediumDisk},
		{name: "a disk is bounded by time", plays: []tierStep{{0, []any{st("", "a"), known("DISK", "a")}}, {1, []any{rm("a")}}, {599, nil}, {600, nil}}, want: append(both("a"), "-dev a", "-any a"), coldest: MediumDisk},
		{name: "announced again on the disk", plays: []tierStep{{0, []any{st("", "a"), known("DISK", "a")}}, {300, []any{known("disk", "a")}}, {301, []any{rm("a")}}, {600, nil}, {900, nil}}, want: append(both("a"), "-dev a", "-any a"), coldest: MediumDisk},
		{name: "removed from the disk", plays: []tierStep{{0, []any{st("", "a"), known("DISK", "a"), known("DISK", "a")}}, {1, []any{rm("a")}}, {2, []any{knownRemoved("DISK", "a")}}}, want: append(both("a"), "-dev a", "-any a"), coldest: MediumDisk},
		{name: "a lifetime of one's own", media: disk, plays: []tierStep{{0, []any{st("", "a"), known("Brief", "a")}}, {1, []any{rm("a")}}, {5, nil}}, want: append(both("a"), "-dev a", "-any a"), coldest: MediumHost},
		{name: "ignored", plays: []tierStep{{0, []any{st("", "a"), known("EXTERNAL", "a"), known("storage", "a")}}, {1, []any{knownRemoved("storage", "a"), rm("a")}}}, want: append(both("a"), "-dev a", "-any a")},
		{name: "host copies ignored", media: map[string]MediumRule{"cpu": {}}, plays: []tierStep{{0, []any{st("", "a"), known("CPU", "a")}}, {1, []any{rm("a")}}}, want: append(both("a"), "-dev a", "-any a")},
		{name: "a group of two is on the host", plays: []tierStep{{0, []any{st("", "a"), second("a", "\x05"), known("CPU", "a")}}, {1, []any{rm("a")}}}, want: append(both("a"), "-dev a"), coldest: MediumHost},

		{name: "assumed", demote: 10 * time.Second, plays: []tierStep{{0, []any{st("", "ab")}}, {1, []any{rm("ba")}}, {10, nil}, {11, nil}}, want: append(both("a ab"), "-dev ab a", "-any ab a"), coldest: MediumHost},
		{name: "assumed, the last copy only", demote: 10 * time.Second, plays: []tierStep{{0, []any{st("", "ab"), st("a", "b")}}, {1, []any{rm("b")}}, {5, []any{rm("b")}}, {11, nil}, {15, nil}}, want: append(both("a ab"), "-dev ab", "-any ab"), coldest: MediumHost},
		{name: "assumed, both copies in one event", demote: 10 * time.Second, plays: []tierStep{{0, []any{st("", "ab"), st("a", "b")}}, {1, []any{rm("bb")}}, {11, nil}}, want: append(both("a ab"), "-dev ab", "-any ab"), coldest: MediumHost},
		{name: "assumed, loaded back and removed again", demote: 10 * time.Second, plays: []tierStep{{0, []any{st("", "a")}}, {1, []any{rm("a")}}, {5, []any{st("", "a")}}, {8, []any{rm("a")}}, {12, nil}, {18, nil}}, want: append(both("a"), "-dev a", "+dev a", "-dev a", "-any a"), coldest: MediumHost},
		{name: "assumed, of two groups", demote: 10 * time.Second, plays: []tierStep{{0, []any{st("", "a"), second("a", "\x05")}}, {1, []any{rm("a")}}, {4, []any{rm("a").with("group_idx", 5)}}, {11, nil}}, want: append(both("a"), "-dev a", "-any a"), coldest: MediumHost},
		{name: "assumed, of a block that was an orphan", demote: 10 * time.Second, plays: []tierStep{{0, []any{st("a", "b")}}, {1, []any{rm("b")}}, {2, []any{st("", "a")}}, {11, nil}}, want: []string{"+any a ab", "+dev a", "-any ab"}, coldest: MediumHost},
		{name: "assumed, then cleared", demote: 10 * time.Second, plays: []tierStep{{0, []any{st("", "a")}}, {1, []any{rm("a")}}, {2, []any{clearedEvent()}}, {11, nil}}, want: append(both("a"), "-dev a", "reset cleared")},

		{name: "stored on the host after the removal", plays: []tierStep{{0, []any{st("", "abc"), known("CPU", "a")}}, {1, []any{rm("cb")}}, {2, []any{known("CPU", "cb")}}, {3, []any{rm("a")}}}, want: append(both("a ab abc"), "-dev abc ab", "-any abc ab", "+any ab abc", "-dev a"), coldest: MediumHost},
		{name: "stored on the host after the removal, a gap between", plays: []tierStep{{0, []any{st("", "abc"), known("CPU", "a")}}, {1, []any{rm("cb")}}, {2, []any{known("CPU", "c")}}, {3, []any{known("CPU", "b")}}}, want: append(both("a ab abc"), "-dev abc ab", "-any abc ab", "+any ab abc"), coldest: MediumHost},
		{name: "stored on the host too late", plays: []tierStep{{0, []any{st("", "ab"), known("CPU", "a")}}, {1, []any{rm("b")}}, {late + 2, []any{known("CPU", "b")}}}, want: append(both("a ab"), "-dev ab", "-any ab"), coldest: MediumHost},
		{name: "stored on the host after a clear", plays: []tierStep{{0, []any{st("", "ab"), known("CPU", "a")}}, {1, []any{rm("ba"), knownRemoved("CPU", "a")}}, {2, []any{clearedEvent(), known("CPU", "ab")}}}, want: append(both("a ab"), "-dev ab a", "-any ab a", "+any a ab"), coldest: MediumHost},
		{name: "the host is in use when the device is cleared", plays: []tierStep{{0, []any{st("", "a"), known("CPU", "a")}}, {1, []any{clearedEvent()}}, {2, []any{st("", "a")}}}, want: slices.Concat(both("a"), []string{"reset cleared"}, both("a"))},
		{name: "no ghosts without an offload tier", plays: []tierStep{{0, []any{st("", "a")}}, {1, []any{rm("a")}}, {2, []any{known("CPU", "a")}}}, want: append(both("a"), "-dev a", "-any a"), coldest: MediumHost},
		{name: "a ghost of two contents", plays: []tierStep{{0, []any{st("", "a"), known("CPU", "a"), st("a", "b"), st("", "b")}}, {1, []any{rm("bb")}}, {2, []any{known("CPU", "b")}}}, want: both("a"), coldest: MediumHost},

		{name: "a store after a parent proves it", plays: []tierStep{{0, []any{st("", "ab"), st("", "ab")}}, {1, []any{rm("ba")}}, {2, []any{st("b", "c")}}}, want: append(both("a ab"), slices.Concat([]string{"-dev ab a", "-any ab a"}, both("a ab abc"))...)},
		{name: "a store after a parent proves its ancestors", plays: []tierStep{{0, []any{st("", "ab"), st("", "ab")}}, {1, []any{rm("a")}}, {2, []any{st("b", "c")}}}, want: append(both("a ab"), slices.Concat([]string{"-dev ab a", "-any ab a"}, both("a ab abc"))...)},
		{name: "nothing is proven of an engine that announces once", plays: []tierStep{{0, []any{st("", "ab")}}, {1, []any{rm("a")}}, {2, []any{st("b", "c")}}}, want: append(both("a ab"), "-dev ab a", "-any ab a")},
		{name: "nothing is proven of what is not known", plays: []tierStep{{0, []any{st("", "x"), st("", "x"), st("a", "b")}}, {1, []any{st("b", "c")}}}, want: both("x")},
	} {
		t.Run(c.name, func(t *testing.T) {
			start := time.Unix(1_000, 0)
			sink := newNamedSink()
			media, err := lowerMedia(c.media)
			if err != nil {
				t.Fatal(err)
			}
			f := newFold(foldOptions{pool: "chat", sink: sink, media: media, demote: c.demote})
			for _, p := range c.plays {
				now := start.Add(time.Duration(p.at) * time.Second)
				if p.events == nil {
					f.tick(now)
				} else if _, err := f.fold(packBatch(p.events...), now); err != nil {
					t.Fatal(err)
				}
				if err := f.mirror.check(); err != nil {
					t.Fatalf("at %d s: %v", p.at, err)
				}
			}
			if d := cmp.Diff(c.want, sink.log); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			if got := f.described.Coldest; got != c.coldest {
				t.Errorf("coldest %v, want %v", got, c.coldest)
			}
		})
	}
}

// TestGhosts are bounded, and the newest content of a hash counts.
func TestGhosts(t *testing.T) {
	now := time.Unix(1_000, 0)
	s := newGhosts(0)
	for i := range uint64(40) {
		s.add(storeBlock{hash: i, content: i}, now.Add(time.Duration(i)*time.Second))
		s.add(storeBlock{hash: i, content: i + 100}, now.Add(time.Duration(i)*time.Second))
	}
	if len(s.ring) != s.max || s.byHash.n != s.max {
		t.Errorf("%d ghosts, %d indexed, want %d", len(s.ring), s.byHash.n, s.max)
	}
	for i := range uint64(40) {
		b, ok := s.find(i, now.Add(39*time.Second))
		if want := i >= uint64(40-s.max); ok != want || ok && b.content != i+100 {
			t.Errorf("ghost %d: %v %+v", i, ok, b)
		}
	}
	if _, ok := s.find(39, now.Add(39*time.Second+ghostLife+1)); ok {
		t.Error("a ghost outlives its time")
	}
}

// TestTiersReplayed: times that begin with an event begin when the engine made it, and not when it is replayed.
func TestTiersReplayed(t *testing.T) {
	start := time.Unix(10_000, 0)
	play := func(at int, events ...any) []byte {
		return pack([]any{float64(start.Unix()) + float64(at), events, 0})
	}
	for _, c := range []struct {
		name   string
		replay [][]byte
		later  int // seconds until a tick
		want   []string
	}{
		{name: "a disk, its time is over", replay: [][]byte{play(-3600, st("", "a"), known("DISK", "a")), play(-3590, rm("a"))}},
		{name: "a disk, its time is not over", replay: [][]byte{play(-590, st("", "a"), known("DISK", "a")), play(-580, rm("a"))}, later: 9, want: []string{"+any a"}},
		{name: "a disk, its time is over soon", replay: [][]byte{play(-590, st("", "a"), known("DISK", "a")), play(-580, rm("a"))}, later: 10, want: []string{"+any a", "-any a"}},
		{name: "demoted long ago", replay: [][]byte{play(-3600, st("", "a")), play(-3590, rm("a"))}},
		{name: "demoted a moment ago", replay: [][]byte{play(-3600, st("", "a")), play(-5, rm("a"))}, later: 4, want: []string{"+any a"}},
		{name: "the engine's clock is ahead", replay: [][]byte{play(60, st("", "a")), play(61, rm("a"))}, later: 9, want: []string{"+any a"}},
		{name: "no time", replay: [][]byte{pack([]any{nil, []any{st("", "a"), rm("a")}, 0})}, later: 9, want: []string{"+any a"}},
	} {
		t.Run(c.name, func(t *testing.T) {
			sink := newNamedSink()
			f := newFold(foldOptions{pool: "chat", sink: sink, demote: 10 * time.Second})
			f.quiet(true)
			for _, payload := range c.replay {
				if _, err := f.fold(payload, start); err != nil {
					t.Fatal(err)
				}
			}
			f.quiet(false)
			f.tick(start.Add(time.Duration(c.later) * time.Second))
			if d := cmp.Diff(c.want, sink.log); d != "" {
				t.Errorf("told (-want +got):\n%s", d)
			}
			if err := f.mirror.check(); err != nil {
				t.Error(err)
			}
		})
	}
}
