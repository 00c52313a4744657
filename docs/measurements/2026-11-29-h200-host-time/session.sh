#!/usr/bin/env bash
# Host time of eager calls of norms on one GPU: session.sh check | parts | turns | tests ...
# PYTHONPATH may hold Quack (GIFTS/quack.tar.xz is unpacked if it is there), Liger-Kernel, and pytest for `tests`.
set -uo pipefail
ROOT=$(cd "$(dirname "$0")/../../.." && pwd)
GIFTS=${GIFTS:-$ROOT/.gpu} PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3} OUT=${OUT:-/tmp/kw/out}
mkdir -p "$PLACE" "$OUT"
cd "$ROOT" || exit
if [ -e "$GIFTS/quack.tar.xz" ] && [ ! -e "$PLACE/quack" ]; then
    mkdir -p "$PLACE/quack" && tar -C "$PLACE/quack" -xJf "$GIFTS/quack.tar.xz"
fi
export PYTHONPATH=$ROOT:$PLACE/quack:$PLACE/quack/nvidia_cutlass_dsl/dsl_packages:${PYTHONPATH:-} OMP_NUM_THREADS=1
{ nvidia-smi; "$PYTHON" -m pip list 2> /dev/null | grep -iE "^(torch|triton|numpy) "; uname -a; nproc; lscpu | grep "Model name"; } > "$OUT/machine.txt"
check() { timeout 200 "$PYTHON" docs/measurements/2026-11-29-h200-host-time/check.py 2>&1 | tee "$OUT/check.txt"; }
parts() { timeout 100 "$PYTHON" -m benchmarks.kernels.host_time --parts 2>&1 | tee "$OUT/parts.txt"; }
turns() { timeout 400 "$PYTHON" -m benchmarks.kernels.host_time --out "$OUT" 2>&1 | tee "$OUT/turns.txt"; }
tests() {
    timeout 500 "$PYTHON" -m pytest -q -p no:cacheprovider -p no:benchmark -n 8 tests/kernels/gpu/test_gpu_norm_modules.py \
        tests/kernels/gpu/test_gpu_norms.py > "$OUT/tests.txt" 2>&1
    tail -15 "$OUT/tests.txt"
}
for step in "${@:-check}"; do
    case $step in
        check) check ;; parts) parts ;; turns) turns ;; tests) tests ;;
        *) echo "no step $step" >&2; exit 2 ;;
    esac
    echo "== $(date +%T) $step ended"
done
