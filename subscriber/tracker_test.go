package subscriber

import (
	"fmt"
	"strconv"
	"strings"
	"testing"
	"time"
)

// scribe writes down what a tracker decides. A batch called "bad" cannot be read.
type scribe struct {
	calls []string
	id    int
}

func (s *scribe) add(format string, args ...any) {
	s.calls = append(s.calls, fmt.Sprintf(format, args...))
}

func (s *scribe) apply(seq uint64, payload []byte, replayed bool) bool {
	if string(payload) == "bad" {
		s.add("bad %d", seq)
		return false
	}
	if replayed {
		s.add("replayed %s", payload)
	} else {
		s.add("apply %s", payload)
	}
	return true
}

func (s *scribe) reset(cause Cause)           { s.add("reset %s", cause) }
func (s *scribe) online(yes bool)             { s.add("online %v", yes) }
func (s *scribe) quiet(on bool)               { s.add("quiet %v", on) }
func (s *scribe) history(complete bool)       { s.add("complete %v", complete) }
func (s *scribe) gap(repaired bool)           { s.add("repaired %v", repaired) }
func (s *scribe) replay(_ purpose, o outcome) { s.add("ended %s", o) }

// play has a tracker go through steps and returns what it decided, and asked, at each:
//
//	connect | disconnect | end | fail OUTCOME | tick SECONDS…
//	live NUMBERS… | reply NUMBERS…
//
// A number with a letter behind it is another process's batch of that number; "9:bad" is batch 9, which cannot be read.
func play(t *testing.T, tr *tracker, s *scribe, now *time.Time, step string) string {
	t.Helper()
	words := strings.Fields(step)
	s.calls = nil
	observe := func() {
		if r := tr.request; r.id != s.id {
			s.id = r.id
			s.add("ask %s %d", r.why, r.from)
		}
	}
	if words[0] != "live" && words[0] != "reply" && words[0] != "tick" {
		switch words[0] {
		case "connect":
			tr.connect(*now)
		case "disconnect":
			tr.disconnect(*now)
		case "end":
			tr.end()
		case "fail":
			tr.failed(outcome(words[1]))
		case "garbled":
			tr.garbled()
		case "leave":
			tr.leave()
		default:
			t.Fatalf("step %q", step)
		}
		observe()
	}
	for _, w := range words[1:] {
		switch words[0] {
		case "tick":
			d, err := strconv.Atoi(w)
			if err != nil {
				t.Fatal(err)
			}
			*now = now.Add(time.Duration(d) * time.Second)
			tr.tick(*now)
		case "live", "reply":
			number, payload, named := strings.Cut(w, ":")
			if !named {
				payload = number
				number = strings.TrimRight(number, "bcd")
			}
			seq, err := strconv.ParseUint(number, 10, 64)
			if err != nil {
				t.Fatal(err)
			}
			if words[0] == "live" {
				tr.message(seq, []byte(payload))
			} else {
				tr.reply(seq, []byte(payload))
			}
		}
		observe()
	}
	return strings.Join(s.calls, ", ")
}

type scene struct{ step, want string }

