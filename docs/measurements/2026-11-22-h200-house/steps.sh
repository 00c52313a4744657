#!/usr/bin/env bash
# One run on an H200: the GPU tests of the norms, and new kernels against old ones with an A/A control.
# Needs: repo root as cwd, torch 2.11+cu130, Triton 3.6, pytest and pytest-timeout .
# Before it, in the checkout:  mkdir -p .gpu/old; git archive 2fbc24e kernels | tar -x -C .gpu/old
# Then:  OUT=FOLDER bash docs/measurements/2026-11-22-h200-house/steps.sh
# Results under $OUT: tests.txt, times.csv, table.md, host.csv, machine.txt.   TRIALS and TESTS_S may be set.
set -uo pipefail
OUT=${OUT:-/tmp/norms-out}; PYTHON=${PYTHON:-python3}; OLD=${OLD:-.gpu/old/kernels}; TRIALS=${TRIALS:-5}
mkdir -p "$OUT"; export PYTHONUNBUFFERED=1 TRITON_CACHE_DIR=/tmp/norms-triton
WORK=$(mktemp -d)
cat > "$WORK/times.py" <<'PY'
"""trial N: time new, old and a second copy of old in turns, append to CSV.  table: read the CSV, write Markdown."""
import argparse, csv, importlib, importlib.util, math, random, sys, time
from collections import defaultdict
from functools import partial
from pathlib import Path
from statistics import median

CASES = """
rmsnorm.fwd.32768x256.bf16-fp32 rmsnorm.fwd.32768x4096.bf16-fp32 rmsnorm.fwd.8192x65536.bf16-fp32
layernorm.fwd.32768x1024.bf16-fp32 layernorm.fwd.8192x65536.bf16-fp32
rmsnorm.bwd.32768x1024.bf16-fp32 rmsnorm.bwd.8192x65536.bf16-fp32
layernorm.bwd.32768x256.bf16-fp32 layernorm.bwd.32768x4096.bf16-fp32 layernorm.bwd.8192x32768.bf16-fp32
""".split()
HOST = "rmsnorm.fwd.64x512.bf16-fp32 rmsnorm.bwd.64x512.bf16-fp32 layernorm.fwd.64x512.bf16-fp32 layernorm.bwd.64x512.bf16-fp32".split()
ROUNDS, NAMES = 10, ("new", "old", "control")

def load(name, folder):
    """The package `kernels` of a folder under another name."""
    spec = importlib.util.spec_from_file_location(name, Path(folder) / "__init__.py", submodule_search_locations=[str(folder)])
    sys.modules[name] = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(sys.modules[name])
    get = lambda module: importlib.import_module(f"{name}.{module}")
    return {way: getattr(get(f"norms.{way}ward"), f"{way}ward") for way in ("for", "back")}, get

def call_of(functions, case, inputs, ops, dtypes):
    op = ops[case.op]
    if case.direction == "fwd":
        function = partial(functions["for"], **inputs.tensors, eps=inputs.eps, center=op.norm == "layernorm")
    else:
        function = partial(functions["back"], **{"weight": None, **inputs.tensors}, bias_dtype=dtypes[case.weight_dtype] if op.bias else None)
    def call():
        outputs = tuple(each for each in function() if each is not None)
        return outputs if len(outputs) > 1 else outputs[0]
    return call

def trial(number, new, old, out, device_name, cases, host_calls):
    import torch
    kernels = {}
    kernels["new"], _ = load("kernels_new", new)
    kernels["old"], get = load("kernels_old", old)
    kernels["control"], _ = load("kernels_control", old)
    words, inputs, sizes, oracle, checks = map(get, ("words", "inputs", "sizes", "oracle", "checks"))
    device, cuda = torch.device(device_name), device_name == "cuda"
    rng = random.Random(number)
    stream = torch.cuda.Stream(device) if cuda else None
    about = torch.cuda.get_device_properties(device) if cuda else None
    with open(out / "times.csv", "a", newline="") as file, torch.no_grad():
        rows = csv.writer(file)
        for text in cases:
            began = time.monotonic()
            case = words.Case.parse(text)
            each = case.rows * case.cols * words.DTYPE_BYTES[case.dtype] * sum(name in words.BY_ROW for name in case.inputs)
            count = sizes.sets_needed(case, each, int(about.L2_cache_size), int(about.total_memory)) if cuda else 1
            with torch.cuda.stream(stream):
                sets = inputs.make_sets(case, device, number, count)
                judge = oracle.Oracle(sets[0])
                calls = {name: [call_of(kernels[name], case, one, words.OPS, inputs.DTYPES) for one in sets] for name in NAMES}
                first = {}
                for name in NAMES:
                    first[name] = oracle.named(case, calls[name][0]())
                    checks.judged(judge, sets[0], first[name])
                same = all(torch.equal(first["new"][key], first["old"][key]) for key in first["old"])
                if cuda:
                    clocks = {name: get("clocks").CudaClock(calls[name], stream, case) for name in rng.sample(NAMES, 3)}
                else:  # a rehearsal
                    clocks = {name: get("clocks").CpuClock(calls[name]) for name in rng.sample(NAMES, 3)}
                for turn in range(ROUNDS if cuda else 1):
                    order = [NAMES[(turn + step * (1 if turn % 2 else 2)) % 3] for step in range(3)]
                    for name in order:
                        us = median(clocks[name].turn(1, 3) if cuda else clocks[name].turn(0, 1))
                        rows.writerow([number, text, turn, name, f"{us:.4f}", int(same)])
            print(f"trial {number} {text}: {count} sets, same bits {same}, {time.monotonic() - began:.1f} s", flush=True)
            del sets, judge, calls, first, clocks
            if cuda:
                torch.cuda.empty_cache()
    with open(out / "host.csv", "a", newline="") as file, torch.no_grad():
        rows = csv.writer(file)
        for text in HOST:  # the host's time of a call: many calls that the device hardly notices
            case = words.Case.parse(text)
            one = inputs.make_sets(case, device, number, 1)[0]
            calls = {name: call_of(kernels[name], case, one, words.OPS, inputs.DTYPES) for name in NAMES}
            for turn in range(ROUNDS if cuda else 1):
                for name in rng.sample(NAMES, 3):
                    call = calls[name]
                    for _ in range(20 if cuda else 0):
                        call()
                    if cuda:
                        torch.cuda.synchronize()
                    began = time.perf_counter_ns()
                    for _ in range(host_calls):
                        call()
                    us = (time.perf_counter_ns() - began) / host_calls / 1e3
                    if cuda:
                        torch.cuda.synchronize()
                    rows.writerow([number, text, turn, name, f"{us:.4f}", 1])

