package router

import (
	"testing"

	"github.com/kvsteer/kvsteer/internal/blockhash"
	"github.com/kvsteer/kvsteer/subscriber"
)

// TestTierWeights: what an endpoint holds outside of its device counts for as much as the pool says of the coldest medium that the engine uses.
func TestTierWeights(t *testing.T) {
	const held = 8 // blocks that the first endpoint holds outside of its device
	some := map[string]TierWeights{"chat": {Host: 0.3, Disk: 0.9}}
	for _, tt := range []struct {
		name    string
		coldest subscriber.Medium
		tiers   map[string]TierWeights
		worth   int // device blocks, rounded down, that the second endpoint must exceed to be chosen
	}{
		{"host", subscriber.MediumHost, nil, 6},
		{"disk", subscriber.MediumDisk, nil, 3}, // 4 would be a tie
		{"not said", subscriber.MediumNone, nil, 6},
		{"host, as configured", subscriber.MediumHost, some, 2},
		{"disk, as configured", subscriber.MediumDisk, some, 7},
		{"nothing, as configured", subscriber.MediumDisk, map[string]TierWeights{"chat": {}}, -1},
		{"another pool's", subscriber.MediumDisk, map[string]TierWeights{"code": {}}, 3},
	} {
		t.Run(tt.name, func(t *testing.T) {
			for _, device := range []int{tt.worth, tt.worth + 2} {
				if device < 0 {
					continue
				}
				w := newWorld(t, Options{Tiers: tt.tiers, NearTie: -1}, chat(2))
				tokens := make([]uint32, (held+2)*block)
				keys := blockhash.AppendKeys(nil, blockhash.Namespace{Pool: "chat", BlockSize: block}.Root(), tokens, block)
				a, b := w.connect(address(0), block), w.connect(address(1), block)
				a.Store(subscriber.Any, keys[:held])
				a.Describe(subscriber.Description{Connected: true, BlockSize: block, Coldest: tt.coldest})
				b.Store(subscriber.Any, keys[:device])
				b.Store(subscriber.Device, keys[:device])
				want := address(0)
				if device > tt.worth {
					want = address(1)
				}
				if got := w.r.Decide(t.Context(), given("llama", tokens)); got.Endpoint != want {
					t.Errorf("with %d blocks on the other's device: %+v, want %s", device, got, want)
				}
			}
		})
	}
}