func TestTracker(t *testing.T) {
	const (
		up    = "quiet false, online true"
		catch = "online false, quiet true"
	)
	// begun is a connection that has replayed batches 0 to 2 and heard 3.
	begun := []scene{
		{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
		{"reply 0 1 2", "reset lost, complete true, replayed 0, replayed 1, replayed 2"},
		{"end", "ended complete, " + up},
		{"live 3", "apply 3"},
	}
	tests := []struct {
		name   string
		plain  bool // no replay socket
		begun  bool
		scenes []scene
	}{
		{name: "no replay: in order", plain: true, scenes: []scene{
			{"connect", "reset disconnect, " + up},
			{"live 0 1", "complete true, apply 0, apply 1"},
			{"disconnect", "online false, reset disconnect, complete false, quiet false"},
		}},
		{name: "no replay: joined late, a gap, a restart, a repeated number", plain: true, scenes: []scene{
			{"connect", "reset disconnect, " + up},
			{"live 84 85", "apply 84, apply 85"},
			{"live 87 88", "repaired false, reset gap, apply 87, apply 88"},
			{"live 0", "reset backwards, complete true, apply 0"},
			{"live 0b 1b", "reset backwards, complete false, apply 1b"}, // it may be the same process
			{"live 3:bad 4", "repaired false, reset gap, bad 3, apply 4"},
			{"garbled", "reset unreadable"},
			{"live 2", "apply 2"},
			{"tick 60", ""},
		}},
		{name: "no replay: late batches", plain: true, scenes: []scene{
			{"connect", "reset disconnect, " + up},
			{"live 100 103", "apply 100, repaired false, reset gap, apply 103"},
			{"live 101 102", "reset backwards"}, // after 103 they tell nothing of what the engine holds
			{"live 104", "apply 104"},
			{"live 102", "reset backwards"},
			{"live 40 41", "reset backwards, apply 40, apply 41"}, // too far back to be late
		}},
		{name: "no replay: the largest numbers", plain: true, scenes: []scene{
			{"connect", "reset disconnect, " + up},
			{"live 18446744073709551613 18446744073709551614", "apply 18446744073709551613, apply 18446744073709551614"},
			{"live 0", "reset backwards, complete true, apply 0"},
		}},
		{name: "start: live messages wait, the overlap is ignored", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"live 2 3", ""},
			{"reply 0 1 2", "reset lost, complete true, replayed 0, replayed 1, replayed 2"},
			{"live 4", ""},
			{"end", "ended complete, apply 3, apply 4, " + up},
			{"live 5", "apply 5"},
		}},
		{name: "start: nothing was published", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"end", "complete true, ended empty, " + up},
			{"live 0", "apply 0"},
			{"disconnect", "online false"},
			{"connect", catch + ", ask prove 0"},
		}},
		{name: "start: nothing was published, and the first one was missed", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"end", "complete true, ended empty, " + up},
			{"live 2", catch + ", ask repair 0"},
			{"reply 0 1 2", "replayed 0, replayed 1, replayed 2"},
			{"end", "ended complete, repaired true, " + up},
		}},
		{name: "start: nothing was published, then the connection ends", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"end", "complete true, ended empty, " + up},
			{"disconnect", "online false, reset disconnect, complete false, quiet false"},
		}},
		{name: "start older than what the engine keeps", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"reply 71 72", "reset lost, replayed 71, replayed 72"},
			{"end", "ended partial, " + up},
			{"live 73", "apply 73"},
		}},
		{name: "start: a hole is asked again", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"reply 0 1 5", "reset lost, complete true, replayed 0, replayed 1, ended hole, ask repair 1"},
			{"reply 1 2 3 9", "replayed 2, replayed 3, ended hole, ask repair 3"},
			{"reply 3 4 5", "replayed 4, replayed 5"},
			{"end", "ended complete, " + up},
		}},
		{name: "start: slow joiner", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"reply 0", "reset lost, complete true, replayed 0"},
			{"live 3", ""},
			{"end", "ended complete, ask repair 0"},
			{"reply 0 1 2 3", "replayed 1, replayed 2, replayed 3"},
			{"end", "ended complete, " + up},
		}},
		{name: "start: unreachable, live goes on and it is tried again", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"live 7", ""},
			{"fail unreachable", "ended unreachable, reset lost, apply 7, " + up},
			{"live 8 10", "apply 8, repaired false, reset gap, apply 10, ask refill 0"},
			{"fail timeout", "ended timeout"},
			{"tick 1 1", ""},
			{"tick 1", "ask refill 0"},
			{"live 11", "apply 11"},
			{"reply 0", catch + ", reset lost, complete true, replayed 0"},
			{"live 12", ""},
			{"reply 1 2", "replayed 1, replayed 2"},
			{"reply 3 4 5 6 7 8 9 10 11", "replayed 3, replayed 4, replayed 5, replayed 6, replayed 7, replayed 8, replayed 9, replayed 10, replayed 11"},
			{"end", "ended complete, apply 12, " + up},
			{"live 14", catch + ", ask repair 12"},
		}},
		{name: "unreachable, and what the engine keeps later is less than what was heard", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"live 7", ""},
			{"fail unreachable", "ended unreachable, reset lost, apply 7, " + up},
			{"tick 1 1", ""},
			{"live 8 9 10", "apply 8, apply 9, apply 10"},
			{"tick 1", "ask refill 0"},
			{"reply 8", "ended partial"},
			{"tick 1 300", "ask look 10"}, // nor is it asked for again
			{"live 11", "apply 11"},
		}},
		{name: "unreachable, and what the engine keeps later is more than what was heard", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"live 7", ""},
			{"fail unreachable", "ended unreachable, reset lost, apply 7, " + up},
			{"tick 1 1 1", "ask refill 0"},
			{"reply 6 7", catch + ", reset lost, replayed 6, replayed 7"},
			{"end", "ended partial, " + up},
		}},
		{name: "start: cut off in the middle", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"reply 0 1", "reset lost, complete true, replayed 0, replayed 1"},
			{"fail unreachable", "ended unreachable, ask repair 1"},
			{"reply 1 2", "replayed 2"},
			{"end", "ended complete, " + up},
		}},
		{name: "start: silent in the middle", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"live 7 9", ""},
			{"reply 0 1", "reset lost, complete true, replayed 0, replayed 1"},
			{"fail timeout", "ended timeout, ask repair 1"}, // it has brought something
			{"reply 1", ""},
			{"fail timeout", "ended timeout, reset lost, complete false, apply 7, reset gap, apply 9, " + up},
			{"disconnect", "online false"},
			{"connect", "reset disconnect, " + up + ", ask refill 0"},
			{"live 11", "apply 11"},
			{"end", "ended empty"},
			{"live 13", catch + ", ask repair 11"},
		}},
		{name: "gap is closed", begun: true, scenes: []scene{
			{"live 6", catch + ", ask repair 3"},
			{"live 7", ""},
			{"reply 3 4 5 6", "replayed 4, replayed 5, replayed 6"},
			{"end", "ended complete, apply 7, repaired true, " + up},
		}},
		{name: "gap beyond what the engine keeps", begun: true, scenes: []scene{
			{"live 9", catch + ", ask repair 3"},
			{"reply 6 7", "repaired false, reset lost, complete false, replayed 6, replayed 7"},
			{"reply 8 9", "replayed 8, replayed 9"},
			{"end", "ended partial, " + up},
		}},
		{name: "gap that a replay does not know of", begun: true, scenes: []scene{
			{"live 5", catch + ", ask repair 3"},
			{"reply 3", ""},
			{"end", "ended empty, ask repair 3"},
			{"reply 3 4", "replayed 4"},
			{"end", "ended complete, apply 5, repaired true, " + up},
		}},
		{name: "gap, and the replies are another process's", begun: true, scenes: []scene{
			{"live 5", catch + ", ask repair 3"},
			{"reply 3b", "ended not_proven, reset backwards, complete false, ask fill 0"},
		}},
		{name: "gap, and the replies are those of another process, less far", begun: true, scenes: []scene{
			{"live 5", catch + ", ask repair 3"},
			{"end", "ended not_proven, reset backwards, complete false, ask fill 0"},
		}},
		{name: "gap, silent replay", begun: true, scenes: []scene{
			{"live 5 6", catch + ", ask repair 3"},
			{"fail timeout", "ended timeout, repaired false, reset gap, complete false, apply 5, apply 6, " + up},
			{"live 8", "repaired false, reset gap, apply 8, ask refill 0"},
			{"live 10", "repaired false, reset gap, apply 10"},
		}},
		{name: "gap, wrong numbers", begun: true, scenes: []scene{
			{"live 6", catch + ", ask repair 3"},
			{"reply 2", "ended invalid, repaired false, reset lost, complete false, apply 6, " + up},
		}},
		{name: "gap, numbers that go back", begun: true, scenes: []scene{
			{"live 6", catch + ", ask repair 3"},
			{"reply 3 4 4", "replayed 4, ended invalid, repaired false, reset lost, complete false, apply 6, " + up},
		}},
		{name: "the same process after a lost connection", begun: true, scenes: []scene{
			{"disconnect", "online false"},
			{"tick 1 300", ""},
			{"connect", catch + ", ask prove 3"},
			{"reply 3 4", "replayed 4"},
			{"end", "ended complete, " + up},
			{"live 4", ""},
			{"live 5", "apply 5"},
		}},
		{name: "another process, further on", begun: true, scenes: []scene{
			{"disconnect", "online false"},
			{"connect", catch + ", ask prove 3"},
			{"live 5b", ""},
			{"reply 3b", "ended not_proven, reset backwards, complete false, ask fill 0"},
			{"reply 0b 1b 2b 3b 4b 5b", "reset lost, complete true, replayed 0b, replayed 1b, replayed 2b, replayed 3b, replayed 4b, replayed 5b"},
			{"end", "ended complete, " + up},
		}},
		{name: "another process, less far", begun: true, scenes: []scene{
			{"disconnect", "online false"},
			{"connect", catch + ", ask prove 3"},
			{"end", "ended not_proven, reset backwards, complete false, ask fill 0"},
			{"reply 0b", "reset lost, complete true, replayed 0b"},
			{"end", "ended complete, " + up},
		}},
		{name: "the proof is no longer kept", begun: true, scenes: []scene{
			{"disconnect", "online false"},
			{"connect", catch + ", ask prove 3"},
			{"reply 6", "ended not_proven, reset lost, complete false, ask fill 0"},
			{"reply 6 7", "reset lost, replayed 6, replayed 7"},
			{"end", "ended partial, " + up},
		}},
		{name: "no proof to be had", begun: true, scenes: []scene{
			{"disconnect", "online false"},
			{"connect", catch + ", ask prove 3"},
			{"fail unreachable", "ended unreachable, reset disconnect, complete false, " + up},
			{"live 8", "apply 8"},
		}},
		{name: "connection lost while catching up", begun: true, scenes: []scene{
			{"live 6", catch + ", ask repair 3"},
			{"reply 3 4", "replayed 4"},
			{"disconnect", "ended abandoned, online false"},
			{"connect", catch + ", ask prove 4"},
			{"reply 4 5 6", "replayed 5, replayed 6"},
			{"end", "ended complete, repaired true, " + up},
		}},
		{name: "kept for its time", begun: true, scenes: []scene{
			{"disconnect", "online false"},
			{"tick 599", ""},
			{"tick 1", "reset disconnect, complete false, quiet false"},
			{"tick 1", ""},
			{"connect", "reset disconnect, " + catch + ", ask fill 0"},
		}},
		{name: "end of Run", begun: true, scenes: []scene{
			{"leave", "online false, reset disconnect, complete false, quiet false"},
			{"connect", "reset disconnect, " + catch + ", ask fill 0"},
		}},
		{name: "silence: nothing lost, less and less often", begun: true, scenes: []scene{
			{"tick 1 1", ""}, // the first sees the message
			{"tick 1", "ask look 3"},
			{"reply 3", ""},
			{"end", "ended empty"},
			{"tick 1 1 1", ""},
			{"tick 1", "ask look 3"},
			{"reply 3", ""},
			{"end", "ended empty"},
			{"tick 7", ""},
			{"tick 1", "ask look 3"},
			{"reply 3", ""},
			{"end", "ended empty"},
			{"tick 16", "ask look 3"},
			{"reply 3", ""},
			{"end", "ended empty"},
			{"tick 30", "ask look 3"},
			{"reply 3", ""},
			{"end", "ended empty"},
			{"tick 29", ""},
			{"tick 1", "ask look 3"},
			{"live 4", "apply 4"},
			{"reply 3 4", ""},
			{"end", "ended empty"},
			{"tick 1 1 1", "ask look 4"},
		}},
		{name: "silence: the tail was lost", begun: true, scenes: []scene{
			{"tick 1 2", "ask look 3"},
			{"reply 3 4 5", "replayed 4, replayed 5"},
			{"end", "ended complete"},
			{"live 5 6", "apply 6"},
		}},
		{name: "silence: a hole in the tail", begun: true, scenes: []scene{
			{"tick 1 2", "ask look 3"},
			{"reply 3 4 6", "replayed 4, ended hole, " + catch + ", ask repair 4"},
			{"reply 4 5 6", "replayed 5, replayed 6"},
			{"end", "ended complete, " + up},
		}},
		{name: "silence: a gap ends the look", begun: true, scenes: []scene{
			{"tick 1 2", "ask look 3"},
			{"live 5", catch + ", ended abandoned, ask repair 3"},
			{"reply 3 4 5", "replayed 4, replayed 5"},
			{"end", "ended complete, repaired true, " + up},
		}},
		{name: "silence: no answer changes nothing", begun: true, scenes: []scene{
			{"tick 1 2", "ask look 3"},
			{"fail timeout", "ended timeout"},
			{"live 4", "apply 4"},
		}},
		{name: "silence before the first batch: what is heard meanwhile is not joined with replies", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"end", "complete true, ended empty, " + up},
			{"tick 2", "ask look 0"},
			{"live 0 1", "apply 0, apply 1"},
			{"reply 0b 1b 2b", "ended partial"},
			{"live 2", "apply 2"},
			{"end", ""},
		}},
		{name: "silence before the first batch: live batches wait for the replies", scenes: []scene{
			{"connect", "reset disconnect, online false, quiet true, ask fill 0"},
			{"end", "complete true, ended empty, " + up},
			{"tick 2", "ask look 0"},
			{"reply 0b 1b", catch + ", replayed 0b, replayed 1b"},
			{"live 0 1 2", ""},
			{"reply 2b", "replayed 2b"},
			{"end", "ended complete, " + up},
		}},
		{name: "silence: another process, as far", begun: true, scenes: []scene{
			{"tick 1 2", "ask look 3"},
			{"live 4b", "apply 4b"},
			{"reply 3b", "ended not_proven, reset backwards, complete false, " + catch + ", ask fill 0"},
		}},
		{name: "silence: another process, less far", begun: true, scenes: []scene{
			{"tick 1 2", "ask look 3"},
			{"end", "ended not_proven, reset backwards, complete false, " + catch + ", ask fill 0"},
		}},
		{name: "silence: the last batch is not kept", begun: true, scenes: []scene{
			{"tick 1 2", "ask look 3"},
			{"reply 4 5", catch + ", reset lost, complete false, replayed 4, replayed 5"},
			{"end", "ended partial, " + up},
		}},
		{name: "silence: the last batch is not kept, and live went on", begun: true, scenes: []scene{
			{"tick 1 2", "ask look 3"},
			{"live 4 5", "apply 4, apply 5"},
			{"reply 4", "ended partial"},
		}},
		{name: "silence: nor the one after it", begun: true, scenes: []scene{
			{"tick 1 2", "ask look 3"},
			{"reply 5", catch + ", reset lost, complete false, replayed 5"}, // of long ago: not to be matched
			{"live 7", ""},
			{"reply 6", "replayed 6"},
			{"end", "ended partial, apply 7, " + up},
		}},
		{name: "restart behind a lasting connection", begun: true, scenes: []scene{
			{"live 1b", "reset backwards, complete false, " + catch + ", ask fill 0"},
			{"reply 0b 1b", "reset lost, complete true, replayed 0b, replayed 1b"},
			{"end", "ended complete, " + up},
		}},
		{name: "restart seen from its first batch", begun: true, scenes: []scene{
			{"live 0b", "reset backwards, complete false, " + catch + ", ask fill 0"}, // it may be late
			{"live 1b", ""},
			{"reply 0b 1b", "reset lost, complete true, replayed 0b, replayed 1b"},
			{"end", "ended complete, " + up},
			{"live 2b", "apply 2b"},
		}},
		{name: "restart seen from its first batch, after many", begun: true, scenes: []scene{
			{"live 4 5 6", "apply 4, apply 5, apply 6"},
			{"live 99", catch + ", ask repair 6"},
			{"fail timeout", "ended timeout, repaired false, reset gap, complete false, apply 99, " + up},
			{"live 0b", "reset backwards, complete true, apply 0b"},
		}},
		{name: "a late batch", begun: true, scenes: []scene{
			{"live 5 4", catch + ", ask repair 3, ended abandoned, repaired false, reset backwards, complete false, ask fill 0"},
			{"reply 0 1 2 3 4 5", "reset lost, complete true, replayed 0, replayed 1, replayed 2, replayed 3, replayed 4, replayed 5"},
			{"end", "ended complete, " + up},
			{"live 6", "apply 6"},
		}},
		{name: "a batch again and again", begun: true, scenes: []scene{
			{"live 3", "reset backwards, complete false, " + catch + ", ask fill 0"},
			{"live 3 3", ""},
			{"reply 0 1", "reset lost, complete true, replayed 0, replayed 1"},
			{"live 3", "ended abandoned, reset backwards, complete false, ask fill 0"},
			{"reply 0 1 2 3", "reset lost, complete true, replayed 0, replayed 1, replayed 2, replayed 3"},
			{"end", "ended complete, " + up},
		}},
		{name: "a batch twice, no answer, then one in which it was lost", scenes: []scene{
			{"connect", "reset disconnect, " + catch + ", ask fill 0"},
			{"live 0", ""},
			{"fail timeout", "ended timeout, reset lost, complete true, apply 0, " + up},
			{"live 0", "reset backwards, complete false, ask refill 0"},
			{"end", "ended empty"},
			{"tick 1 1", ""},
			{"tick 1", "ask refill 0"},
			{"reply 0", catch + ", reset lost, complete true, replayed 0"},
			{"end", "ended complete, " + up},
		}},
		{name: "a late batch and no answer", begun: true, scenes: []scene{
			{"live 5 4", catch + ", ask repair 3, ended abandoned, repaired false, reset backwards, complete false, ask fill 0"},
			{"fail timeout", "ended timeout, reset gap, " + up},
			{"live 6", "apply 6"},
		}},
		{name: "restart while catching up", begun: true, scenes: []scene{
			{"live 9", catch + ", ask repair 3"},
			{"live 2b", "ended abandoned, repaired false, reset backwards, complete false, ask fill 0"},
			{"reply 0b 1b 2b", "reset lost, complete true, replayed 0b, replayed 1b, replayed 2b"},
			{"end", "ended complete, " + up},
		}},
		{name: "unreadable batch in a replay", begun: true, scenes: []scene{
			{"live 6", catch + ", ask repair 3"},
			{"reply 3 4:bad 5 6", "bad 4, complete false, replayed 5, replayed 6"},
			{"end", "ended complete, repaired true, " + up},
		}},
		{name: "message without a number", begun: true, scenes: []scene{
			{"garbled", ""},
			{"live 5", catch + ", ask repair 3"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			s := &scribe{}
			tr := &tracker{do: s, replays: !tt.plain, pacing: newPacing(10 * time.Minute), pending: pending{limit: 1 << 20}}
			now := time.Unix(1_800_000_000, 0)
			scenes := tt.scenes
			if tt.begun {
				scenes = append(append([]scene(nil), begun...), scenes...)
			}
			for i, sc := range scenes {
				if got := play(t, tr, s, &now, sc.step); got != sc.want {
					t.Fatalf("scene %d, %s:\n got %s\nwant %s", i, sc.step, got, sc.want)
				}
			}
		})
	}
}

