package feed

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/prometheus/client_golang/prometheus/testutil"
	"google.golang.org/protobuf/testing/protocmp"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// recordsSent are the ids of the records that a router has sent by now.
func (l *line) recordsSent() (ids []string) {
	time.Sleep(2 * batchDelay)
	synctest.Wait()
	for _, m := range l.sent() {
		if r := m.GetRecord(); r != nil {
			ids = append(ids, r.GetId())
		}
	}
	return ids
}

// quiet lets time pass on streams that go on.
func quiet(d time.Duration, lines ...*line) {
	for ; d > 0; d -= time.Second {
		time.Sleep(min(d, time.Second))
		for _, l := range lines {
			l.say(tellAlive())
		}
	}
}

func recordOfOther(n int) Record { return Record{ID: fmt.Sprint("other-", n), Pool: "chat", Code: 200} }

// TestPass hands records to the routers whose they are.
func TestPass(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(tellPeersOf("other"), tellRecordFor("own"), tellRecordFor("other"))
		if got := s.r.Pass("other", recordOfOther(1)); got != Passed {
			t.Errorf("to a router that is there: %d", got)
		}
		if got := s.r.Pass("third", Record{ID: "third-1"}); got != Kept {
			t.Errorf("to one that is not: %d", got)
		}
		for name, instance := range map[string]string{"none": "", "one that is too long": strings.Repeat("x", maxInstance+1)} {
			if got := s.r.Pass(instance, Record{ID: "x-1"}); got != NoWay {
				t.Errorf("to an instance that is %s: %d", name, got)
			}
		}
		time.Sleep(batchDelay)
		synctest.Wait()
		want := []*feedpb.RouterMessage{{Message: &feedpb.RouterMessage_Record{Record: &feedpb.Record{Instance: "other", Id: "other-1", Pool: "chat", Code: 200}}}}
		if diff := cmp.Diff(want, l.sent(), protocmp.Transform()); diff != "" {
			t.Error(diff)
		}
		if diff := cmp.Diff([]Record{{Instance: "own", ID: "own-1", Pool: "chat"}}, s.fleet.records); diff != "" {
			t.Errorf("records received: %s", diff)
		}
	})
}

// TestPassNowhere keeps nothing where no node is watched that could come to know a router.
func TestPassNowhere(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t)
		if got := s.r.Pass("other", recordOfOther(1)); got != NoWay || len(s.r.mail.kept.list) != 0 {
			t.Errorf("%d, %d records are kept", got, len(s.r.mail.kept.list))
		}
	})
}

// TestPassSlowly takes a bounded number for a node that does not read.
func TestPassSlowly(t *testing.T) {
	b := newBench(t)
	n := b.node("10.0.0.1:9010")
	b.r.wanted = []Address{node1()}
	b.say(n, tellPeersOf("other"))
	var got [3]int
	for i := range 10 * maxRecords {
		got[b.r.Pass("other", recordOfOther(i))]++
	}
	if got != [3]int{NoWay: 9 * maxRecords, Passed: maxRecords} {
		t.Errorf("no way, passed, kept: %d", got)
	}
}

