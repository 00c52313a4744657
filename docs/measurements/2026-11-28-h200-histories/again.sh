#!/usr/bin/env bash
# The last call of the second session, on two GPUs of a new machine: heads, the order of loads, FlagGems.
HERE=$(cd "$(dirname "$0")" && pwd)
TREE=$(cd "$HERE/../../.." && pwd)
PLACE=/tmp/kw PYTHON=/opt/torch/.venv/bin/python3 OUT=${OUT:-/tmp/kw/out}
mkdir -p "$OUT"
bash "$HERE/steps.sh" site 2>&1 | tail -1
COMMITS=$(git -C "$PLACE/flaggems/flaggems.git" log --first-parent --reverse --format=%h main -- src/flag_gems/ops/rms_norm.py \
    src/flag_gems/ops/layernorm.py | head -7 | tail -6 | tr '\n' ' ')
(
    CUDA_VISIBLE_DEVICES=0 PYTHONPATH=$TREE timeout 110 "$PYTHON" "$TREE/docs/measurements/2026-11-28-h200-heads/heads.py" \
        > "$OUT/heads.txt" 2> "$OUT/heads.err"
    CUDA_VISIBLE_DEVICES=0 timeout 40 "$PYTHON" "$HERE/order.py" "$PLACE/liger/liger.git" > "$OUT/order.txt" 2> "$OUT/order.err"
    GPU=0 TRUTH="--restarts 3 --budget 150 --rounds 8 --commits $COMMITS --cases rmsnorm.fwd.131072x128.bf16
        rmsnorm.fwd.4096x4096.bf16 layernorm.fwd.4096x1024.bf16 layernorm.fwd.16384x5120.bf16 layernorm.fwd.8192x8192.bf16
        layernorm.bwd.16384x4096.bf16" bash "$HERE/steps.sh" truth flaggems
) &
GPU=1 bash "$HERE/steps.sh" serve 2>&1 | tail -1
GPU=1 MATTER='rms_norm\|layernorm' bash "$HERE/steps.sh" measure flaggems f9277208..0168cc29 2>&1 | tail -3
while [ $SECONDS -lt "${1:-350}" ]; do sleep 1; done
bash "$HERE/steps.sh" keep
tail -n 3 "$OUT"/*.err "$PLACE/flaggems/truth.log"
cat "$OUT/heads.txt" "$OUT/order.txt" "$OUT/runs.txt"
