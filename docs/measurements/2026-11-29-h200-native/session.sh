#!/usr/bin/env bash
# Calls in C++, random cases, engines and the suite of Quack on two H200s: session.sh machine | host | random | small | tune | suites | tests | waits
# PLACE holds quack (Quack, CUTLASS DSL, Liger), others (FlashInfer, vLLM's extension) and site (requirements.txt).
set -uo pipefail
PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-python3} OUT=${OUT:-/tmp/kw/out}
export QUACK_PATH=$PLACE/quack:$PLACE/quack/nvidia_cutlass_dsl/dsl_packages:$PLACE/others OMP_NUM_THREADS=1
export PYTHONPATH=$PWD:$QUACK_PATH:$PLACE/site
mkdir -p "$OUT"
on() { CUDA_VISIBLE_DEVICES=$1 "${@:2}"; }
bench() { timeout "$1" "$PYTHON" -m benchmarks.kernels.kernels --out "$OUT/$2" --limit-s $(($1 - 30)) "${@:3}" > "$OUT/$2.txt" 2>&1; }
suite() { bench "$1" "$2" --suites quack --against quack,inductor --trials 1 --only "\.$2\."; }
tests() { timeout 200 "$PYTHON" -m pytest -q -rs -p no:cacheprovider -p no:benchmark "$@"; }
for step in "$@"; do
    case $step in
        machine)
            "$PYTHON" -c "from kernels.norms.calls.native import build_calls as build; print(build())"
            { nvidia-smi; "$PYTHON" -m pip list | grep -iE "^(torch|triton|numpy) "; uname -a; } > "$OUT/machine.txt" ;;
        host) on 0 timeout 110 "$PYTHON" -m benchmarks.kernels.host_time --out "$OUT/host" > "$OUT/host.txt" 2>&1 ;;
        random)
            on 1 bench "${SECONDS_EACH:-300}" random-52 --random 150 --seed 52 --trials 1 &
            on 0 bench "$((${SECONDS_EACH:-300} - 60))" random-51 --random 150 --seed 51 --trials 1
            wait ;;
        small) on 1 bench 110 small --suites small --against flashinfer,vllm --trials 0 --only 'rmsnorm(_residual)?\.fwd.*bf16$' ;;
        tune) on 1 timeout 60 "$PYTHON" -m kernels.norms.tuning --file "$OUT/plans.json" layernorm.fwd.16384x8192.bf16-fp32 layernorm.fwd.8192x16384.bf16-fp32 > "$OUT/tune.txt" 2>&1 ;;
        suites)
            on 1 suite "${SECONDS_EACH:-330}" bwd &
            on 0 suite "${SECONDS_EACH:-330}" fwd
            wait ;;
        tests)
            tests -n 14 tests/kernels/gpu/test_gpu_norms.py tests/kernels/gpu/test_gpu_norm_modules.py tests/kernels/gpu/test_gpu_norm_wide.py tests/kernels/gpu/test_gpu_functions.py > "$OUT/tests.txt" 2>&1
            tests tests/kernels/gpu/test_gpu_providers.py -k "flashinfer or vllm" > "$OUT/engines.txt" 2>&1 ;;
        waits)  # at the commit that lets all launches start early, and in BEFORE, a copy of its parent
            (cd "$BEFORE" && PYTHONPATH=$BEFORE:$QUACK_PATH on 0 bench 125 waits-before --suites small,quack --against quack --trials 1 --only '(rmsnorm|rmsnorm_residual|layernorm)\.fwd') &
            on 1 bench 125 waits-after --suites small,quack --against quack --trials 1 --only '(rmsnorm|rmsnorm_residual|layernorm)\.fwd'
            wait ;;
        *) echo "no step $step" >&2; exit 2 ;;
    esac
done
