package main

import (
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/router"
	"github.com/kvsteer/kvsteer/subscriber"
)

// TestReading holds that what a pool says of media and adapters reaches its subscribers whole, and that pools that say the same compare as equal.
func TestReading(t *testing.T) {
	cfg, err := config.Parse("a", []byte(`pools:
- {name: chat, models: [tiny], endpoints: [{address: "10.0.0.1:8000"}],
   tiers: {media: [{name: S3, tier: disk, lifetime: 90s}, {name: cpu, tier: ignore}], host_weight: 0.7, demote: 5m}, adapter_ids: [{id: 3, name: sql}]}
- {name: code, models: [big], endpoints: [{address: "10.0.0.2:8000"}]}
`))
	if err != nil {
		t.Fatal(err)
	}
	got := make([]subscriber.Options, len(cfg.Pools))
	for i := range cfg.Pools {
		if err := readingOf(&cfg.Pools[i]).enter(&got[i]); err != nil {
			t.Fatal(err)
		}
	}
	want := []subscriber.Options{{
		Media: map[string]subscriber.MediumRule{
			"S3": {Medium: subscriber.MediumDisk, Lifetime: 90 * time.Second}, "cpu": {},
		},
		Adapters: map[int64]string{3: "sql"}, Demote: 5 * time.Minute,
	}, {Media: map[string]subscriber.MediumRule{}, Adapters: map[int64]string{}}}
	if d := cmp.Diff(want, got); d != "" {
		t.Errorf("options (-want +got):\n%s", d)
	}
	other := cfg.Pools[0]
	other.Tiers.Media = append([]config.Medium(nil), other.Tiers.Media...)
	if chat := readingOf(&cfg.Pools[0]); chat != readingOf(&other) || chat == readingOf(&cfg.Pools[1]) {
		t.Error("equal readings differ, or different ones are equal")
	}
	weights := map[string]router.TierWeights{"chat": {Host: 0.7, Disk: 0.5}, "code": {Host: 0.8, Disk: 0.5}}
	if d := cmp.Diff(weights, tierWeights(cfg)); d != "" {
		t.Errorf("weights (-want +got):\n%s", d)
	}
}
