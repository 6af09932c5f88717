package feed

import (
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/kvsteer/kvsteer/internal/feed/feedpb"
)

// TestReleasesAreSaidAgain: a release that a router may not have heard, because the node had lost it or was lost itself, is said again when both are
// there. A router that was never there has nothing to be released.
func TestReleasesAreSaidAgain(t *testing.T) {
	peers := func(instances ...string) *feedpb.NodeMessage {
		return &feedpb.NodeMessage{Message: &feedpb.NodeMessage_Peers{Peers: &feedpb.Peers{Instances: instances}}}
	}
	tests := []struct {
		name  string
		after time.Duration // from the release to the loss
		lose  bool          // the stream
		met   [][]string    // peers, one message after the other
		again bool
	}{
		{"the node was lost, and the other router is back", 0, true, [][]string{{"other"}}, true},
		{"the node was lost, and the other router is back later", 0, true, [][]string{{}, {"third"}, {"other", "third"}}, true},
		{"the node was lost long after", time.Minute, true, [][]string{{"other"}}, false},
		{"the node was lost, and another life of the router comes", 0, true, [][]string{{"third"}}, false},
		{"the node had lost the other router", 0, false, [][]string{{}, {"other"}}, true},
		{"the other router had hung", 18 * time.Second, false, [][]string{{}, {"other"}}, true},
		{"the node had lost the other router long after", 25 * time.Second, false, [][]string{{}, {"other"}}, false},
		{"the other router stays", 0, false, [][]string{{"other"}, {"other", "third"}}, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				s := newRouterSite(t, node1())
				l := s.answer()
				l.say(copyOf(1)...)
				l.say(peers("other"))
				<-l.up // the hello
				sent := func() (released []uint64) {
					time.Sleep(2 * batchDelay)
					synctest.Wait()
					for {
						select {
						case m := <-l.up:
							for _, r := range m.GetCharges().GetReleased() {
								released = append(released, r.GetNumber())
							}
						default:
							return released
						}
					}
				}
				s.r.Charged(Charge{Pool: "chat", Endpoint: "10.0.0.1:8000", Number: 7, Prompt: 100})
				sent()
				s.r.Released("chat", 7)
				if got := sent(); !slices.Equal(got, []uint64{7}) {
					t.Fatalf("released %d", got)
				}
				for left := tt.after; left > 0; left -= time.Second {
					time.Sleep(min(left, time.Second))
					l.say(&feedpb.NodeMessage{Message: &feedpb.NodeMessage_Alive{Alive: &feedpb.Alive{}}})
				}
				if tt.lose {
					l.say(errInvalid)
					l = s.answer()
					l.say(copyOf(1)...)
					if got := sent(); len(got) > 0 {
						t.Errorf("before the other router is there: released %d", got)
					}
				}
				for _, m := range tt.met {
					l.say(peers(m...))
				}
				var want []uint64
				if tt.again {
					want = []uint64{7}
				}
				if got := sent(); !slices.Equal(got, want) {
					t.Errorf("released %d, want %d", got, want)
				}
			})
		})
	}
}
