#!/usr/bin/env bash
# The third session, on four GPUs: FlagGems and the last commits of Liger-Kernel, three workers, truth on the fourth GPU.
# Usage: third.sh begin | go SECONDS
set -u
HERE=$(cd "$(dirname "$0")" && pwd)
export PLACE=/tmp/kw OUT=${OUT:-/tmp/kw/out} MATTER='rms_norm\|layernorm\|layer_norm'
mkdir -p "$OUT"

truths() {
    TRUTH="--restarts 6 --budget 150 --cases rmsnorm.fwd.131072x128.bf16 rmsnorm.fwd.4096x4096.bf16
        rmsnorm.fwd.8192x8192.bf16 rmsnorm.bwd.4096x4096.bf16 rmsnorm.bwd.8192x8192.bf16" \
        bash "$HERE/steps.sh" truth flaggems truth-rmsnorm
    TRUTH="--restarts 5 --budget 150 --commits $1" bash "$HERE/steps.sh" truth liger
    TRUTH="--restarts 4 --budget 900 --cases layernorm.fwd.4096x1024.bf16 layernorm.fwd.16384x5120.bf16
        layernorm.fwd.8192x8192.bf16 layernorm.bwd.4096x1152.bf16 layernorm.bwd.16384x4096.bf16" \
        bash "$HERE/steps.sh" truth flaggems truth-layernorm
}

begin() {
    GPU=1 bash "$HERE/steps.sh" site 2>&1 | tail -2
    export -f truths
    export HERE
    GPU=0 setsid bash -c 'truths "848c2b04 705e2e14 8e55563f 068835cb 97d5042a"' > /dev/null 2>&1 < /dev/null &
    GPU=1 bash "$HERE/steps.sh" serve 2>&1 | tail -4
    for gpu in 2 3; do [ "$gpu" -ge "$(nvidia-smi -L | wc -l)" ] || GPU=$gpu bash "$HERE/steps.sh" second; done
    bash "$HERE/steps.sh" measure flaggems "$(git -C $PLACE/flaggems/flaggems.git rev-list --max-parents=0 main)..main" 2>&1 | tail -3
    bash "$HERE/steps.sh" measure liger 1e6d8249..97d5042a 2>&1 | tail -3
}

go() {
    bash "$HERE/steps.sh" wait "$1" > /dev/null
    bash "$HERE/steps.sh" keep
    cat "$OUT/runs.txt"
    tail -n 4 "$PLACE"/*/truth*.log
}

"$@"
