package pool

import (
	"net/http"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

func TestTold(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFleet()
		f.do(func() {
			f.bodies["10.0.0.1:1"] = `{"data": [{"id": "llama", "root": "/m", "max_model_len": 4096}, {"id": "alias", "root": "/m"}, {"id": "other", "root": "/o"},
				{"id": "law", "root": "/loras/law", "parent": "alias"}, {"id": "art", "parent": "llama"}]}`
			f.status["10.0.0.2:1"] = http.StatusUnauthorized
		})
		s, stop := f.start(t, Options{Pools: []Config{{Name: "chat", Models: []string{"llama"}, Endpoints: []string{"10.0.0.1:1", "10.0.0.2:1"}, AdaptersRefresh: 10 * time.Second}}})
		defer stop()
		pass(time.Second)
		got, ok := s.Pools()[0].Told(0)
		want := Told{Models: []string{"alias", "llama"}, Adapters: []Adapter{{Name: "art", Parent: "llama"}, {"law", "/loras/law", "alias"}}, ModelLen: 4096}
		if diff := cmp.Diff(want, got); diff != "" || !ok {
			t.Errorf("told %v (-want +got):\n%s", ok, diff)
		}
		if got, ok := s.Pools()[0].Told(1); ok || !cmp.Equal(got, Told{}) {
			t.Errorf("who says nothing tells %+v", got)
		}
		if e := s.Endpoint("chat", "10.0.0.2:1"); e == nil || e.Addr() != "10.0.0.2:1" {
			t.Errorf("endpoint %v", e)
		}
		if s.Endpoint("chat", "10.0.0.3:1") != nil || s.Endpoint("code", "10.0.0.1:1") != nil {
			t.Error("an endpoint that there is not is found")
		}

		// What an engine told in an earlier life does not count.
		f.do(func() { f.down["10.0.0.1:1"] = true })
		pass(10 * time.Second)
		if _, ok := s.Pools()[0].Told(0); ok {
			t.Error("an engine that is down tells something")
		}
	})
}
