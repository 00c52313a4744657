"""Time of dweight in one pass and with a separate kernel, by size.  Needs a GPU.

The question of Quack's pull request 101 for our own backward pass: the same plan with each way to sum the parts, and
with other numbers of programs, and therefore of parts.  All ways of a shape are checked first, and then take turns in
one process on the same memory.  docs/measurements/2026-11-21-h200-kernels/dweight-study.md has the predictions.

  python -m benchmarks.kernels.dweight.study --out DIR [--ops rmsnorm layernorm] [--suites pr101 quack] [--limit-s 120]
  python -m benchmarks.kernels.dweight.study --out DIR --render    (tables and pictures from DIR/dweight.json, no GPU)
"""

import argparse
import json
import math
import os
import random
import time
import warnings
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, replace
from multiprocessing import get_context
from pathlib import Path
from typing import Any, cast

import torch
import triton
from torch import Tensor

from benchmarks.kernels.dweight.overlap import summed
from benchmarks.kernels.dweight.page import write
from benchmarks.kernels.dweight.sums import SumShape, Way, cost, ways
from benchmarks.kernels.trials import say
from kernels.arena.sizes import COLD, calls_in_graph
from kernels.cases import DTYPE_BYTES, OPS, Case
from kernels.checks.inputs import Inputs, make, make_sets
from kernels.errors import format_exception
from kernels.metrics.clocks import event
from kernels.norms import workspaces
from kernels.norms.backward import SUM_COLS, Backward, backward
from kernels.norms.launching import processors, programs_of
from kernels.norms.plans import BackwardPlan
from kernels.norms.tuned_plans import default_of
from kernels.suites import SUITES

Call = Callable[[], Backward]
_Stream: Any = torch.cuda.Stream

GRAPH_S = 1e-3  # of one replay, at least
ROUNDS = 15
MIN_ROUNDS = 5
REPEATS = 3  # calls whose gradients must have the same bits
ROUNDING = (
    2.0**-17
)  # of the root mean square of a gradient: 64 units in the last place of fp32, far less than a missing part
COMPILERS = 12  # processes, each with a context of half a gigabyte on the device
COMPILE_S = 60


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, required=True, help="folder for dweight.json, dweight.md and pictures")
    parser.add_argument("--ops", nargs="+", default=["rmsnorm"], choices=["rmsnorm", "layernorm"])
    parser.add_argument("--suites", nargs="+", default=["pr101", "quack"], choices=["pr101", "quack"])
    parser.add_argument("--limit-s", type=float, default=120)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    parser.add_argument("--render", action="store_true")
    chosen = parser.parse_args()
    if chosen.render:
        write(chosen.out, json.loads((chosen.out / "dweight.json").read_text()))
        return
    if not torch.cuda.is_available():
        say("Skipped: dweight needs a GPU.")
        return
    chosen.out.mkdir(parents=True, exist_ok=True)
    study(cases_of(chosen.suites, chosen.ops), chosen.out, chosen.limit_s, chosen.rounds)


def cases_of(suites: Iterable[str], ops: Iterable[str]) -> list[Case]:
    """The shapes of the suites' backward RMSNorm, for each of the ops, without duplicates."""
    texts = [text for suite in suites for text in SUITES[suite] if text.startswith("rmsnorm.bwd.")]
    return list(dict.fromkeys(replace(Case.parse(text), op=op) for op in ops for text in texts))


def study(cases: Sequence[Case], out: Path, limit_s: float, rounds: int) -> None:
    """Measure shapes until the time limit, and write the results after each."""
    device = torch.device("cuda", 0)
    deadline = time.monotonic() + limit_s
    compile_ahead(cases, device)
    # Each capture keeps a workspace.
    workspaces.STORE = sum(len(ways_of(case, device)) for case in cases) + 2
    kept: dict[str, Any] = {
        "stack": _stack(device),
        "shapes": [],
        "left_out": {str(case): "not begun" for case in cases},
    }
    for number, case in enumerate(cases):
        left_s = deadline - time.monotonic()
        if left_s <= 0:
            break
        try:
            kept["shapes"].append(measured(case, device, rounds, left_s / (len(cases) - number)))
        except Exception as error:
            kept["left_out"][str(case)] = format_exception(error)
        else:
            del kept["left_out"][str(case)]
        write(out, kept)
        say(f"{case}: {kept['left_out'].get(str(case), f'{time.monotonic() - deadline + limit_s:.0f} s')}")
    not_begun = [case for case, why in kept["left_out"].items() if why == "not begun"]
    if not_begun:
        say(f"Not begun within {limit_s:.0f} s: {', '.join(not_begun)}")


