"""Repeatability of the arena, compared with the usual ways to time.  Needs a GPU and Quack.

The ratio Inductor/Quack and an A/A of Quack over full restarts, each of some trials of fresh processes, and Triton's
do_bench and do_bench_cudagraph in the same run.

    make bench-arena ARGS="--out arena.json"
"""

import argparse
import json
import math
import tempfile
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median, stdev
from typing import Any

import torch

from benchmarks.kernels.trials import IMPORTS, contender, open_process, run_prestarted, say
from kernels.arena.channel import ContenderLost
from kernels.arena.session import Cell, Contender, Pace, ProcessPool
from kernels.cases import Case, Role

RESTARTS = 8
PACE = Pace()  # that of a run of up to 60 cases
# Trials of one restart: trials vary, and more at small sizes.
SPREAD = {
    "rmsnorm.fwd.32768x1024.bf16-fp32": 5,
    "rmsnorm.fwd.8192x8192.bf16-fp32": 3,
    "rmsnorm.fwd.4096x1024.bf16-fp32": 5,
    "rmsnorm.fwd.1024x512.bf16-fp32": 3,
}

Times = dict[str, list[list[float | None]]]  # by contender: trials of rounds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="write all figures to this JSON file")
    parser.add_argument("--restarts", type=int, default=RESTARTS)
    chosen = parser.parse_args()
    if not torch.cuda.is_available():
        say("Skipped: bench-arena needs a GPU.")
        return
    with tempfile.TemporaryDirectory() as folder:
        kept = spread(chosen.restarts, Path(folder))
    if chosen.out:
        chosen.out.write_text(json.dumps({"spread": kept}))


# -- spread ----------------------------------------------------------------------------------------------------------


def spread(restarts: int, logs: Path) -> dict[str, Any]:
    contenders = [
        contender(Role.SOTA, "quack", logs),
        contender(Role.CONTROL, "quack", logs),
        contender(Role.HEAD, "inductor", logs),
    ]
    wanted = {Case.parse(text): trials * restarts for text, trials in SPREAD.items()}
    kept, stack = _measure(contenders, wanted)
    peers = _usual_ways([str(case) for case in wanted], restarts, logs)
    say(f"\nSpread of the ratio over {restarts} restarts; {PACE.rounds} rounds of {PACE.warm} + {PACE.timed} replays")
    say(json.dumps(stack))
    say(f"{'case':34} {'trials':>8} {'GPU s':>6} {'Inductor/Quack':>24} {'spread':>7} {'A/A':>24} {'spread':>7}")
    for text, trials in SPREAD.items():
        times, gpu_s = kept[text]
        both = [_restarted(times, label, trials) for label in ("head:inductor", "control:quack")]
        say(f"{text:34} {trials:8} {gpu_s:6.2f}   {'  '.join(_range(r) for r in both)}   A/A mean {_bias(times)}")
    say(f"\nThe usual ways, {restarts} restarts of one process with both sides")
    for text, answers in peers.items():
        for name in ("do_bench", "cudagraph"):
            took = median([a[f"{name}_s"] for a in answers] or [math.nan])
            say(f"{text:34} {name:10} {_range([a[name] for a in answers])}  {took:.2f} s")
    return {"stack": stack, "spread": {text: times for text, (times, _) in kept.items()}, "usual": peers}


def _measure(
    contenders: Sequence[Contender], wanted: dict[Case, int]
) -> tuple[dict[str, tuple[Times, float]], dict[str, Any]]:
    """Run trials until each case took part in as many as it needs; also the stack of Quack."""
    times: dict[str, Times] = {str(case): {one.label: [] for one in contenders} for case in wanted}
    gpu_s: dict[str, list[float]] = {str(case): [] for case in wanted}
    pool = ProcessPool("cuda", len(contenders))
    stack: dict[str, Any] = {}
    try:
        for number in range(max(wanted.values())):
            cases = [case for case, trials in wanted.items() if number < trials]
            trial = run_prestarted(pool, contenders, cases, PACE, number)
            stack = stack or {**trial.stacks.get("sota:quack", {}), **trial.ceilings}
            for case in cases:
                cells = [trial.cells[one.label, case] for one in contenders]
                for one, cell in zip(contenders, cells, strict=True):
                    times[str(case)][one.label].append(cell.samples or [None])
                # of the two contenders of a ratio
                gpu_s[str(case)].append(sum(_gpu_s(cell, PACE) for cell in (cells[0], cells[-1])))
    finally:
        pool.close()
    return {text: (times[text], median(gpu_s[text])) for text in times}, stack


def _gpu_s(cell: Cell, pace: Pace) -> float:
    if not cell.samples:
        return math.nan
    calls = int(cell.extra["calls"]) * pace.rounds * (pace.warm + pace.timed)
    return median(us for us in cell.samples if us) * calls / 1e6


def _effects(times: Times, label: str) -> list[float | None]:
    """Log of the time over Quack's in each trial, the median over its rounds; None if one is missing."""
    effects: list[float | None] = []
    for mine, quack in zip(times[label], times["sota:quack"], strict=True):
        pairs = [math.log(a / b) for a, b in zip(mine, quack, strict=False) if a and b]
        effects.append(median(pairs) if pairs else None)
    return effects


def _restarted(times: Times, label: str, trials: int) -> list[float]:
    """The ratio of each restart."""
    effects = _effects(times, label)
    groups = ([e for e in effects[first : first + trials] if e is not None] for first in range(0, len(effects), trials))
    return [math.exp(fmean(group)) for group in groups if group]


def _bias(times: Times) -> str:
    effects = [e for e in _effects(times, "control:quack") if e is not None]
    if len(effects) < 2:
        return "–"
    return f"{fmean(effects):+.3%} ± {stdev(effects) / math.sqrt(len(effects)):.3%} ({len(effects)} trials)"


def _range(ratios: Sequence[float]) -> str:
    if not ratios:
        return f"{'not measured':>25}"
    spread = (max(ratios) - min(ratios)) / fmean(ratios)
    return f"{min(ratios):.4f} to {max(ratios):.4f} {spread:8.2%}"


def _usual_ways(cases: Sequence[str], restarts: int, logs: Path) -> dict[str, list[dict[str, float]]]:
    found: dict[str, list[dict[str, float]]] = {text: [] for text in cases}
    processes = [open_process(["-m", f"{__package__}.do_bench"], logs / "do_bench", IMPORTS) for _ in range(restarts)]
    try:
        for process in processes:
            for text in cases:
                found[text].append(process.ask({"case": text}, 240))
            process.close()
    except ContenderLost as lost:
        say(f"do_bench: {lost}")
    finally:
        for process in processes:
            process.close()
    return found


if __name__ == "__main__":
    main()