// TestTrackerRestored takes up a mirror that lacks the engine's first batches, and wants them asked for once the process is proven.
func TestTrackerRestored(t *testing.T) {
	const up, beside = "quiet false, online true", "online false, quiet true, "
	begin := []scene{
		{"connect", beside + "ask prove 9"},
		{"reply 9", ""},
		{"end", "ended empty, " + up},
		{"tick 1 1", ""}, // the first sets the time
		{"tick 1", "ask refill 0"},
	}
	for _, tt := range []struct {
		name  string
		start uint64
		end   []scene
	}{
		{"the engine keeps all", 5, []scene{
			{"reply 0", beside + "reset lost, complete true, replayed 0"},
			{"reply 1 2 3 4 5 6 7 8 9", "replayed 1, replayed 2, replayed 3, replayed 4, replayed 5, replayed 6, replayed 7, replayed 8, replayed 9"},
			{"end", "ended complete, " + up},
		}},
		{"the engine keeps more than the mirror has heard", 5, []scene{
			{"reply 3 4", beside + "reset lost, replayed 3, replayed 4"},
		}},
		{"the engine keeps no more than the mirror has heard", 5, []scene{
			{"reply 5", "ended partial"},
			{"tick 1 1 1 1", "ask look 9"},
		}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			s := &scribe{}
			tr := &tracker{do: s, replays: true, pacing: newPacing(10 * time.Minute), pending: pending{limit: 1 << 20}}
			now := time.Unix(1_800_000_000, 0)
			tr.restore(position{seq: 9, digest: digestOf([]byte("9")), seen: true, start: tt.start}, now)
			for i, sc := range append(begin[:len(begin):len(begin)], tt.end...) {
				if got := play(t, tr, s, &now, sc.step); got != sc.want {
					t.Fatalf("scene %d, %s:\n got %s\nwant %s", i, sc.step, got, sc.want)
				}
			}
		})
	}
}

