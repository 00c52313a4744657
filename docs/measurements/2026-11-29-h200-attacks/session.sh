#!/usr/bin/env bash
# The attacks on the sandbox and on timing on the host of a GPU, and the tests of the arena on it: session.sh
# GIFTS holds whl/ (wheels of requirements.txt), dev/ (those of pytest and its plugins) and debs/ (bubblewrap).
set -uo pipefail
ROOT=$(cd "$(dirname "$0")/../../.." && pwd)
GIFTS=${GIFTS:-$ROOT/.gpu2} PLACE=${PLACE:-/tmp/kw} PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3} OUT=${OUT:-/tmp/kw/out}
mkdir -p "$PLACE/site" "$PLACE/debs" "$OUT"
for deb in "$GIFTS"/debs/*.deb; do dpkg -x "$deb" "$PLACE/debs"; done
command -v bwrap > /dev/null || cp "$PLACE/debs/usr/bin/bwrap" /usr/bin/
find "$PLACE/debs" -name "lib*.so.*" | while read -r library; do  # only those that the host lacks
    name=$(basename "$library" | sed 's/\(\.so\.[0-9]*\).*/\1/')
    ldconfig -p | grep -q "$name" || cp -P "$library" /usr/lib/x86_64-linux-gnu/
done
ldconfig
for wheel in "$GIFTS"/whl/*.whl "$GIFTS"/dev/*.whl; do "$PYTHON" -m zipfile -e "$wheel" "$PLACE/site"; done
{ nvidia-smi; "$PYTHON" -m pip list 2> /dev/null | grep -iE "^(torch|triton|numpy) "; uname -a; nproc; } > "$OUT/machine.txt"
cd "$ROOT"
export PYTHONPATH=$PLACE/site:$ROOT HYPOTHESIS_STORAGE_DIRECTORY=$PLACE/hypothesis
tests() {  # NAME SECONDS ARGUMENTS...
    local name=$1 limit=$2
    shift 2
    echo "== $(date +%T) $name"
    timeout "$limit" "$PYTHON" -m pytest -q -p no:cacheprovider --junit-xml "$OUT/$name.xml" "$@" > "$OUT/$name.txt" 2>&1
    tail -8 "$OUT/$name.txt"
}
tests sandbox 120 -n 4 -p no:benchmark --with attack tests/attacks/test_sandbox_probes.py tests/attacks/test_sandbox_bombs.py tests/workers/sandbox
tests timing 260 -n 0 -p no:benchmark --with attack -m attack tests/attacks/test_timing.py -k "short_case or stopped or slowed or CLAIMS or KEEPS"
tests arena 140 -n 0 -p no:benchmark -m gpu tests/kernels/gpu/test_gpu_cheats.py tests/kernels/gpu/test_gpu_robust.py
