#!/usr/bin/env bash
# Attacks on the timing on one H200, before and after; then GPU tests of contender and checks.
# Needs a folder with gpu_attacks.py, trees.tgz (gpuold/kernels, gpunew/{kernels,tests}) and whl/ (pytest); in the repository root:
#   OUT=FOLDER bash .gpu/truth/steps.sh attacks|tests
set -uo pipefail
HERE=$(cd "$(dirname "$0")" && pwd); OUT=${OUT:-/tmp/out}; PLACE=/tmp/truth; mkdir -p $PLACE "$OUT"
PYTHON=/opt/torch/.venv/bin/python3; [ -x $PYTHON ] || PYTHON=python3
tar -xzf "$HERE/trees.tgz" -C $PLACE
export TRITON_CACHE_DIR=$PLACE/triton PYTHONDONTWRITEBYTECODE=1
if [ "$1" != tests ]; then
    cd $PLACE
    timeout 130 $PYTHON "$HERE/gpu_attacks.py" gpuold before 2>&1 | tee "$OUT/attacks.txt"
    timeout 130 $PYTHON "$HERE/gpu_attacks.py" gpunew after 2>&1 | tee -a "$OUT/attacks.txt"
fi
[ "$1" = attacks ] && exit 0
$PYTHON - $PLACE/site "$HERE"/whl/*.whl <<'PY'
import sys, zipfile
for wheel in sys.argv[2:]:
    zipfile.ZipFile(wheel).extractall(sys.argv[1])
PY
cat > $PLACE/pytest.ini <<'INI'
[pytest]
addopts = --import-mode=importlib -ra
filterwarnings = ignore
timeout = 200
markers =
    gpu: needs an NVIDIA GPU
    torch: imports torch
    alone: measures times
    attack: attacks
    study: of a study
    demo: the demo
INI
cd $PLACE/gpunew; export PYTHONPATH=$PLACE/site:$PLACE/gpunew
part() { local name=$1 limit=$2; shift 2; timeout $limit $PYTHON -m pytest -c $PLACE/pytest.ini --rootdir . --confcutdir tests/kernels -p no:cacheprovider -q --tb=short "$@" > "$OUT/$name.txt" 2>&1; echo "$name: exit $?"; grep -E "^(FAILED|ERROR)|passed|failed|error" "$OUT/$name.txt" | tail -12; }
part cheats 150 tests/kernels/gpu/test_gpu_cheats.py
part correct 150 tests/kernels/gpu/test_gpu_correct.py
part metrics 120 tests/kernels/gpu/test_gpu_metrics.py -k "not quack and not liger"
part robust 120 tests/kernels/gpu/test_gpu_robust.py tests/kernels/gpu/test_gpu_oracle.py tests/kernels/test_gpu.py -k "not quack and not liger"