// TestTrackerLongReplay goes through replays of which an engine dropped batches in the middle, as recorded, and has the holes filled.
func TestTrackerLongReplay(t *testing.T) {
	var recorded struct {
		Runs []struct {
			StartSeq uint64   `json:"start_seq"`
			Expected int      `json:"expected"`
			Received int      `json:"received"`
			GapAfter []uint64 `json:"gap_after"`
		} `json:"runs"`
	}
	readJSON(t, "testdata/long_replay.json", &recorded)
	holes := 0
	for _, r := range recorded.Runs {
		end := r.StartSeq + uint64(r.Expected)
		s := &tally{counter: counter{ended: map[outcome]int{}}}
		tr := &tracker{do: s, replays: true, pacing: newPacing(time.Minute), pending: pending{limit: 1 << 20}}
		tr.connect(time.Now())
		tr.message(end-1, []byte{1}) // what is live meanwhile
		gaps := r.GapAfter
		for request := 0; tr.request.open; request++ {
			if request > len(r.GapAfter) {
				t.Fatalf("from %d: asked %d times", r.StartSeq, request+1)
			}
			lost := uint64(0)
			for seq := max(tr.request.from, r.StartSeq); seq < end; seq++ {
				if lost > 0 {
					lost--
					continue
				}
				id := tr.request.id
				tr.reply(seq, []byte{1})
				if tr.request.id != id {
					break
				}
				if len(gaps) > 0 && seq == gaps[0] {
					gaps, lost = gaps[1:], uint64(max(1, (r.Expected-r.Received)/len(r.GapAfter)))
				}
			}
			if len(gaps) == 0 && tr.next == end {
				tr.end()
			}
		}
		holes += len(r.GapAfter)
		if s.applied != r.Expected || s.ended[replayHole] != len(r.GapAfter) || tr.mode != following {
			t.Errorf("from %d: %d applied of %d, ended %v", r.StartSeq, s.applied, r.Expected, s.ended)
		}
	}
	if holes == 0 {
		t.Error("no recording has a hole")
	}
}

// tally counts what is applied.
type tally struct {
	counter
	applied int
}

func (t *tally) apply(uint64, []byte, bool) bool { t.applied++; return true }
