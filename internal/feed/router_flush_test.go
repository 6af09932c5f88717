package feed

import (
	"context"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

func TestFlush(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := newRouterSite(t, node1())
		flush := func(most time.Duration) time.Duration {
			began := time.Now()
			ctx, cancel := context.WithTimeout(t.Context(), most)
			defer cancel()
			s.r.Flush(ctx)
			return time.Since(began)
		}
		l := s.answer()
		l.say(copyOf(1)...)
		l.say(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Peers{Peers: &feedpb.Peers{Instances: []string{"other"}}}})
		<-l.up // the hello
		if took := flush(time.Second); took > flushed {
			t.Errorf("with nothing to send it takes %v", took)
		}
		if s.r.Pass("other", Record{ID: "other-1"}) != Passed {
			t.Fatal("there is no way to the other router")
		}
		flush(time.Second)
		select {
		case m := <-l.up:
			if m.GetRecord().GetId() != "other-1" {
				t.Errorf("the router sends %v", m)
			}
		default:
			t.Error("the record was not sent")
		}
		l.say(context.Canceled) // the stream is lost, and comes back to nobody
		s.refuse("10.0.0.1:9010", context.Canceled)
		s.r.Charged(Charge{Pool: "chat", Endpoint: "10.0.0.1:8000", Number: 1, Prompt: 1})
		if took := flush(time.Second); took > flushed {
			t.Errorf("for a node that is not connected it waits %v", took)
		}
	})
}
