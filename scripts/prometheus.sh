#!/usr/bin/env bash
# Prints the folder that holds the binaries prometheus and promtool, fetching them when there are none.
#
#   scripts/prometheus.sh       $PROMETHEUS (that folder, or the path of a prometheus binary), else both on PATH, else
#                               .prometheus/usr/bin
#
# What is fetched is Debian's package prometheus, unpacked into .prometheus/ without being installed, so root is not needed.
set -euo pipefail

root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "prometheus: $*" >&2; exit 1; }
both() { [ -x "$1/prometheus" ] && [ ! -d "$1/prometheus" ] && [ -x "$1/promtool" ]; }
other="set PROMETHEUS to a folder with the binaries prometheus and promtool (https://prometheus.io/download)"

if [ -n "${PROMETHEUS:-}" ]; then
    dir=$PROMETHEUS
    [ -d "$dir" ] || dir=$(dirname "$dir")
    both "$dir" || die "PROMETHEUS=$PROMETHEUS is neither a folder with prometheus and promtool nor the path of a prometheus beside its promtool"
    (cd "$dir" && pwd)
    exit 0
fi
if command -v prometheus >/dev/null 2>&1; then
    dir=$(dirname "$(command -v prometheus)")
    if both "$dir"; then
        echo "$dir"
        exit 0
    fi
fi

dir=$root/.prometheus/usr/bin
if ! both "$dir"; then
    for tool in apt-get dpkg; do
        command -v "$tool" >/dev/null 2>&1 || die "no prometheus and promtool found, and no $tool to fetch Debian's package with: $other"
    done
    echo "prometheus: fetching Debian's package prometheus into .prometheus" >&2
    mkdir -p "$root/.prometheus"
    tmp=$(mktemp -d "$root/.prometheus/tmp.XXXXXX")
    trap 'rm -rf "$tmp"' EXIT
    trap 'exit 130' INT TERM
    # As root, apt would fetch as another user, who cannot write here.
    download() { (cd "$tmp" && apt-get -q -o APT::Sandbox::User=root "$@" download prometheus) >"$tmp/log" 2>&1; }
    if ! download; then
        # Package lists are missing or name a release that is gone: fetch lists of our own, which needs no root.
        mkdir -p "$tmp/lists/partial" "$tmp/cache/archives/partial"
        own=(-o Dir::State::lists="$tmp/lists" -o Dir::Cache="$tmp/cache")
        apt-get -q -o APT::Sandbox::User=root "${own[@]}" update >"$tmp/update" 2>&1 ||
            { cat "$tmp/log" "$tmp/update" >&2; die "apt-get can fetch neither the package prometheus nor package lists: check the network, or $other"; }
        download "${own[@]}" || { cat "$tmp/log" >&2; die "apt-get cannot fetch the package prometheus: $other"; }
    fi
    dpkg -x "$tmp"/prometheus_*.deb "$tmp/package" || die "dpkg cannot unpack what was fetched: $other"
    both "$tmp/package/usr/bin" || die "Debian's package holds no prometheus and promtool: $other"
    rm -rf "$root/.prometheus/usr"
    mv "$tmp/package/usr" "$root/.prometheus/usr"
fi
for tool in prometheus promtool; do
    "$dir/$tool" --version >/dev/null 2>&1 || die "$dir/$tool does not run on this machine: $other"
done
echo "$dir"
