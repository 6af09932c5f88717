#!/usr/bin/env bash
# Runs the vLLM of one endpoint of kvsteer.yaml in the foreground, after setup.sh has set PATH and MODEL:
#
#   examples/vllm-cpu/engine.sh IP:PORT [FLAG…]
#
# It is started with what kvsteer engine-args prints and, behind that, what a tiny model on a CPU needs. Flags given here come last.
# Settings: KVSTEER (default: bin/kvsteer) and CONFIG (default: kvsteer.yaml beside this script).
set -euo pipefail

here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ $# -ge 1 ] || { echo "usage: $0 IP:PORT [FLAG…]" >&2; exit 2; }
command=$("${KVSTEER:-$here/../../bin/kvsteer}" engine-args --config "${CONFIG:-$here/kvsteer.yaml}" "$1" | grep -v '^#')
shift

# Nothing is fetched and nothing reported; one thread per engine, since all of them share the machine; development mode has the
# call that empties the prefix cache.
export HF_HUB_OFFLINE=1 VLLM_NO_USAGE_STATS=1 DO_NOT_TRACK=1 VLLM_CPU_KVCACHE_SPACE=1 VLLM_SERVER_DEV_MODE=1 VLLM_CPU_OMP_THREADS_BIND=nobind
export OMP_NUM_THREADS="${OMP_NUM_THREADS:-1}"

set -- --load-format dummy --dtype float32 --enforce-eager --max-model-len 2048 --block-size 32 --num-gpu-blocks-override 2048 \
    --enable-lora --max-lora-rank 8 --lora-modules "tiny-adapter=$MODEL/lora/adapter-a" "$@"
eval "exec env $command \"\$@\""