def table(out):
    for file, title in (("times.csv", "device time, CUDA graphs over cold inputs"), ("host.csv", "host time of a call, 64x512")):
        found, same = defaultdict(dict), {}
        for number, text, turn, name, us, equal in csv.reader(open(out / file)):
            found[text, int(number), int(turn)][name] = float(us)
            same[text] = same.get(text, True) and equal == "1"
        print(f"\n{title}\n\n| case | old us | new us | new / old (range over trials) | control / old (range) | same bits |\n|---|--:|--:|---|---|---|")
        logs = {"new": [], "control": []}
        for text in same:
            numbers = sorted({n for t, n, _ in found if t == text})
            ratios = {name: [median(r[name] / r["old"] for (t, n, _), r in found.items() if (t, n) == (text, number)) for number in numbers] for name in logs}
            us = {name: median(r[name] for (t, *_), r in found.items() if t == text) for name in ("old", "new")}
            mean = {name: math.exp(sum(map(math.log, each)) / len(each)) for name, each in ratios.items()}
            for name in logs:
                logs[name].append(math.log(mean[name]))
            cells = [f"{mean[name]:.4f} ({min(each):.4f} to {max(each):.4f})" for name, each in ratios.items()]
            print(f"| `{text}` | {us['old']:.2f} | {us['new']:.2f} | {' | '.join(cells)} | {'yes' if same[text] else 'NO'} |")
        means = {name: math.exp(sum(each) / max(1, len(each))) for name, each in logs.items()}
        print(f"\nGeometric means: new / old {means['new']:.4f}, control / old {means['control']:.4f}.")

if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("trial", "table"))
    parser.add_argument("number", nargs="?", type=int, default=0)
    parser.add_argument("--new", default="kernels"); parser.add_argument("--old", default=".gpu/old/kernels")
    parser.add_argument("--out", type=Path, required=True); parser.add_argument("--device", default="cuda")
    parser.add_argument("--cases", nargs="+", default=CASES); parser.add_argument("--host-calls", type=int, default=1000)
    given = parser.parse_args()
    if given.what == "trial":
        trial(given.number, given.new, given.old, given.out, given.device, given.cases, given.host_calls)
    else:
        table(given.out)
PY
{ nvidia-smi; $PYTHON -c "import torch, triton, sys; print(torch.__version__, triton.__version__, sys.version)"; } > "$OUT/machine.txt" 2>&1
[ "${REHEARSE:-}" ] || timeout "${TESTS_S:-260}" $PYTHON -m pytest -q -c /dev/null --rootdir="$PWD" --import-mode=importlib --noconftest \
    -p no:cacheprovider -o pythonpath="$PWD" -o markers="gpu: needs an NVIDIA GPU" --timeout=200 \
    tests/kernels/gpu/test_gpu_norms.py tests/kernels/gpu/test_gpu_norm_wide.py tests/kernels/gpu/test_gpu_norm_modules.py \
    > "$OUT/tests.txt" 2>&1
tail -15 "$OUT/tests.txt" 2> /dev/null
rm -f "$OUT/times.csv" "$OUT/host.csv"
for number in $(seq "$TRIALS"); do
    # shellcheck disable=SC2086
    $PYTHON "$WORK/times.py" trial "$number" --out "$OUT" --old "$OLD" ${MORE:-} || echo "trial $number failed"
done
$PYTHON "$WORK/times.py" table --out "$OUT" ${MORE:-} | tee "$OUT/table.md"
