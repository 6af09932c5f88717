package main

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/kvsteer/kvsteer/internal/config"
	"github.com/kvsteer/kvsteer/internal/router"
	"github.com/kvsteer/kvsteer/subscriber"
)

// reading is how the events of a pool's engines are read, in a form that can be compared: lists as JSON.
type reading struct {
	media, adapters string
	demote          time.Duration
	hashSeed        string // "" = none
}

// readingOf takes it of a configuration.
func readingOf(p *config.Pool) reading {
	return newReading(p.Tiers.Media, p.Tiers.Demote, p.AdapterIDs, p.HashSeed)
}

func newReading(media []config.Medium, demote config.Duration, adapters []config.AdapterID, hashSeed string) reading {
	text := func(list any, length int) string {
		if length == 0 {
			return ""
		}
		b, err := json.Marshal(list)
		if err != nil {
			panic(err) // the lists hold texts and numbers only
		}
		return string(b)
	}
	return reading{text(media, len(media)), text(adapters, len(adapters)), demote.Std(), hashSeed}
}

// enter puts it into the options of a subscriber.
func (r reading) enter(o *subscriber.Options) error {
	var media []config.Medium
	var adapters []config.AdapterID
	for _, l := range []struct {
		text string
		list any
	}{{r.media, &media}, {r.adapters, &adapters}} {
		if l.text == "" {
			continue
		}
		if err := json.Unmarshal([]byte(l.text), l.list); err != nil {
			return fmt.Errorf("tiers: %w", err)
		}
	}
	o.Demote = r.demote
	if r.hashSeed != "" {
		o.HashSeed = &r.hashSeed
	}
	o.Media = make(map[string]subscriber.MediumRule, len(media))
	for _, m := range media {
		medium, err := subscriber.ParseMedium(m.Tier)
		if err != nil {
			return err
		}
		o.Media[m.Name] = subscriber.MediumRule{Medium: medium, Lifetime: m.Lifetime.Std()}
	}
	o.Adapters = make(map[int64]string, len(adapters))
	for _, a := range adapters {
		o.Adapters[int64(a.ID)] = a.Name
	}
	return nil
}

// tierWeights are what the router takes of the pools' tiers.
func tierWeights(cfg *config.Config) map[string]router.TierWeights {
	weights := make(map[string]router.TierWeights, len(cfg.Pools))
	for _, p := range cfg.Pools {
		weights[p.Name] = router.TierWeights{Host: p.Tiers.HostWeight, Disk: p.Tiers.DiskWeight}
	}
	return weights
}
