#!/usr/bin/env bash
# Plans for few rows, random cases, engines and GPU tests on two H200s: session.sh sweep CASE… | random | small | tests
# PLACE holds quack (Quack, CUTLASS DSL, Liger), others (FlashInfer, vLLM's extension) and site (requirements.txt).
set -uo pipefail
PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-python3} OUT=${OUT:-/tmp/kw/out}
export QUACK_PATH=$PLACE/quack:$PLACE/quack/nvidia_cutlass_dsl/dsl_packages:$PLACE/others OMP_NUM_THREADS=1
export PYTHONPATH=$PWD:$QUACK_PATH:$PLACE/site
mkdir -p "$OUT"
bench() { timeout "$1" "$PYTHON" -m benchmarks.kernels.kernels --out "$OUT/$2" --limit-s $(($1 - 30)) "${@:3}" > "$OUT/$2.txt" 2>&1; }
tests() { timeout 220 "$PYTHON" -m pytest -q -rs -p no:cacheprovider -p no:benchmark "$@"; }
random() { CUDA_VISIBLE_DEVICES=$1 bench "$2" "random-$3" --random 150 --seed "$3" --trials 1; }
step=$1; shift
case $step in
    sweep) "$PYTHON" "$(dirname "$0")/sweep.py.txt" "$OUT/sweep.json" "$@" ;;  # a mode (same, split, team, shape, old) and cases
    random)
        random 0 260 53 & random 1 320 54; wait ;;  # then, after changes: 55 for 250 s, 56 for 95 s
    small) CUDA_VISIBLE_DEVICES=1 bench 110 small --suites small --against flashinfer,vllm --trials 0 --only 'rmsnorm(_residual)?\.fwd.*bf16$' ;;
    tests)
        tests -n 12 tests/kernels/gpu/test_gpu_{norms,norm_modules,norm_wide,functions}.py > "$OUT/tests.txt" 2>&1
        tests tests/kernels/gpu/test_gpu_providers.py -k "flashinfer or vllm" > "$OUT/engines.txt" 2>&1 ;;
esac
