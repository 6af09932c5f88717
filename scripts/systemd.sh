#!/usr/bin/env bash
# Prints the path of systemd-analyze, fetching it when there is none.
#
#   scripts/systemd.sh          $SYSTEMD_ANALYZE, else systemd-analyze on PATH, else .systemd/systemd-analyze
#
# What is fetched are Debian's package systemd and the packages that it depends on, unpacked into .systemd/ without being installed, so
# root is not needed. No systemd has to run: units are only read.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "systemd: $*" >&2; exit 1; }
other="set SYSTEMD_ANALYZE to a systemd-analyze of release 250 or newer"

if [ -n "${SYSTEMD_ANALYZE:-}" ]; then
    [ -x "$SYSTEMD_ANALYZE" ] && [ ! -d "$SYSTEMD_ANALYZE" ] || die "SYSTEMD_ANALYZE=$SYSTEMD_ANALYZE is not an executable file"
    echo "$SYSTEMD_ANALYZE"
    exit 0
fi
if command -v systemd-analyze >/dev/null 2>&1; then
    command -v systemd-analyze
    exit 0
fi

dir=$root/.systemd
if [ ! -x "$dir/systemd-analyze" ]; then
    for tool in apt-get apt-cache dpkg; do
        command -v "$tool" >/dev/null 2>&1 || die "no systemd-analyze found, and no $tool to fetch Debian's package systemd with: $other"
    done
    echo "systemd: fetching Debian's package systemd into .systemd" >&2
    mkdir -p "$dir"
    tmp=$(mktemp -d "$dir/tmp.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    trap 'exit 130' INT TERM
    own=()
    # The packages that systemd and its own library need, one alternative of each, but for the C library, which every system has and which must fit
    # its loader. As root, apt would fetch as another user, who cannot write here.
    fetch() {
        local packages
        packages=$(apt-cache "${own[@]}" -o APT::Cache::ShowOnlyFirstOr=1 depends --no-recommends --no-suggests --no-conflicts --no-breaks \
            --no-replaces --no-enhances systemd libsystemd-shared | sed -n 's/^ *\(Pre\)\{0,1\}Depends: \([a-z0-9][a-z0-9.+-]*\)$/\2/p' | sed '/^libc6$/d' | sort -u) &&
            [ -n "$packages" ] &&
            # shellcheck disable=SC2086 # names of packages have no spaces
            (cd "$tmp" && apt-get -q -o APT::Sandbox::User=root "${own[@]}" download systemd $packages)
    }
    if ! fetch >"$tmp/log" 2>&1; then
        # Package lists are missing or name a release that is gone: fetch lists of our own, which needs no root.
        mkdir -p "$tmp/lists/partial" "$tmp/cache/archives/partial"
        own=(-o Dir::State::lists="$tmp/lists" -o Dir::Cache="$tmp/cache")
        apt-get -q -o APT::Sandbox::User=root "${own[@]}" update >"$tmp/update" 2>&1 ||
            { cat "$tmp/log" "$tmp/update" >&2; die "apt-get can fetch neither the package systemd nor package lists: check the network, or $other"; }
        fetch >"$tmp/log" 2>&1 || { cat "$tmp/log" >&2; die "apt-get cannot fetch the package systemd: $other"; }
    fi
    for package in "$tmp"/*.deb; do
        dpkg -x "$package" "$tmp/package" || die "dpkg cannot unpack $(basename "$package"): $other"
    done
    [ -x "$tmp/package/usr/bin/systemd-analyze" ] || [ -x "$tmp/package/bin/systemd-analyze" ] || die "Debian's package holds no systemd-analyze: $other"
    rm -rf "$dir/package"
    mv "$tmp/package" "$dir/package"
    # Its libraries and the units of its own stand where it does not look for them.
    cat >"$dir/systemd-analyze.part" <<'WRAPPER'
#!/usr/bin/env bash
set -euo pipefail
package=$(cd "$(dirname "${BASH_SOURCE[0]}")/package" && pwd)
libraries=$(find "$package" -name '*.so*' -printf '%h\n' | sort -u | paste -s -d :)
units=$(find "$package" -type d -path '*/lib/systemd/system' | paste -s -d :)
binary=$package/usr/bin/systemd-analyze
[ -x "$binary" ] || binary=$package/bin/systemd-analyze
LD_LIBRARY_PATH=$libraries SYSTEMD_UNIT_PATH=${SYSTEMD_UNIT_PATH:-$units} exec "$binary" "$@"
WRAPPER
    chmod +x "$dir/systemd-analyze.part"
    mv "$dir/systemd-analyze.part" "$dir/systemd-analyze"
fi
"$dir/systemd-analyze" --version >/dev/null 2>&1 || die "$dir/systemd-analyze does not run on this machine: $other"
echo "$dir/systemd-analyze"
