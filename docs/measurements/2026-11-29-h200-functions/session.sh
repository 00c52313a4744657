#!/usr/bin/env bash
# Functions of a recipe on a GPU: session.sh set-up | tests | NAME:BASE:HEAD | adopt:NAME:FOLDER
# GIFTS holds site.tar.xz (requirements.txt, pytest, transformers and einops) and fla.git and others.
set -uo pipefail
ROOT=$(cd "$(dirname "$0")/../../.." && pwd) HERE=$(cd "$(dirname "$0")" && pwd)
GIFTS=${GIFTS:-$ROOT/.gpu2} PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3} OUT=${OUT:-/tmp/kw/out}
mkdir -p "$PLACE/site" "$OUT"
cd "$ROOT" || exit
export PYTHONPATH=$PLACE/site:$ROOT KERNELWATCH_STATE=$PLACE/state KERNELWATCH_DEVICE=h200 CUDA_VISIBLE_DEVICES=0
kw() { "$PYTHON" -P -m service.cli "$@"; }
setup() {
    tar -C "$PLACE/site" -xJf "$GIFTS/site.tar.xz"
    git config --global --add safe.directory '*'
    for bare in "$GIFTS"/*.git; do git clone -q "$bare" "$PLACE/$(basename "$bare" .git)"; done
    kw db upgrade > /dev/null
    kw stack adopt host --python "$PYTHON" --path "$PLACE/site"
    { nvidia-smi; "$PYTHON" -m pip list 2> /dev/null | grep -iE "^(torch|triton|numpy) "; uname -a; nproc; } > "$OUT/machine.txt"
}
compare() {  # NAME BASE HEAD
    (cd "$PLACE/fla" && timeout "${LIMIT_S:-150}" "$PYTHON" -P -m service.cli compare "$2" "$3" --recipe "$HERE/fla.toml" \
        --allow-unsandboxed --all > "$OUT/$1.txt" 2> "$OUT/$1.log"; echo "rc $?" >> "$OUT/$1.txt")
    cat "$OUT/$1.txt"
}
adopt() {  # NAME FOLDER: init and its check, with a clock
    (cd "$PLACE/$1" && time timeout "${LIMIT_S:-300}" "$PYTHON" -P -m service.cli init "$2" --force --check --allow-unsandboxed) \
        > "$OUT/adopt-$1.txt" 2>&1
    echo "rc $?" >> "$OUT/adopt-$1.txt"
    grep -v "^trial\|^confirming" "$OUT/adopt-$1.txt" | tail -60
}
for step in "$@"; do
    case $step in
        adopt:*:*) IFS=: read -r _ name folder <<< "$step"; adopt "$name" "$folder" ;;
        set-up) setup ;;
        tests) timeout 200 "$PYTHON" -m pytest -q -p no:cacheprovider -p no:benchmark -n 0 -m gpu tests/kernels/gpu/test_gpu_functions.py > "$OUT/tests.txt" 2>&1; tail -15 "$OUT/tests.txt" ;;
        *:*:*) IFS=: read -r name base head <<< "$step"; compare "$name" "$base" "$head" ;;
        *) echo "no step $step" >&2; exit 2 ;;
    esac
    echo "== $(date +%T) $step ended"
done
