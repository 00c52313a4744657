#!/usr/bin/env bash
# Studies on a GPU host that has torch and Triton but no package index.  Usage: steps.sh STEP...
# GIFTS holds what was carried there: a/quack.tar.xz, an archive of Quack, the CUTLASS DSL and Liger; t/, wheels of pytest,
# pytest-xdist and pytest-timeout.  CUDA_VISIBLE_DEVICES names one GPU, so that two of these can run at the same time.
set -uo pipefail
HERE=$(cd "$(dirname "$0")" && pwd) TREE=$(cd "$(dirname "$0")/../../.." && pwd)
GIFTS=${GIFTS:-$TREE/.gpu} PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-h200} OUT=${OUT:-/tmp/out}
export PYTHONUNBUFFERED=1 QUACK_PATH=/tmp/q:/tmp/q/nvidia_cutlass_dsl/dsl_packages
KEPT=/tmp/studies QUICK=${QUICK:-}  # files of studies live on from call to call; QUICK=--quick for the quick form
mkdir -p "$OUT" "$KEPT" /tmp/q

machine() {
    { nvidia-smi; nproc; "$PYTHON" -c "import torch, triton, sys; print(torch.__version__, triton.__version__, sys.version)"; } > "$OUT/machine.txt" 2>&1
}

quack() { [ -d /tmp/q/quack ] || tar -C /tmp/q -xJf "$GIFTS/a/quack.tar.xz"; }

study() {  # FILE NAME LIMIT_S [STEP...]
    local file=$1 name=$2 limit=$3
    shift 3
    (cd "$TREE" && timeout $((limit + 60)) "$PYTHON" -m kernels.studies.published run "$name" --out "$KEPT/$file.jsonl" $QUICK \
        --device "$DEVICE" --limit-s "$limit" ${1:+--only "$@"} > "$OUT/$file.md" 2> "$OUT/$file.log.txt")
    echo "$file ended with $?"
    tail -n 3 "$OUT/$file.log.txt" | cut -c1-300
    xz -c "$KEPT/$file.jsonl" > "$OUT/$file.jsonl.xz"
}

suite() {  # NAME LIMIT_S [REGEX]: times or counts of the built-in providers
    (cd "$TREE" && timeout $(($2 + 60)) "$PYTHON" "$HERE/regions.py" "$1" "$OUT/$1.json" --limit-s "$2" --only "${3:-}" > "$OUT/$1.md" 2> "$OUT/$1.log.txt")
    echo "suite $1 ended with $?"
    xz -f "$OUT/$1.json"
    cut -c1-220 "$OUT/$1.md"
    tail -n 3 "$OUT/$1.log.txt" | cut -c1-300
}

tests() {  # NAME LIMIT_S PYTEST_ARGUMENT...
    local name=$1 limit=$2
    shift 2
    mkdir -p /tmp/tests
    [ -d /tmp/tests/pytest ] || for wheel in "$GIFTS"/t/*.whl; do "$PYTHON" -m zipfile -e "$wheel" /tmp/tests; done
    (cd "$TREE" && PYTHONPATH=/tmp/tests:$QUACK_PATH timeout "$limit" "$PYTHON" -m pytest -q -c /dev/null --rootdir="$TREE" --confcutdir="$TREE/tests/kernels" \
        --import-mode=importlib -p no:cacheprovider -o pythonpath="$TREE" -o markers="gpu: x" -W ignore --timeout=200 --durations=5 -ra "$@" > "$OUT/tests-$name.txt" 2>&1)
    echo "tests $name ended with $?"
    grep -E "^(FAILED|ERROR)|passed|failed|error" "$OUT/tests-$name.txt" | tail -25 | cut -c1-300
}

region_tests() { tests regions "$1" -n 10 tests/kernels/gpu/test_gpu_providers.py tests/kernels/gpu/test_gpu_oracle.py -k "region or edges"; }

for step in "$@"; do
    echo "== $step ($(date +%T))"
    # shellcheck disable=SC2086
    ${step//:/ }
done
