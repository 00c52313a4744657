#!/usr/bin/env bash
# GPU tests of kernels/ without Quack, for a host with torch 2.11+cu130, Triton 3.6 and Python 3.12.  Run it in the repository root.
# Wheels (pure Python, in $GIFTS/whl, default .gpu/whl): pytest 9.2.0, pluggy 1.7.0, iniconfig 2.3.1, packaging 26.3,
# pygments 2.21.0.  tests/conftest.py, which needs sqlalchemy, alembic, pydantic-settings and
# more, is not loaded: --confcutdir leaves it out, and an ini of its own leaves out the options of pyproject.toml
# (pytest-timeout, pytest-xdist).  Nothing here needs NVML; with nvidia-ml-py the session also reads telemetry.
# Cells whose provider is not installed (quack, liger) skip; see the list at the end.
set -uo pipefail
GIFTS=${GIFTS:-$PWD/.gpu} PLACE=${PLACE:-/tmp/kern-gpu} OUT=${OUT:-/tmp/kern-gpu/out}
PYTHON=${PYTHON:-/opt/torch/.venv/bin/python3}
[ -x "$PYTHON" ] || PYTHON=$(command -v python3)
mkdir -p "$PLACE/site" "$OUT"
"$PYTHON" - "$PLACE/site" "$GIFTS"/whl/*.whl <<'PY'
import sys, zipfile
for wheel in sys.argv[2:]:
    zipfile.ZipFile(wheel).extractall(sys.argv[1])
PY
cat > "$PLACE/pytest.ini" <<'INI'
[pytest]
addopts = --import-mode=importlib -ra
filterwarnings = ignore
markers =
    gpu: needs an NVIDIA GPU
    torch: imports torch
    alone: measures times
    needs(name): what it needs
    study: of a study
    demo: the demo
    slow: slow
INI
export PYTHONPATH="$PLACE/site:$PWD" PYTHONDONTWRITEBYTECODE=1
export TRITON_CACHE_DIR="$PLACE/triton" TORCHINDUCTOR_CACHE_DIR="$PLACE/inductor" HOME=${HOME:-/root}
"$PYTHON" -c "import torch, triton, pytest, sys; print(sys.version.split()[0], torch.__version__, triton.__version__, pytest.__version__, torch.cuda.get_device_name())"
part() {  # part NAME SECONDS PYTEST_ARGUMENTS...
    local name=$1 limit=$2 began=$SECONDS
    shift 2
    timeout "$limit" "$PYTHON" -m pytest -c "$PLACE/pytest.ini" --rootdir "$PWD" --confcutdir "$PWD/tests/kernels" \
        -p no:cacheprovider -q --tb=short --durations=5 -s "$@" > "$OUT/$name.log" 2>&1
    echo "$name: exit $? in $((SECONDS - began)) s"
    grep -E "^(FAILED|ERROR|SKIPPED)|passed|failed|error" "$OUT/$name.log" | tail -25
}
# A first part without a GPU in it: the contender starts, answers and is checked under this interpreter.
part protocol 40 tests/kernels/contender/test_contender.py -k "by_hand or failed_capture"
part facts 150 tests/kernels/gpu/test_gpu_facts.py -k "same_code_runs or our_operators or hidden_launch or kernels_of_a_call"
part cheats 120 tests/kernels/gpu/test_gpu_cheats.py
part correct 150 tests/kernels/gpu/test_gpu_correct.py
part metrics 110 tests/kernels/gpu/test_gpu_metrics.py -k "not quack and not liger"
part whole 60 tests/kernels/test_gpu.py -k "not quack and not liger"
part robust 120 tests/kernels/gpu/test_gpu_robust.py tests/kernels/gpu/test_gpu_oracle.py -k "not quack and not liger"
