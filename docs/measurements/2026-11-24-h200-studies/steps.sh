#!/usr/bin/env bash
# Studies on a GPU host that has torch and Triton but no package index.  Usage: steps.sh STEP...
# GIFTS holds what was carried there: a/quack.tar.xz, an archive of Quack, the CUTLASS DSL and Liger.
set -uo pipefail
TREE=$(cd "$(dirname "$0")/../../.." && pwd)
GIFTS=${GIFTS:-$TREE/.gpu} PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-h200} OUT=${OUT:-/tmp/out}
export PYTHONUNBUFFERED=1 QUACK_PATH=/tmp/q:/tmp/q/nvidia_cutlass_dsl/dsl_packages
KEPT=/tmp/studies QUICK=${QUICK:-}  # files of studies live on from call to call; QUICK=--quick for the quick form
mkdir -p "$OUT" "$KEPT" /tmp/q

machine() {
    { nvidia-smi; nproc; "$PYTHON" -c "import torch, triton, sys; print(torch.__version__, triton.__version__, sys.version)"; } > "$OUT/machine.txt" 2>&1
}

quack() { [ -d /tmp/q/quack ] || tar -C /tmp/q -xJf "$GIFTS/a/quack.tar.xz"; }

run() {  # NAME LIMIT_S [STEP...]
    local name=$1 limit=$2
    shift 2
    (cd "$TREE" && timeout $((limit + 60)) "$PYTHON" -m kernels.studies.published run "$name" --out "$KEPT/$name.jsonl" $QUICK \
        --device "$DEVICE" --limit-s "$limit" ${1:+--only "$@"} > "$OUT/$name.md" 2> "$OUT/$name.log.txt")
    echo "$name ended with $?"
    tail -n 3 "$OUT/$name.log.txt" | cut -c1-300
    xz -c "$KEPT/$name.jsonl" > "$OUT/$name.jsonl.xz"
}

for step in "$@"; do
    echo "== $step ($(date +%T))"
    # shellcheck disable=SC2086
    case $step in *:*) run ${step//:/ } ;; *) $step ;; esac
done
