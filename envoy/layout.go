package envoy

import (
	"regexp"
	"strconv"
)

// Layout is the shape of routes and clusters; the package documentation explains both.
type Layout string

// The two layouts.
const (
	LayoutComposite Layout = "composite"
	LayoutCompat    Layout = "compat"
)

// Minor releases of Envoy 1 at which layouts begin. 1.36 refuses a composite cluster; 1.37 to 1.39 answer 503 from one whose first
// member finds no host, which 1.40 skips.
const (
	minorCompat    = 37
	minorComposite = 40
)

// LayoutFor tells the layout for an Envoy release, given as "1.40.0", "v1.40" or the line that `envoy --version` prints. Text
// without a release gives an error, as does one older than 1.37; empty text gives LayoutCompat.
func LayoutFor(version string) (Layout, error) {
	if version == "" {
		return LayoutCompat, nil
	}
	major, minor, ok := parseVersion(version)
	switch {
	case !ok:
		return "", &OptionError{"version", version, "a release such as 1.40.0, the output of envoy --version, or nothing when it is not known"}
	case major == 1 && minor < minorCompat || major < 1:
		return "", &OptionError{"version", version, "1.37 or newer: older releases refuse the composite cluster that both layouts need"}
	case major == 1 && minor < minorComposite:
		return LayoutCompat, nil
	}
	return LayoutComposite, nil
}

// parseVersion finds major.minor. `envoy --version` prints the path, "version:", then revision/1.40.0/Clean/RELEASE/BoringSSL. A
// development build carries the number of the release to come and may lack its features, so it counts as the one before.
func parseVersion(s string) (major, minor int, ok bool) {
	for _, form := range []string{`^\s*v?(\d{1,3})\.(\d{1,3})(?:\.\d{1,3})?(-dev)?[^/\s]*\s*$`, `\bversion: [^/\s]*/(\d{1,3})\.(\d{1,3})\.\d{1,3}(-dev)?[^/\s]*/`} {
		if m := regexp.MustCompile(form).FindStringSubmatch(s); m != nil {
			major, _ = strconv.Atoi(m[1])
			minor, _ = strconv.Atoi(m[2])
			if m[3] != "" && minor > 0 {
				minor--
			}
			return major, minor, true
		}
	}
	return 0, 0, false
}