def _stack(device: torch.device) -> dict[str, Any]:
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": properties.name,
        "sms": properties.multi_processor_count,
        "l2_bytes": properties.L2_cache_size,
        "torch": str(torch.__version__),
        "triton": triton.__version__,
        "cuda": torch.version.cuda,
    }


# -- what is compared ------------------------------------------------------------------------------------------------


def plan_of(case: Case) -> BackwardPlan:
    return cast(BackwardPlan, default_of(case))


def parts_of(case: Case, plan: BackwardPlan, programs: int, device: torch.device) -> int:
    tiles = math.ceil(case.rows / plan.rows)
    return programs_of(device, tiles, replace(plan, programs=programs))[0]


def ways_of(case: Case, device: torch.device) -> list[Way]:
    plan = plan_of(case)
    return ways(plan, lambda programs: parts_of(case, plan, programs, device))


def call_of(inputs: Inputs, way: Way) -> Call:
    """The plan of the case, with the sums of `way`."""
    case = inputs.case
    given = inputs.tensors
    plan = replace(plan_of(case), sum=way.sum, group=way.group, programs=way.programs)
    bias_dtype = given["weight"].dtype if "bias" in OPS[case.op].weights else None

    def call() -> Backward:
        with summed(early=way.early):
            return backward(
                given["dy"],
                given["x"],
                given["weight"],
                given["rstd"],
                given.get("mean"),
                bias_dtype=bias_dtype,
                plan=plan,
            )

    return call


def compile_ahead(cases: Sequence[Case], device: torch.device) -> None:
    """Fill Triton's cache from several processes: a kernel takes half a second or more of a core."""
    began = time.monotonic()
    jobs: dict[Any, list[tuple[Case, Way]]] = {}
    for case in cases:
        for way in ways_of(case, device):
            jobs.setdefault((case.key, case.cols, way.name), []).append((case, way))
    errors = set()
    with get_context("spawn").Pool(min(COMPILERS, os.cpu_count() or 1)) as pool:
        for compiled in [pool.apply_async(_run_small, (job,)) for job in jobs.values()]:
            try:
                compiled.get(max(0.0, began + COMPILE_S - time.monotonic()))
            except Exception as error:  # the measurement compiles it, or fails with the same error
                errors.add(f"{error!r:.300}")
    say(f"compiled ahead in {time.monotonic() - began:.1f} s{''.join(f'; not all: {each}' for each in errors)}")


def _run_small(job: Sequence[tuple[Case, Way]]) -> None:
    device = torch.device("cuda", 0)
    for case, way in job:
        call_of(make(smaller(case, way, device), device, 0), way)()
    torch.cuda.synchronize()


def smaller(case: Case, way: Way, device: torch.device) -> Case:
    """The fewest rows with the same number of parts and the same remainder, and therefore the same kernels."""
    plan = plan_of(case)
    missing = -case.rows % plan.rows  # of the last tile
    return replace(case, rows=parts_of(case, plan, way.programs, device) * plan.rows - missing)


# -- one shape -------------------------------------------------------------------------------------------------------


def measured(case: Case, device: torch.device, rounds: int, limit_s: float) -> dict[str, Any]:
    """Costs, verdicts and times of all ways of a case, as a record."""
    deadline = time.monotonic() + limit_s
    wanted = ways_of(case, device)
    set_bytes = 2 * case.rows * case.cols * DTYPE_BYTES[case.dtype]
    cold = COLD * torch.cuda.get_device_properties(device).L2_cache_size
    sets = make_sets(case, device, 1, max(2, math.ceil(cold / set_bytes)))
    calls = calls_in_graph(case, len(sets), GRAPH_S)
    wrong = compared(sets[0], wanted)
    graphs: dict[Way, torch.cuda.CUDAGraph] = {}
    stream = _Stream()
    pool = torch.cuda.graph_pool_handle()
    for way in (way for way in wanted if not wrong[way]):
        try:
            graphs[way] = _captured([call_of(inputs, way) for inputs in sets], calls, stream, pool)
        except Exception as error:
            wrong[way] = format_exception(error)
    times = timed(graphs, calls, stream, rounds, deadline)
    del graphs
    torch.cuda.empty_cache()
    return describe(case, wanted, device) | {
        "sets": len(sets),
        "calls": calls,
        "times": [{"wrong": wrong[way], "samples_us": times.get(way, [])} for way in wanted],
    }


