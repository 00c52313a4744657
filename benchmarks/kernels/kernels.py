"""Our kernels against Quack, Inductor and Liger: the full table and the pictures.  Needs a GPU and Quack.

The arena measures everything: fresh processes, outputs checked before timing, cold inputs, the copy ceiling of the
session.  First ours, Quack and a second Quack as the A/A control at every case, in all trials.  Then, with ours and
Quack, the implementations with a long preparation, in fewer trials; tuners only at the shapes of Quack's benchmark with
fp32 weights.  After each step the results are written to DIR/kernels.json, which must not exist before.  At the end,
also after an error, table.md and the pictures are generated from it.

    make bench-kernels ARGS="--out DIR --limit-s 540"
    make bench-kernels ARGS="--out DIR --random 100 --seed 1"    # ours and Quack at shapes drawn at random
    make bench-kernels ARGS="--out DIR --render first/kernels.json second/kernels.json"    # no GPU
"""

import argparse
import hashlib
import json
import os
import re
import subprocess
import tempfile
import time
import zlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import torch

from benchmarks.kernels.charts import Panel, panels
from benchmarks.kernels.compared import (
    ASKED,
    BASELINE,
    CONTROL,
    OURS,
    CaseTimes,
    cases_of,
    copy_gb_s,
    goals,
    most_severe,
    outcome,
    rows,
    title_of,
)
from benchmarks.kernels.drawing import suite_of
from benchmarks.kernels.table import TITLES, document
from benchmarks.kernels.trials import contender, run_prestarted, say
from kernels.arena import protocol
from kernels.arena.session import Cell, Contender, OutOfTime, Pace, ProcessPool, Trial
from kernels.cases import Case, Role
from kernels.norms.tuned_plans import VARIABLE

PACE = Pace(rounds=6)  # six rounds of three samples repeat as well between trials as twenty of five
CODE = (*sorted((protocol.KERNELS / "norms").rglob("*.py")), protocol.KERNELS / "providers" / "ours.py")
TUNERS = ("inductor-max-autotune", "quack-tuned")
AGAINST = ("quack", "inductor", "liger", "flashinfer", "vllm", *TUNERS)
DRAWN = (OURS, "quack", "inductor", "liger")


