#!/usr/bin/env bash
# Norms in a model, plans with two vectors, launches and engines on one H200: session.sh machine | models | plans | rivals | early | few | small | random | tests
# PLACE holds what `tar` unpacked: quack (Quack, CUTLASS DSL), others (FlashInfer, vLLM's extension) and site (requirements.txt).
set -uo pipefail
PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-python3} OUT=${OUT:-/tmp/kw/out}
export QUACK_PATH=$PLACE/quack:$PLACE/quack/nvidia_cutlass_dsl/dsl_packages:$PLACE/others OMP_NUM_THREADS=1
export PYTHONPATH=$PWD:$QUACK_PATH:$PLACE/site
mkdir -p "$OUT"
bench() { timeout "$1" "$PYTHON" -m benchmarks.kernels.kernels --out "$OUT/$2" "${@:3}" > "$OUT/$2.txt" 2>&1; }
tests() { timeout 400 "$PYTHON" -m pytest -q -rs -p no:cacheprovider -p no:benchmark "$@"; }
for step in "$@"; do
    case $step in
        machine) { nvidia-smi; "$PYTHON" -m pip list | grep -iE "^(torch|triton|numpy) "; uname -a; } > "$OUT/machine.txt" ;;
        models) timeout 280 "$PYTHON" -m benchmarks.kernels.models --out "$OUT" ;;
        plans | rivals | early | few) timeout 300 "$PYTHON" "$(dirname "$0")/turns.py" "$step" | tee "$OUT/$step.txt" ;;
        small) bench 100 small --suites small --against flashinfer,vllm --trials 0 --other-trials 1 --only 'rmsnorm(_residual)?\.fwd.*bf16$' --limit-s 45 ;;
        random) bench 200 random --random 100 --seed 41 --trials 1 --limit-s 130 ;;
        tests)
            tests -n 8 tests/kernels/gpu/test_gpu_norms.py tests/kernels/gpu/test_gpu_norm_modules.py tests/kernels/gpu/test_gpu_norm_wide.py > "$OUT/tests.txt"
            tests tests/kernels/gpu/test_gpu_norm_modules.py -v -k "not_the_current_one or current_device_alone" > "$OUT/two.txt" ;;
        *) echo "no step $step" >&2; exit 2 ;;
    esac
done
