package subscriber

import (
	"bytes"
	"fmt"
	"slices"
	"strings"
	"time"
)

// Medium is a kind of memory in which an engine keeps copies of blocks.
type Medium uint8

// The media, the nearest to the engine's compute first.
const (
	MediumNone   Medium = iota // none: copies in it do not count
	MediumDevice               // the engine's own KV cache
	MediumHost                 // memory of the engine's host
	MediumDisk                 // slower than memory, but of the engine alone
)

// String names the medium.
func (m Medium) String() string {
	switch m {
	case MediumDevice:
		return "device"
	case MediumHost:
		return "host"
	case MediumDisk:
		return "disk"
	}
	return "none"
}

// ParseMedium reads a tier as configurations name it: as String does, or
// ignore for MediumNone.
func ParseMedium(text string) (Medium, error) {
	switch text {
	case "device":
		return MediumDevice, nil
	case "host":
		return MediumHost, nil
	case "disk":
		return MediumDisk, nil
	case "ignore":
		return MediumNone, nil
	}
	return MediumNone, fmt.Errorf("%q is none of device, host, disk and ignore", text)
}

// MediumRule says what copies in a medium of some name are worth.
type MediumRule struct {
	Medium Medium
	// Lifetime is how long a copy counts after the last event that named it. 0 = until the engine says that it removed
	// it; media for which engines never say so need one, or would be credited for ever.
	Lifetime time.Duration
}

// MaxMediumName bounds the name of a medium, in bytes. Events with a longer one are not mirrored.
const MaxMediumName = maxPlace

// defaultMedia are the names that engines use, in lower case. The others are
// ignored: connectors whose copies are shared between engines, hashed in
// their own way, or never removed by an event (storage, external, remote).
//
//	vLLM              GPU; CPU of its offloading connector, with removals
//	SGLang            GPU; CPU_PINNED with removals; DISK, whose removals are not known to be published
//	TensorRT-LLM      as vLLM
func defaultMedia() map[string]MediumRule {
	return map[string]MediumRule{
		"":           {Medium: MediumDevice},
		"gpu":        {Medium: MediumDevice},
		"device":     {Medium: MediumDevice},
		"cpu":        {Medium: MediumHost},
		"cpu_pinned": {Medium: MediumHost},
		"host":       {Medium: MediumHost},
		"disk":       {Medium: MediumDisk, Lifetime: 10 * time.Minute},
	}
}

// mediaSet finds the rule of an event's medium by its name in any case.
type mediaSet []mediaName

type mediaName struct {
	name []byte // lower case
	rule MediumRule
}

// newMediaSet puts rules, by name in lower case, over the defaults.
func newMediaSet(rules map[string]MediumRule) mediaSet {
	all := defaultMedia()
	for name, rule := range rules {
		all[name] = rule
	}
	var s mediaSet
	for name, rule := range all {
		if rule.Medium != MediumNone {
			s = append(s, mediaName{[]byte(name), rule})
		}
	}
	// The device first: nearly every event is its.
	slices.SortFunc(s, func(a, b mediaName) int {
		if a.rule.Medium != b.rule.Medium {
			return int(a.rule.Medium) - int(b.rule.Medium)
		}
		return bytes.Compare(a.name, b.name)
	})
	return s
}

// of returns the rule of a medium; its Medium is MediumNone when the medium is
// ignored.
func (s mediaSet) of(name []byte) MediumRule {
	for i := range s {
		if len(s[i].name) == len(name) && bytes.EqualFold(s[i].name, name) {
			return s[i].rule
		}
	}
	return MediumRule{}
}

// lowerMedia checks rules and puts their names into lower case.
func lowerMedia(rules map[string]MediumRule) (map[string]MediumRule, error) {
	out := make(map[string]MediumRule, len(rules))
	for name, rule := range rules {
		lower := strings.ToLower(name)
		_, twice := out[lower]
		switch {
		case len(name) > MaxMediumName:
			return nil, fmt.Errorf("%.20q…: %d bytes, want at most %d", name, len(name), MaxMediumName)
		case twice:
			return nil, fmt.Errorf("%q: there twice, in different cases", lower)
		case rule.Medium > MediumDisk:
			return nil, fmt.Errorf("%q: unknown medium %d", name, rule.Medium)
		case rule.Lifetime < 0:
			return nil, fmt.Errorf("%q: lifetime %v is negative", name, rule.Lifetime)
		case rule.Lifetime > 0 && (rule.Medium == MediumDevice || rule.Medium == MediumNone):
			return nil, fmt.Errorf("%q: a lifetime is for host and disk", name)
		}
		out[lower] = rule
	}
	return out, nil
}
