package feed

import (
	"errors"
	"fmt"
)

// The versions of the protocol that this release speaks. Fields that may be ignored do not raise them.
const (
	Protocol       uint32 = 1 // the newest
	OldestProtocol uint32 = 1
)

// versions are those that one side speaks.
type versions struct {
	oldest, newest uint32
	release        string
}

// spoken are the versions of this release.
func spoken(release string) versions {
	return versions{oldest: OldestProtocol, newest: Protocol, release: release}
}

func (v versions) speaks(version uint32) bool { return v.oldest <= version && version <= v.newest }

func (v versions) String() string {
	span := fmt.Sprint(v.newest)
	if v.oldest != v.newest {
		span = fmt.Sprintf("%d to %d", v.oldest, v.newest)
	}
	if v.release == "" {
		return span
	}
	return fmt.Sprintf("%s (release %s)", span, v.release)
}

// negotiate returns the newest version that both speak. The error says which side is to be upgraded.
func negotiate(node, router versions) (uint32, error) {
	if router.oldest == 0 {
		router.oldest = router.newest
	}
	if router.newest == 0 || router.oldest > router.newest {
		return 0, errors.New("the router names no version of the protocol")
	}
	version := min(node.newest, router.newest)
	if node.speaks(version) && router.speaks(version) {
		return version, nil
	}
	behind := "router"
	if node.newest < router.oldest {
		behind = "node"
	}
	return 0, fmt.Errorf("the node speaks protocol %s, the router %s: upgrade the %s", node, router, behind)
}
