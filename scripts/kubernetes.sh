#!/usr/bin/env bash
# Prints the path of kubernetes-validate, which holds manifests to Kubernetes' own schemas, fetching it when there is none.
#
#   scripts/kubernetes.sh       $KUBERNETES_VALIDATE, else .kubernetes/bin/kubernetes-validate of the pinned release
#
# It comes from PyPI, into a virtual environment of its own, with the schemas of one release of Kubernetes.
set -euo pipefail

pinned=1.37.0
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
die() { echo "kubernetes: $*" >&2; exit 1; }

if [ -n "${KUBERNETES_VALIDATE:-}" ]; then
    [ -x "$KUBERNETES_VALIDATE" ] || die "KUBERNETES_VALIDATE=$KUBERNETES_VALIDATE is not an executable file: unset it to have release $pinned fetched"
    echo "$KUBERNETES_VALIDATE"
    exit 0
fi

dir=$root/.kubernetes
if [ "$("$dir/bin/kubernetes-validate" --version 2>/dev/null)" != "$pinned" ]; then
    command -v python3 >/dev/null 2>&1 || die "no python3 to fetch kubernetes-validate with: install python3 (with venv), or set KUBERNETES_VALIDATE to it"
    echo "kubernetes: fetching kubernetes-validate $pinned into .kubernetes" >&2
    rm -rf "$dir"
    mkdir -p "$dir"
    trap 'rm -rf "$dir"' EXIT
    trap 'exit 130' INT TERM
    # What the tools say is shown when they fail by themselves, not for a Ctrl-C. A virtual environment cannot be moved, so it is made in its place.
    run() { "$@" >"$dir/log" 2>&1 || { cat "$dir/log" >&2; return 1; }; }
    run python3 -m venv "$dir" ||
        die "python3 -m venv does not work (on Debian and Ubuntu: apt-get install python3-venv), or set KUBERNETES_VALIDATE to kubernetes-validate"
    run "$dir/bin/pip" install --quiet --disable-pip-version-check "kubernetes-validate==$pinned" ||
        die "kubernetes-validate $pinned cannot be installed with pip: check the network and pip's index settings, or set KUBERNETES_VALIDATE to it"
    # The schemas of all other releases are 100 MB.
    find "$dir"/lib*/python*/site-packages/kubernetes_validate/kubernetes-json-schema -mindepth 1 -maxdepth 1 ! -name "v$pinned-*" -exec rm -rf {} +
    trap - EXIT
fi
"$dir/bin/kubernetes-validate" --version >/dev/null 2>&1 || die "$dir/bin/kubernetes-validate does not run on this machine; set KUBERNETES_VALIDATE to one that does"
echo "$dir/bin/kubernetes-validate"