def describe(case: Case, wanted: Sequence[Way], device: torch.device) -> dict[str, Any]:
    plan = plan_of(case)
    found = []
    for way in wanted:
        parts = parts_of(case, plan, way.programs, device)
        shape = SumShape(case.cols, parts, SUM_COLS, len(OPS[case.op].weights), plan.team, processors(device))
        found.append({"name": way.name, **asdict(way), "parts": parts, "cost": asdict(cost(way, shape))})
    return {"case": str(case), "rows": case.rows, "cols": case.cols, "plan": asdict(plan), "ways": found}


def compared(inputs: Inputs, wanted: Sequence[Way]) -> dict[Way, str]:
    """What is wrong with each way compared with the first one; empty if it is right."""
    verdicts: dict[Way, str] = {}
    with warnings.catch_warnings():
        # a team that the device refuses would use two passes instead
        warnings.filterwarnings("error", message=".*refused a cooperative launch")
        base = call_of(inputs, wanted[0])()
        for way in wanted:
            try:
                found, *others = [call_of(inputs, way)() for _ in range(REPEATS)]
                same = all(_same_bits(found, other) for other in others)
                verdicts[way] = difference(found, base) if same else "not the same bits each time"
            except Exception as error:
                verdicts[way] = format_exception(error)
    return verdicts


def difference(found: Backward, base: Backward) -> str:
    """Which gradient differs by more than rounding, and by how much of its root mean square; empty if none does."""
    for name in Backward._fields:
        one, other = getattr(found, name), getattr(base, name)
        if one is None or torch.equal(one, other):
            continue
        one32, other32 = one.float(), other.float()
        scale = other32.square().mean().sqrt()
        rounded = torch.finfo(one.dtype).eps if one.dtype is not torch.float32 else 0.0
        apart = (one32 - other32).abs()
        if not bool((apart <= ROUNDING * scale + rounded * other32.abs()).all()):
            return f"{name} is {float(apart.max() / scale):.1e} of its root mean square away"
    return ""


def _same_bits(one: Backward, other: Backward) -> bool:
    pairs = zip(one, other, strict=True)
    return all(a is None if b is None else isinstance(a, Tensor) and torch.equal(a, b) for a, b in pairs)


def timed(
    graphs: Mapping[Way, torch.cuda.CUDAGraph], calls: int, stream: Any, rounds: int, deadline: float
) -> dict[Way, list[float]]:
    """Microseconds of a call in each round; the ways of a round run in random order, without gaps.

    At least `MIN_ROUNDS`; none begins after `deadline`.
    """
    times: dict[Way, list[float]] = {way: [] for way in graphs}
    draw = random.Random(0)
    with torch.cuda.stream(stream):
        for number in range(-1, rounds):  # the first round is discarded
            if number >= MIN_ROUNDS and time.monotonic() > deadline:
                break
            order = draw.sample(list(graphs), len(graphs))
            for way in order[-1:]:
                graphs[way].replay()  # hides the host's work for the next ones
            pairs = {way: _replay(graphs[way]) for way in order}
            stream.synchronize()
            for way, (began, ended) in pairs.items():
                if number >= 0:
                    times[way].append(round(began.elapsed_time(ended) * 1e3 / calls, 4))
    return times


def _captured(each: Sequence[Call], calls: int, stream: Any, pool: Any) -> torch.cuda.CUDAGraph:
    """All graphs of a shape share a pool, so that every way writes to the same addresses."""
    graph = torch.cuda.CUDAGraph()
    held: deque[Backward] = deque(maxlen=len(each))  # otherwise few buffers would be used in turn and stay in the L2
    with torch.cuda.graph(graph, pool=pool, stream=stream):
        for number in range(calls):
            held.append(each[number % len(each)]())
    return graph


def _replay(graph: torch.cuda.CUDAGraph) -> tuple[torch.cuda.Event, torch.cuda.Event]:
    began, ended = event(), event()
    began.record()
    graph.replay()
    ended.record()
    return began, ended


if __name__ == "__main__":
    main()
