//go:build soak

package e2e

import (
	"testing"
	"time"
)

// TestSoakNodesBroken is TestNodesBroken for three minutes, with hangs of 20 s.
func TestSoakNodesBroken(t *testing.T) { breakNodes(t, 3*time.Minute, 20*time.Second, 2) }
