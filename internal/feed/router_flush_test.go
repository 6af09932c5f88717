package feed

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/prometheus/client_golang/prometheus/testutil"
)

// TestFlush: a router that stops has nodes read all that it has to say, and ends its streams for good.
func TestFlush(t *testing.T) {
	const second = "10.0.0.2:9010"
	tests := []struct {
		name string
		do   func(s *routerSite)
		hang bool // the node does not read to the end
		sent int
		most time.Duration
	}{
		{"nothing to say", func(*routerSite) {}, false, 0, batchDelay},
		{"a record and a charge", func(s *routerSite) {
			s.r.Pass("other", recordOfOther(1))
			s.r.Charged(charge("10.0.0.1:8000", 1))
		}, false, 2, 3 * batchDelay},
		{"more than goes into one message", func(s *routerSite) {
			for i := range uint64(900) {
				s.r.Charged(charge("10.0.0.1:8000", 1+i))
			}
		}, false, 4, 3 * batchDelay},
		{"a node that hangs", func(s *routerSite) { s.r.Pass("other", recordOfOther(1)) }, true, 1, time.Second},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRouterSite(t, node1())
				l := s.answer()
				l.hangs = tt.hang
				s.refuse(second, context.Canceled) // what is not connected is not waited for
				s.r.Set([]Address{node1(), {Addr: second}})
				l.say(copyOf(1)...)
				l.say(tellPeersOf("other"))
				tt.do(s)
				began := time.Now()
				ctx, cancel := context.WithTimeout(t.Context(), time.Second)
				defer cancel()
				s.r.Flush(ctx)
				if took := time.Since(began); took > tt.most || tt.hang && took != tt.most {
					t.Errorf("it takes %v", took)
				}
				if got := len(l.sent()); got != tt.sent {
					t.Errorf("%d messages are sent, want %d", got, tt.sent)
				}
				s.refuse(second, nil)
				time.Sleep(time.Second)
				if len(s.calls) > 0 {
					t.Error("it connects again")
				}
				if got := testutil.ToFloat64(s.r.o.Metrics.ended.WithLabelValues(node1().Addr, string(endStopped))); (got == 1) == tt.hang {
					t.Errorf("%v streams are stopped", got)
				}
			})
		})
	}
}
