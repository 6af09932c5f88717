package config

import (
	"fmt"
	"strings"
	"time"
)

// Tiers is what copies of blocks outside of an engine's own KV cache are worth.
type Tiers struct {
	Media      []Medium `yaml:"media" doc:"What the media named in events are, beside what is built in: gpu and device are the device; cpu, cpu_pinned and host are host; disk is disk, for 10m; all others are ignored."`
	HostWeight float64  `yaml:"host_weight" default:"0.8" doc:"Worth of a token held in host memory, in tokens on the device. Range: 0 to 1."`
	DiskWeight float64  `yaml:"disk_weight" default:"0.5" doc:"Worth of a token that is not on the device, for an engine whose events name a disk. Range: 0 to 1."`
	Demote     Duration `yaml:"demote" default:"0s" doc:"How long a block that leaves the device is taken to be in host memory: for engines with an offload tier that publishes nothing. 0s = it is gone. Range: 0s to 24h."`
}

// Medium is one medium by the name that events give it.
type Medium struct {
	Name     string   `yaml:"name" doc:"Name of a medium as events give it, in any case."`
	Tier     string   `yaml:"tier" doc:"device, host, disk or ignore."`
	Lifetime Duration `yaml:"lifetime" default:"0s" doc:"How long a copy there counts after it was announced, for media whose removals the engine does not publish; 0s = until its removal. Range: 0s to 24h."`
}

// AdapterID is the name of an adapter whose events have only a number.
type AdapterID struct {
	ID   int    `yaml:"id" doc:"lora_id in the engine's events. Range: 1 to 2147483647."`
	Name string `yaml:"name" doc:"The adapter's served name, as requests give it in \"model\"."`
}

// maxMediumName is the longest name of a medium that events may give, in bytes; subscriber.MaxMediumName.
const maxMediumName = 256

// maxMedia bounds the lists of media and of adapter ids.
const maxMedia, maxAdapterIDs = 64, 4096

func (d *decoder) tiers(path string, t *Tiers) {
	d.share(path+".host_weight", t.HostWeight)
	d.share(path+".disk_weight", t.DiskWeight)
	d.duration(path+".demote", t.Demote, 0, 24*time.Hour)
	if len(t.Media) > maxMedia {
		d.at(path+".media", "%d media, want at most %d", len(t.Media), maxMedia)
		return
	}
	seen := uniques{d: d}
	names := map[string]string{}
	for i := range t.Media {
		m, at := &t.Media[i], fmt.Sprintf("%s.media[%d]", path, i)
		if m.Name == "" || len(m.Name) > maxMediumName {
			d.at(at+".name", "%.20q is not a name of 1 to %d bytes", m.Name, maxMediumName)
		} else {
			seen.claim(names, at+".name", strings.ToLower(m.Name))
		}
		switch m.Tier {
		case "host", "disk":
		case "device", "ignore":
			if m.Lifetime != 0 {
				d.at(at+".lifetime", "%s: only copies in host and disk have one", m.Lifetime)
			}
		default:
			d.at(at+".tier", "%q is none of device, host, disk and ignore", m.Tier)
		}
		d.duration(at+".lifetime", m.Lifetime, 0, 24*time.Hour)
	}
}

func (d *decoder) adapterIDs(path string, ids []AdapterID) {
	if len(ids) > maxAdapterIDs {
		d.at(path, "%d ids, want at most %d", len(ids), maxAdapterIDs)
		return
	}
	seen := uniques{d: d}
	numbers := map[string]string{}
	for i, a := range ids {
		at := fmt.Sprintf("%s[%d]", path, i)
		d.number(at+".id", a.ID, 1, 1<<31-1) // engines number adapters from 1; 0 is what is left out
		seen.claim(numbers, at+".id", fmt.Sprint(a.ID))
		if a.Name == "" {
			d.at(at+".name", "a served name cannot be empty")
		}
	}
}

// share checks a number from 0 to 1.
func (d *decoder) share(path string, v float64) {
	if !(v >= 0 && v <= 1) { // NaN is neither
		d.at(path, "%v is not in the range 0 to 1", v)
	}
}