// TestRecordsFindAnotherWay: a record whose way is not there, or turns out to have been lost, is passed when there is one, once where nothing was lost.
func TestRecordsFindAnotherWay(t *testing.T) {
	const second = "10.0.0.2:9010"
	type site struct {
		*routerSite
		t             *testing.T
		first, second *line
	}
	// Of two nodes the first has the other router as a peer. The record that a case passes is other-1.
	tests := []struct {
		name string
		do   func(s *site) *line // where the record is to come
		want []string
	}{
		{"there all the time", func(s *site) *line {
			s.r.Pass("other", recordOfOther(1))
			s.first.recordsSent()
			quiet(30*time.Second, s.first, s.second)
			s.first.say(tellPeersOf("other", "third"))
			return s.first
		}, nil},
		{"the other router is not there yet", func(s *site) *line {
			s.first.say(tellPeersOf())
			s.r.Pass("other", recordOfOther(1))
			s.r.Pass("third", Record{ID: "third-1"})
			quiet(50*time.Second, s.first, s.second)
			s.first.say(tellPeersOf("other"))
			return s.first
		}, []string{"other-1"}},
		{"it is there before the node says so, by a charge", func(s *site) *line {
			s.first.say(tellPeersOf())
			s.r.Pass("other", recordOfOther(1))
			s.first.say(tellReplicas(tellReplica(":8000", 7)), tellCharges(&feedpb.Charges{Instance: "other", Made: []*feedpb.Charge{tellMade(":8000", 1)}}))
			return s.first
		}, []string{"other-1"}},
		{"it is gone for good", func(s *site) *line {
			s.first.say(tellPeersOf())
			s.r.Pass("other", recordOfOther(1))
			quiet(keepFor+keepLook, s.first, s.second)
			s.first.say(tellPeersOf("other"))
			return s.first
		}, nil},
		{"the node is lost, and the other one has the router", func(s *site) *line {
			s.r.Pass("other", recordOfOther(1))
			s.first.recordsSent()
			s.second.say(tellPeersOf("other"))
			s.first.say(context.Canceled)
			return s.second
		}, []string{"other-1"}},
		{"the node is lost, and comes back", func(s *site) *line {
			s.r.Pass("other", recordOfOther(1))
			s.first.recordsSent()
			s.first.say(context.Canceled)
			s.first = s.answer()
			s.first.say(tellPeersOf("other"))
			return s.first
		}, []string{"other-1"}},
		{"the node is lost long after", func(s *site) *line {
			s.r.Pass("other", recordOfOther(1))
			s.first.recordsSent()
			quiet(2*partSlack, s.first, s.second)
			s.first.say(context.Canceled)
			s.first = s.answer()
			s.first.say(tellPeersOf("other"))
			return s.first
		}, nil},
		{"the node is lost before the record is sent", func(s *site) *line {
			s.r.Pass("other", recordOfOther(1))
			s.first.say(context.Canceled)
			s.first = s.answer()
			s.first.say(tellPeersOf("other"))
			return s.first
		}, []string{"other-1"}},
		{"no node is connected", func(s *site) *line {
			for _, addr := range []string{node1().Addr, second} {
				s.refuse(addr, context.Canceled)
			}
			s.first.say(context.Canceled)
			s.second.say(context.Canceled)
			s.r.Pass("other", recordOfOther(1))
			time.Sleep(30 * time.Second)
			s.refuse(node1().Addr, nil)
			s.first = s.answer()
			s.first.say(tellPeersOf("other"))
			return s.first
		}, []string{"other-1"}},
		{"the other router hangs, and comes back", func(s *site) *line {
			s.r.Pass("other", recordOfOther(1))
			s.first.recordsSent()
			quiet(15*time.Second, s.first, s.second)
			s.first.say(tellPeersOf())
			quiet(10*time.Second, s.first, s.second)
			s.first.say(tellPeersOf("other"))
			return s.first
		}, []string{"other-1"}},
		{"the other router is gone, as its charges say, and is back", func(s *site) *line {
			s.r.Pass("other", recordOfOther(1))
			s.first.recordsSent()
			s.first.say(tellCharges(&feedpb.Charges{Instance: "other", Gone: true}), tellPeersOf("other"))
			return s.first
		}, []string{"other-1"}},
		{"another router is gone", func(s *site) *line {
			s.first.say(tellPeersOf("other", "third"))
			s.r.Pass("other", recordOfOther(1))
			s.first.recordsSent()
			s.first.say(tellPeersOf("other"), tellPeersOf("other", "third"))
			return s.first
		}, nil},
		{"the other router comes and goes for ever", func(s *site) *line {
			s.r.Pass("other", recordOfOther(1))
			for range 5 {
				quiet(15*time.Second, s.first, s.second)
				s.first.say(tellPeersOf(), tellPeersOf("other"))
			}
			s.first.recordsSent()
			quiet(15*time.Second, s.first, s.second)
			s.first.say(tellPeersOf(), tellPeersOf("other"))
			return s.first
		}, nil},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := &site{routerSite: newRouterSite(t, node1()), t: t}
				s.first = s.answer()
				s.r.Set([]Address{node1(), {Addr: second}})
				s.second = s.answer()
				s.first.say(tellPeersOf("other"))
				s.second.say(tellPeersOf())
				if got := tt.do(s).recordsSent(); !slices.Equal(got, tt.want) {
					t.Errorf("sent are %q, want %q", got, tt.want)
				}
			})
		})
	}
}

// TestKeptRecordsAreBounded forgets the oldest of too many, and says how many were given up and why.
func TestKeptRecordsAreBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		l := s.answer()
		l.say(tellAlive())
		m := s.r.o.Metrics
		check := func(kept, full, expired float64) {
			t.Helper()
			got := []float64{testutil.ToFloat64(m.kept), testutil.ToFloat64(m.givenUpRecords.WithLabelValues(givenUpFull)), testutil.ToFloat64(m.givenUpRecords.WithLabelValues(givenUpExpired))}
			if want := []float64{kept, full, expired}; !slices.Equal(got, want) {
				t.Errorf("kept, given up as full and as expired: %v, want %v", got, want)
			}
		}
		for i := range maxKept + 500 {
			if got := s.r.Pass("other", recordOfOther(i)); got != Kept {
				t.Fatalf("record %d: %d", i, got)
			}
		}
		check(maxKept, 500, 0)
		l.say(tellPeersOf("other"))
		var sent []string
		for more := true; more; {
			ids := l.recordsSent()
			sent, more = append(sent, ids...), len(ids) > 0
		}
		if len(sent) != maxKept || sent[0] != "other-500" || !slices.Contains(sent, fmt.Sprint("other-", maxKept+499)) {
			t.Errorf("%d were sent, the first is %s", len(sent), sent[0])
		}
		check(0, 500, 0)
		s.r.Pass("third", Record{ID: "third-1"})
		quiet(keepFor+keepLook, l)
		check(0, 500, 1)
		if n := len(s.r.mail.sent.list); n != 0 || s.r.mail.sent.bytes != 0 || s.r.mail.kept.bytes != 0 {
			t.Errorf("%d records of %d bytes that were sent are remembered, and %d bytes of kept ones", n, s.r.mail.sent.bytes, s.r.mail.kept.bytes)
		}
	})
}

// TestLettersAreBoundedInBytes counts texts, too.
func TestLettersAreBoundedInBytes(t *testing.T) {
	var s letters
	dropped := 0
	for range 100 {
		dropped += s.add(&letter{size: maxKeptBytes / 10})
	}
	if dropped != 90 || len(s.list) != 10 || s.bytes > maxKeptBytes {
		t.Errorf("%d dropped, %d left of %d bytes", dropped, len(s.list), s.bytes)
	}
}
