"""Regions and counts: the suites `regions` and `metrics` with the built-in providers in turns.  Needs the repository.

    python regions.py SUITE OUT.json --limit-s 120 [--device cuda] [--only REGEX]

The speed of Inductor is the baseline; a second copy of it is the control.  The table goes to the standard output.
"""

import argparse
import json
import math
import re
import sys
import tempfile
import time
from pathlib import Path
from statistics import fmean, median

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from kernels.arena.session import OutOfTime, Pace, run_trial
from kernels.cases import Case, Role
from kernels.studies.published.run import code
from kernels.studies.trials import contender
from kernels.suites import SUITES

BASELINE = "inductor"
PROVIDERS = {
    "inductor": Role.SOTA,
    "triton": Role.HEAD,
    "inductor-max-autotune": Role.RIVAL,
    "quack": Role.RIVAL,
    "eager": Role.RIVAL,
}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("suite", choices=SUITES)
    parser.add_argument("out", type=Path)
    parser.add_argument("--limit-s", type=float, default=600)
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--only", default="", metavar="REGEX")
    asked = parser.parse_args()
    out = asked.out
    cases = [Case.parse(text) for text in SUITES[asked.suite] if re.search(asked.only, text)]
    deadline = time.monotonic() + asked.limit_s
    found: dict[str, dict[str, dict]] = {}
    about = {"suite": asked.suite, "code": code(), "trials": []}

    def keep_going() -> None:
        if time.monotonic() > deadline:
            raise OutOfTime

    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as scratch:
        logs = Path(scratch)
        for trial in range(2):
            contenders = [contender(role, name, logs, name) for name, role in PROVIDERS.items()]
            contenders.append(contender(Role.CONTROL, BASELINE, logs, "control"))
            names = {one.label: one.label.split(":", 1)[1] for one in contenders}

            def measured(case, cells, trial=trial, names=names):
                for label, cell in cells.items():
                    cellar = found.setdefault(str(case), {}).setdefault(names[label], {})
                    cellar[f"trial{trial}"] = {
                        "state": cell.state,
                        "reason": cell.reason,
                        "samples": cell.samples,
                        "errors": cell.extra.get("errors"),
                    }

            try:
                got = run_trial(
                    contenders,
                    cases,
                    Pace(rounds=6),
                    device=asked.device,
                    seed=trial + 11,
                    thorough=trial == 0,
                    keep_going=keep_going,
                    measured=measured,
                )
            finally:
                out.write_text(json.dumps({**about, "cases": found}))
            about["trials"].append({"stacks": got.stacks, "ceilings": got.ceilings, "seconds": got.seconds})
            out.write_text(json.dumps({**about, "cases": found}))
            if time.monotonic() > deadline:
                break
    names = [*PROVIDERS, "control"]
    ceiling = next((trial["ceilings"].get("copy_gb_s") for trial in about["trials"]), None)
    print(f"| case | {' | '.join(names)} |\n|---|{'--:|' * len(names)}")
    for case, cells in found.items():
        counts = Case.parse(case).metric.unit not in ("us", "s", "bytes")
        shown = [_shown(cells.get(name, {}), cells.get(BASELINE, {}), name, counts) for name in names]
        print(f"| {case} | {' | '.join(shown)} |")
    print(f"\nus of the baseline by trial, then speed relative to it; counts as they are; copy {ceiling} GB/s")


def _shown(mine: dict, base: dict, name: str, counts: bool) -> str:
    values = [_median(one) for one in mine.values()]
    if not any(value is not None for value in values):
        return str(next((one["reason"] for one in mine.values()), "not measured"))[:60]
    if name == BASELINE or counts:
        return ", ".join(f"{value:.4g}" for value in values if value is not None)
    effects = [
        _median(base[trial]) / value
        for trial, one in mine.items()
        if (value := _median(one)) and base.get(trial) and _median(base[trial])
    ]
    return f"{math.exp(fmean(map(math.log, effects))):.3f}"


def _median(one: dict) -> float | None:
    samples = [sample for sample in one["samples"] if sample is not None]
    return median(samples) if samples else None


main()
