#!/usr/bin/env bash
# Seconds from lease to verdict before and after, on one GPU: steps.sh before | after | more, in this order, after
# `session.sh unpack` and `session.sh place`.
# GIFTS also holds before.tar.xz (the service of c99f1fa6) and dev/ (wheels of pytest and hypothesis).
set -euo pipefail
HERE=$(cd "$(dirname "$0")" && pwd)
ROOT=$(cd "$HERE/../../.." && pwd)
SESSION=$HERE/session.sh
export GIFTS=${GIFTS:-$ROOT/.gpu2} PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3}
OUT=${OUT:-$PLACE/out}
BEFORE_831=9d6de1ce COMMIT_831=17ec91a9 BEFORE_1006=79522d2 COMMIT_1006=7b702fe

say() { echo "== $(date +%T) $*"; }

before() {  # without byte code in the stack, as uv leaves it
    say "adopt"; bash "$SESSION" tree before "$GIFTS/before.tar.xz"
    say "sessions"; bash "$SESSION" measure before $COMMIT_831 $COMMIT_831 $COMMIT_831
    bash "$SESSION" keep before
}

after() {  # the third session knows how trials vary, and the parent's session compared its code with Quack
    say "adopt"; bash "$SESSION" tree after
    say "sessions"; bash "$SESSION" measure after $BEFORE_831 $COMMIT_831 $COMMIT_831
}

more() {
    say "sessions"; bash "$SESSION" measure after $COMMIT_831 $COMMIT_831 $COMMIT_831 $BEFORE_1006 $COMMIT_1006 $COMMIT_1006 $COMMIT_1006
    bash "$SESSION" keep after
}

tests() {
    say "tests on the GPU"
    for wheel in "$GIFTS"/dev/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$PLACE/dev"; done
    cd "$ROOT"
    PYTHONPATH=$PLACE/dev:$PLACE/site:$PLACE/quack:$PLACE/quack/nvidia_cutlass_dsl/dsl_packages:$ROOT \
        timeout 200 "$PYTHON" -m pytest -q -p no:cacheprovider -n 0 -m gpu tests/kernels/gpu/test_gpu_tuning.py || true
}

sessions() {  # 12 and 200 cases of kernelwatch's own kernels
    say "bench-session $*"
    cd "$ROOT"
    PYTHONPATH=$PLACE/site:$ROOT QUACK_PATH=$PLACE/quack:$PLACE/quack/nvidia_cutlass_dsl/dsl_packages \
        timeout 300 "$PYTHON" -m benchmarks.kernels.session --cases "$@" --out "$OUT/session.json" || true
}

comment() {
    say "push to comment"
    cd "$ROOT"
    PYTHONPATH=$PLACE/site:$ROOT timeout 200 "$PYTHON" -m benchmarks.api.comment_latency --measure || true
}

"$@"
