#!/usr/bin/env bash
# Plans of one wave, random cases, the suite of Quack and GPU tests on two H200s: session.sh random | suites | tests
# PLACE holds quack (Quack, CUTLASS DSL, Liger) and site (requirements.txt).  sweep.py.txt has the sweeps.
set -uo pipefail
PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-python3} OUT=${OUT:-/tmp/kw/out}
export QUACK_PATH=$PLACE/quack:$PLACE/quack/nvidia_cutlass_dsl/dsl_packages OMP_NUM_THREADS=1
export PYTHONPATH=$PWD:$QUACK_PATH:$PLACE/site
mkdir -p "$OUT"
bench() { timeout $(($1 + 25)) "$PYTHON" -m benchmarks.kernels.kernels --out "$OUT/$2" --limit-s "$1" "${@:3}" > "$OUT/$2.txt" 2>&1; }
random() { CUDA_VISIBLE_DEVICES=$1 bench 215 "random-$2" --random 150 --seed "$2" --trials 1; }
suite() { CUDA_VISIBLE_DEVICES=$1 bench 150 "$2" --suites quack --against quack,inductor --trials 1 --only "\.$2\."; }
tests() { timeout 200 "$PYTHON" -m pytest -q -rs -p no:cacheprovider -p no:benchmark "$@"; }
case $1 in
    random) random 0 57 & random 1 58; wait ;;
    suites) suite 0 fwd & suite 1 bwd; wait ;;
    tests)
        CUDA_VISIBLE_DEVICES=0 tests -n 14 tests/kernels/gpu/test_gpu_norms.py > "$OUT/tests-norms.txt" 2>&1 &
        CUDA_VISIBLE_DEVICES=1,0 tests -n 10 tests/kernels/gpu/test_gpu_{norm_modules,norm_wide,functions}.py > "$OUT/tests-others.txt" 2>&1
        wait
        tests tests/kernels/gpu/test_gpu_functions.py > "$OUT/tests-functions.txt" 2>&1 ;;
    *) echo "no step $1" >&2; exit 2 ;;
esac