@dataclass(frozen=True)
class Step:
    """One trial; `providers` by the names under which their times are stored."""

    name: str
    providers: Mapping[str, str]
    cases: tuple[Case, ...]
    number: int = 0  # of steps that are otherwise equal

    def seed(self, began: str) -> int:
        """Different in each session: with one seed, equal code keeps its places and their small advantages."""
        return zlib.crc32(f"{began}/{self.name}/{self.number}".encode())

    def paced(self, pace: Pace) -> Pace:
        """At least as many rounds, rounded up so that each contender has each place equally often."""
        whole = 2 * len(self.providers)
        return replace(pace, rounds=-(-pace.rounds // whole) * whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/kernels"), metavar="DIR", help="%(default)s")
    parser.add_argument("--suites", type=_listed(ASKED), default=ASKED, help=",".join(ASKED))
    parser.add_argument("--against", type=_listed(AGAINST), default=AGAINST, help=",".join(AGAINST))
    parser.add_argument("--random", type=int, metavar="N", help="instead of the suites, N cases drawn at random")
    parser.add_argument("--seed", type=int, default=0, help="of the random cases; the same seed draws the same cases")
    parser.add_argument("--trials", type=int, default=3, help="of ours, Quack and the control; 0 to skip them")
    parser.add_argument("--other-trials", type=int, default=1, help="of the other implementations")
    parser.add_argument("--only", default="", metavar="REGEX", help="measure only matching cases")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="stop measuring after this many seconds")
    parser.add_argument("--render", type=Path, nargs="+", metavar="JSON", help="measure nothing; render these sessions")
    chosen = parser.parse_args()
    if chosen.render:
        chosen.out.mkdir(parents=True, exist_ok=True)
        render([json.loads(file.read_text()) for file in chosen.render], chosen.out)
        return
    suites, against = chosen.suites, chosen.against
    if chosen.random is not None:
        try:
            suites, against = (suite_of(chosen.random, chosen.seed),), (BASELINE,)
        except ValueError as wrong:
            parser.error(str(wrong))
    if not torch.cuda.is_available():
        say("Skipped: bench-kernels needs a GPU.")
        return
    steps = planned(suites, against, chosen.trials, chosen.other_trials, chosen.only)
    if not steps:
        parser.error("no case to measure; check --suites, --only and the numbers of trials")
    try:
        measure(steps, suites, chosen.out, limit_s=chosen.limit_s)
    except FileExistsError as exists:
        parser.error(str(exists))


def _listed(known: Sequence[str]) -> Any:
    def names(text: str) -> tuple[str, ...]:
        if unknown := [name for name in text.split(",") if name not in known]:
            raise argparse.ArgumentTypeError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
        return tuple(text.split(","))

    return names


# -- what is measured ------------------------------------------------------------------------------------------------


def planned(
    suites: Sequence[str], against: Sequence[str], trials: int, other_trials: int, only: str = ""
) -> list[Step]:
    """The trials by priority: ours and Quack, the other implementations, the tuners.

    A case of two suites is measured with the first of them.  `only` is a pattern for the text of cases.
    """
    cases: dict[str, tuple[Case, ...]] = {}
    for suite in suites:
        before = {case for earlier in cases.values() for case in earlier}
        cases[suite] = tuple(case for case in cases_of(suite) if case not in before and re.search(only, str(case)))
    both = {OURS: OURS, BASELINE: BASELINE}
    plain = {name: name for name in against if name not in (BASELINE, *TUNERS)}
    steps = [
        Step(suite, {**both, CONTROL: BASELINE}, cases[suite], number) for number in range(trials) for suite in suites
    ]
    if plain:
        steps += [
            Step(f"{suite} with {', '.join(plain)}", {**both, **plain}, cases[suite], number)
            for number in range(other_trials)
            for suite in suites
        ]
    # One tuner at one op and direction at a time, forward first: Quack's has 75 configurations forward, 400 backward.
    keys = sorted({case.key for case in cases.get("quack", ())}, key=lambda key: (key.endswith(".bwd"), key))
    for number, tuner, key in product(range(other_trials), TUNERS, keys):
        few = tuple(case for case in cases["quack"] if case.key == key and case.weight_dtype == "fp32")
        if tuner in against:
            steps.append(Step(f"{key} with {tuner}", {**both, tuner: tuner}, few, number))
    return [step for step in steps if step.cases]


# -- measuring -------------------------------------------------------------------------------------------------------


def measure(
    steps: Sequence[Step],
    suites: Sequence[str],
    out: Path,
    *,
    limit_s: float = float("inf"),
    pace: Pace = PACE,
    device: str = "cuda",
) -> dict[str, Any]:
    """Run the steps, and write the session to `out` after each.  Returns the session.

    Raises FileExistsError if `out` contains a session.
    """
    file = out / "kernels.json"
    if file.exists():
        raise FileExistsError(f"{file} exists: use another --out, or show it with --render")
    out.mkdir(parents=True, exist_ok=True)
    session = _empty(steps, suites, pace)
    deadline = time.monotonic() + limit_s

    def keep_going() -> None:
        if time.monotonic() > deadline:
            raise OutOfTime

    with tempfile.TemporaryDirectory() as folder:
        contenders = _contenders(steps, Path(folder))
        pool = ProcessPool(device, max(len(step.providers) for step in steps))
        try:
            for step, next_step in zip(steps, [*steps[1:], None], strict=True):
                say(f"\n{step.name}, trial {step.number + 1}, {len(step.cases)} cases")
                if time.monotonic() < deadline:
                    trial = run_prestarted(
                        pool,
                        [contenders[name] for name in step.providers],
                        step.cases,
                        step.paced(pace),
                        step.number,
                        seed=step.seed(session["began"]),
                        following=[contenders[name] for name in next_step.providers] if next_step else [],
                        device=device,
                        keep_going=keep_going,
                    )
                    _keep(session, step, trial, contenders)
                _note_left_out(session, step, limit_s)
                _write(file, session)
        finally:
            pool.close()
            render([session], out)
    return session


def _write(file: Path, session: Mapping[str, Any]) -> None:
    """Write atomically: an interruption keeps the old file."""
    unfinished = file.with_suffix(".part")
    unfinished.write_text(json.dumps(session))
    os.replace(unfinished, file)


def _contenders(steps: Sequence[Step], logs: Path) -> dict[str, Contender]:
    roles = {OURS: Role.HEAD, CONTROL: Role.CONTROL}
    wanted = {name: provider for step in steps for name, provider in step.providers.items()}
    return {name: contender(roles.get(name, Role.SOTA), provider, logs, name) for name, provider in wanted.items()}


def code_of(files: Sequence[Path] = CODE) -> dict[str, str]:
    """The git revision, if there is a repository, and a hash of our kernels and their tuned plans.

    The hash distinguishes trees with uncommitted changes.
    """
    tuned = Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
    read = [file.read_bytes() for file in (*files, *([tuned] if tuned and tuned.exists() else []))]
    found = {"kernels": hashlib.sha256(b"\0".join(read)).hexdigest()[:12]}
    with suppress(OSError, subprocess.SubprocessError):
        described = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=protocol.KERNELS,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        found["revision"] = described.stdout.strip()
    return found


def _empty(steps: Sequence[Step], suites: Sequence[str], pace: Pace) -> dict[str, Any]:
    members = {suite: {*cases_of(suite)} for suite in suites}
    return {
        "began": datetime.now(UTC).isoformat(timespec="microseconds"),  # part of the seeds
        "code": code_of(),
        "pace": {name: asdict(pace)[name] for name in ("rounds", "warm", "timed", "graph_s")},
        "stack": {},
        "driver": None,
        "ceilings": [],
        "steps": [],
        "left_out": [],
        "cases": {
            str(case): {
                "suites": [suite for suite, cases in members.items() if case in cases],
                "least_bytes": case.least_bytes,
                "trials": [],
                "missing": {},
            }
            for step in steps
            for case in step.cases
        },
    }


def _keep(session: dict[str, Any], step: Step, trial: Trial, contenders: Mapping[str, Contender]) -> None:
    labels = {name: contenders[name].label for name in step.providers}
    for label in labels.values():
        session["stack"] = session["stack"] or trial.stacks.get(label, {})
    session["driver"] = session["driver"] or next(
        (note["gpu"]["driver"] for note in trial.telemetry if "gpu" in note and "driver" in note["gpu"]), None
    )
    session["ceilings"] += [trial.ceilings] if trial.ceilings else []
    session["steps"].append(
        {
            "step": step.name,
            "trial": step.number,
            "seed": step.seed(session["began"]),
            "seconds": {what: round(s, 2) for what, s in trial.seconds.items()},
            "dropped_rounds": sum(note["when"] == "dropped a round" for note in trial.telemetry),
        }
    )
    for case in step.cases:
        cells = {name: cell for name, label in labels.items() if (cell := trial.cells.get((label, case)))}
        if not cells:
            continue
        kept = session["cases"][str(case)]
        missing = {name: [cell.state, cell.reason or ""] for name, cell in cells.items() if cell.state != "measured"}
        kept["missing"] = most_severe(kept["missing"], missing)
        kept["l2_resident"] = any(cell.extra.get("l2_resident") for cell in cells.values())
        if OURS in cells and cells[OURS].facts:
            kept["facts"] = cells[OURS].facts
        kept["trials"].append(
            {
                "step": step.name,
                "sm_mhz": next((mhz for cell in cells.values() if (mhz := cell.extra.get("sm_mhz"))), None),
                "us": {name: _rounded(cell) for name, cell in cells.items() if cell.state == "measured"},
            }
        )


def _rounded(cell: Cell) -> list[float | None]:
    return [us and round(us, 4) for us in cell.samples]


def _note_left_out(session: dict[str, Any], step: Step, limit_s: float) -> None:
    """Record the cases without a trial of this step, after the time limit."""
    done = {
        text
        for text, kept in session["cases"].items()
        if sum(trial["step"] == step.name for trial in kept["trials"]) > step.number
    }
    if left := [str(case) for case in step.cases if str(case) not in done]:
        why = f"the limit of {limit_s:.0f} s was reached"
        session["left_out"].append({"step": step.name, "trial": step.number, "cases": left, "why": why})
        say(f"{step.name}: {len(left)} of {len(step.cases)} cases left out: {why}")


# -- showing ---------------------------------------------------------------------------------------------------------


def render(sessions: Sequence[Mapping[str, Any]], out: Path) -> None:
    """Write and print the table, write the pictures, and print whether the goals are met."""
    found = rows(sessions)
    text = document(sessions)
    (out / "table.md").write_text(text)
    say(f"\n{text}")
    gpu = sessions[0]["stack"].get("device", {}).get("name", "CPU")
    ceilings = [ceiling for session in sessions if (ceiling := copy_gb_s(session))]
    for weight in ("fp32", "bf16"):
        drawn = [row for row in found if "quack" in row.suites and row.case.weight_dtype == weight]
        if wanted := pictured(drawn, median(ceilings) if ceilings else None):
            panels(
                out / f"{weight}-weight.svg",
                f"Norms in bf16 with an {weight} weight, {gpu}".replace("an bf", "a bf"),
                wanted,
            )
    for each in (outcome(goal, found) for goal in goals()):
        if each.geomean is not None or each.failed:
            met = {True: "met", False: "not met", None: "open"}[each.met] if each.goal.geomean else ""
            mean = "     " if each.geomean is None else f"{each.geomean:.3f}"
            count = f"{len(each.ratios)} of {each.wanted} cases, {each.below} below, {each.failed} failed"
            say(f"{each.goal.name:45} {mean} {count}  {met}")


def pictured(found: Sequence[CaseTimes], ceiling: float | None) -> list[Panel]:
    """GB/s against columns, one panel for each op and direction."""
    wanted = []
    for key in dict.fromkeys(row.case.key for row in found):
        members = sorted((row for row in found if row.case.key == key), key=lambda row: row.case.cols)
        series = {TITLES[name]: [row.gb_s(name) for row in members] for name in DRAWN}
        series = {title: ys for title, ys in series.items() if any(ys)}
        if series:
            norm = key.partition(".")[0]
            case = members[0].case
            limit = ("copy ceiling", ceiling) if ceiling else None
            xs = [row.case.cols for row in members]
            wanted.append(Panel(title_of(norm, case.direction), xs, series, "GB/s", limit=limit))
    return wanted


if __name__ == "__main__":
    main()
