package envoy

import (
	"fmt"
	"regexp"
	"strconv"
)

// Layout is the shape of routes and clusters; the package documentation explains both.
type Layout string

// The layouts. Auto, like an empty one, stands for what [LayoutFor] tells of the release.
const (
	LayoutAuto      Layout = "auto"
	LayoutComposite Layout = "composite"
	LayoutCompat    Layout = "compat"
	LayoutOverride  Layout = "override_host"
)

// choose gives the layout to render.
func (o Options) choose() (Layout, error) {
	auto, err := LayoutFor(o.Version)
	if err != nil {
		return "", err
	}
	switch o.Layout {
	case "", LayoutAuto:
		return auto, nil
	case LayoutCompat, LayoutOverride:
		return o.Layout, nil
	case LayoutComposite:
		if auto != LayoutComposite && o.Version != "" {
			return "", &OptionError{"layout", string(o.Layout), fmt.Sprintf("%s, %s or %s for Envoy %s: before 1.40 a composite cluster answers 503 "+
				"when there is no decision", LayoutAuto, LayoutCompat, LayoutOverride, o.Version)}
		}
		return o.Layout, nil
	}
	return "", &OptionError{"layout", string(o.Layout), fmt.Sprintf("%s, %s, %s or %s", LayoutAuto, LayoutComposite, LayoutCompat, LayoutOverride)}
}

// Minor releases of Envoy 1 at which layouts begin. 1.36 refuses a composite cluster; 1.37 to 1.39 answer 503 from one whose first
// member finds no host, which 1.40 skips.
const (
	minorCompat    = 37
	minorComposite = 40
	minorServed    = 40 // of the override_host policy's selected_host_key; not known to 1.37
)

// atLeast reports whether the release is known to be 1.minor or newer.
func (o Options) atLeast(minor int) bool {
	major, m, ok := parseVersion(o.Version)
	return ok && (major > 1 || major == 1 && m >= minor)
}

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
		return "", &OptionError{"version", version, "1.37 or newer: older releases refuse the composite cluster of the ordinary layouts, and are not tested with override_host"}
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
