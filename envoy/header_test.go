package envoy

import "testing"

// TestDecisionHeader asks for the header, which no answer carries otherwise.
func TestDecisionHeader(t *testing.T) {
	onEach(t, func(t *testing.T, s setup) {
		site := newSite(t)
		o := site.onePool()
		plain := startEnvoy(t, s, o)
		o.DecisionHeader = true
		shown := startEnvoy(t, s, o)
		site.router.decide(site.chat2.addr, "")
		decided := "id=r1-7; mode=on; rung=exact; reason=matched; endpoint=" + site.chat2.addr + "; matched=512; prompt=640"
		for p, want := range map[*proxy]string{plain: "", shown: decided} {
			if got := p.do(t, call{}).header.Get(HeaderDecision); got != want {
				t.Errorf("header is %q, want %q", got, want)
			}
		}
		site.router.grpc.Stop()
		for p, want := range map[*proxy]string{plain: "", shown: "id=; mode=; rung=; reason=; endpoint=; matched=; prompt="} {
			if got := p.do(t, call{}).header.Get(HeaderDecision); got != want {
				t.Errorf("without a decision the header is %q, want %q", got, want)
			}
		}
	})
}
