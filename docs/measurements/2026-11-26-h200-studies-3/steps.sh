#!/usr/bin/env bash
# Steps on one GPU of a host that has torch and Triton but no package index.  Usage: steps.sh STEP[:ARGUMENT...]...
# GIFTS holds what was carried there: a/quack.tar.xz, an archive of Quack, the CUTLASS DSL and Liger; t/, wheels of pytest and its plugins.
# CUDA_VISIBLE_DEVICES names the GPU.
set -ufo pipefail  # f: arguments have regular expressions
HERE=$(cd "$(dirname "$0")" && pwd) TREE=${TREE:-$(cd "$(dirname "$0")/../../.." && pwd)}
GIFTS=${GIFTS:-$TREE/.gpu} PYTHON=${PYTHON:-python3} DEVICE=${DEVICE:-h200} OUT=${OUT:-/tmp/out}
export PYTHONUNBUFFERED=1 QUACK_PATH=/tmp/q:/tmp/q/nvidia_cutlass_dsl/dsl_packages
KEPT=/tmp/studies QUICK=${QUICK:-}  # files of studies live on from call to call; QUICK=--quick for the quick form
mkdir -p "$OUT" "$KEPT" /tmp/q

machine() {
    { nvidia-smi; nproc; "$PYTHON" -c "import torch, triton, sys; print(torch.__version__, triton.__version__, sys.version)"; } > "$OUT/machine.txt" 2>&1
}

quack() { [ -d /tmp/q/quack ] || tar -C /tmp/q -xJf "$GIFTS/a/quack.tar.xz"; }

begin() {  # STUDY FILE...: files of one session, so that several GPUs measure parts of it
    local study=$1 first=$2
    shift
    for file in "$@"; do
        [ -s "$KEPT/$file.jsonl" ] && continue
        if [ "$file" = "$first" ]; then
            (cd "$TREE" && "$PYTHON" - "$study" "$KEPT/$first.jsonl" "$DEVICE" "${QUICK:+1}" <<'PY'
import pathlib, sys
from kernels.studies.published import catalogue, run
name, path, device, quick = sys.argv[1:]
pathlib.Path(path).touch()
run._opened(catalogue.STUDIES[name], pathlib.Path(path), device, bool(quick))
PY
            )
        else
            head -n 1 "$KEPT/$first.jsonl" > "$KEPT/$file.jsonl"
        fi
    done
    ls -l "$KEPT"
}

study() {  # FILE NAME LIMIT_S [STEP...]
    local file=$1 name=$2 limit=$3
    shift 3
    (cd "$TREE" && timeout $((limit + 60)) "$PYTHON" -m kernels.studies.published run "$name" --out "$KEPT/$file.jsonl" $QUICK \
        --device "$DEVICE" --limit-s "$limit" ${1:+--only "$@"} > "$OUT/$file.md" 2> "$OUT/$file.log.txt")
    echo "$file ended with $?"
    tail -n 4 "$OUT/$file.log.txt" | cut -c1-300
}

suite() {  # NAME LIMIT_S [REGEX]: times or counts of the built-in providers
    (cd "$TREE" && timeout $(($2 + 60)) "$PYTHON" "$TREE/docs/measurements/2026-11-24-h200-studies-2/regions.py" "$1" "$OUT/$1.json" --limit-s "$2" --only "${3:-}" > "$OUT/$1.md" 2> "$OUT/$1.log.txt")
    echo "suite $1 ended with $?"
    cut -c1-220 "$OUT/$1.md"
    tail -n 3 "$OUT/$1.log.txt" | cut -c1-300
}

tests() {  # NAME LIMIT_S PYTEST_ARGUMENT...
    local name=$1 limit=$2
    shift 2
    mkdir -p /tmp/tests
    [ -d /tmp/tests/pytest ] || find "$GIFTS/t" -name "*.whl" -exec "$PYTHON" -m zipfile -e {} /tmp/tests \;
    (cd "$TREE" && PYTHONPATH=/tmp/tests:$QUACK_PATH timeout "$limit" "$PYTHON" -m pytest -q -c /dev/null --rootdir="$TREE" --confcutdir="$TREE/tests/kernels" \
        --import-mode=importlib -p no:cacheprovider -o pythonpath="$TREE" -o markers="gpu: x" -W ignore --timeout=200 --durations=5 -ra "$@" > "$OUT/tests-$name.txt" 2>&1)
    echo "tests $name ended with $?"
    grep -E "^(FAILED|ERROR)|passed|failed|error" "$OUT/tests-$name.txt" | tail -25 | cut -c1-300
}

restore() { cp "$GIFTS"/s/. "$KEPT/" -r; }  # the studies so far

replay_tests() { tests replay "$1" -n 4 tests/kernels/studies/test_replay.py; }

for step in "$@"; do
    echo "== $step ($(date +%T))"
    # shellcheck disable=SC2086
    ${step//:/ }
done
