#!/usr/bin/env bash
# GPU tests by name with their times, then the files of the norms whole.  Run in the repository's root; at most 420 s.
#   .whl/  the wheels of /tmp/gpu_wheels (see WHEELS); OUT: a folder for logs (7 files)
set -uo pipefail
: "${OUT:?a folder for logs}"
WHEELS=${WHEELS:-.whl}
began=$SECONDS
left() { local now=$(( 415 - (SECONDS - began) )); [ "$now" -gt 5 ] && echo "$now" || echo 5; }

python3 -m pip install -q --no-index --no-deps --no-compile --no-cache-dir --upgrade --target /tmp/site "$WHEELS"/*.whl || exit
export PYTHONPATH=/tmp/site PYTHONUNBUFFERED=1 OMP_NUM_THREADS=1 TRITON_CACHE_DIR=/tmp/triton-of-tests TORCHINDUCTOR_CACHE_DIR=/tmp/inductor-of-tests
{ nvidia-smi; python3 -c "import sys, torch, triton, pytest; print(torch.__version__, triton.__version__, pytest.__version__, sys.version, torch.cuda.get_device_name())"; git rev-parse HEAD; } > "$OUT/machine.txt" 2>&1

NORMS=tests/kernels/gpu/test_gpu_norms.py WIDE=tests/kernels/gpu/test_gpu_norm_wide.py
named() {  # a log's name, a limit in seconds, then pytest's arguments
  local log=$1 limit=$2 start=$SECONDS; shift 2
  [ "$(left)" -lt "$limit" ] && limit=$(left)
  TRITON_CACHE_DIR=/tmp/triton-$log timeout -k 5 "$limit" python3 -m pytest -q -W ignore --durations=8 -p no:cacheprovider "$@" > "$OUT/$log.txt" 2>&1
  echo "$log: rc $?, $((SECONDS - start)) s, $(tail -1 "$OUT/$log.txt")" | tee -a "$OUT/summary.txt"
}

# (a) by name, each from an empty cache of Triton: this is what a person waits for
named epoch 90 -n 0 "$NORMS" -k test_zeroed_slots_are_no_sums_when_the_epoch_overflows
named dx-few 90 -n 0 "$NORMS" -k "test_the_dx_of_a_row_does_not_depend_on_its_batch and 4096x1000"
named dx 150 -n 0 "$NORMS" -k test_the_dx_of_a_row_does_not_depend_on_its_batch
# plans of few narrow rows: alone, in sevens, and as many as SMs, against the same rows among 4096
named narrow 150 -n 0 "$NORMS" -k "test_a_row_does_not_depend_on_its_batch and ($(printf '4096x%s or ' 136 200 264 392 449 500 512 640 1152 1600 2000)4096x1000)"
# (b) whole, one cache for five processes
named whole "$(left)" -n 5 "$NORMS" "$WIDE"
grep -hE "^(FAILED|ERROR)" "$OUT"/*.txt | cut -c1-300 | head -40
echo "all: $((SECONDS - began)) s" | tee -a "$OUT/summary.txt"
