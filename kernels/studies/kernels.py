"""Our kernels against Quack, Inductor and Liger: the full table and the pictures.  Needs a GPU and Quack.

Everything is measured in the arena: fresh processes, right before it is timed, cold inputs, the copy ceiling of the
session.  First ours, Quack and a second Quack as the A/A control at every case, all trials; then beside ours and
Quack those that take long to get ready, with fewer trials; tuners only at the shapes of Quack's benchmark with fp32
weights.  After each step what was measured is written to DIR/kernels.json, which must not be there before; at the end,
also where an error ends it, table.md and the pictures are made of it.

    make bench-kernels ARGS="--out DIR --limit-s 540"
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

from ..arena import protocol
from ..arena.session import Cell, Contender, OutOfTime, Pace, PrestartPool, Trial
from ..cases import Case, Role
from ..norms.tuned_plans import VARIABLE
from .charts import Panel, panels
from .compared import (
    ASKED,
    BASELINE,
    CONTROL,
    OURS,
    Row,
    cases_of,
    copy_gb_s,
    goals,
    gravest,
    named,
    outcome,
    rows,
)
from .launching import contender, launched, say
from .table import TITLES, document

PACE = Pace(rounds=6)  # six rounds of three repeat from trial to trial as well as twenty of five
CODE = (*sorted((protocol.KERNELS / "norms").glob("*.py")), protocol.KERNELS / "providers" / "ours.py")
TUNERS = ("inductor-max-autotune", "quack-tuned")
AGAINST = ("quack", "inductor", "liger", *TUNERS)
DRAWN = (OURS, "quack", "inductor", "liger")


@dataclass(frozen=True)
class Step:
    """One trial: its contenders, providers by the names under which their times are kept."""

    name: str
    providers: Mapping[str, str]
    cases: tuple[Case, ...]
    number: int = 0  # of those that differ in nothing else

    def seed(self, began: str) -> int:
        """Another in each session: where it is the same, equal code keeps its places and their small advantages."""
        return zlib.crc32(f"{began}/{self.name}/{self.number}".encode())

    def paced(self, pace: Pace) -> Pace:
        """At least as many rounds, and so many that each contender stands equally often in each place."""
        whole = 2 * len(self.providers)
        return replace(pace, rounds=-(-pace.rounds // whole) * whole)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=Path("build/kernels"), metavar="DIR", help="%(default)s")
    parser.add_argument("--suites", type=_listed(ASKED), default=ASKED, help=",".join(ASKED))
    parser.add_argument("--against", type=_listed(AGAINST), default=AGAINST, help=",".join(AGAINST))
    parser.add_argument("--trials", type=int, default=3, help="of ours, Quack and the control; 0 for the others alone")
    parser.add_argument("--other-trials", type=int, default=1, help="of the others, beside ours and Quack")
    parser.add_argument("--only", default="", metavar="REGEX", help="cases in which this is found")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="what is not measured by then is left out")
    parser.add_argument("--render", type=Path, nargs="+", metavar="JSON", help="measure nothing, show these sessions")
    chosen = parser.parse_args()
    if chosen.render:
        chosen.out.mkdir(parents=True, exist_ok=True)
        render([json.loads(file.read_text()) for file in chosen.render], chosen.out)
        return
    if not torch.cuda.is_available():
        say("bench-kernels needs a GPU, and there is none: left out.")
        return
    steps = planned(chosen.suites, chosen.against, chosen.trials, chosen.other_trials, chosen.only)
    if not steps:
        parser.error("no case is left to measure")
    try:
        measure(steps, chosen.suites, chosen.out, limit_s=chosen.limit_s)
    except FileExistsError as there:
        parser.error(str(there))


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
    """The trials in the order of their worth: one of everything, all of ours and Quack, the others, the tuners.

    A case of two suites is measured with the first of them.  `only` is searched in cases as they are printed.
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
    """Take the steps, and write what there is to `out` after each.  Returns the session as it is kept.

    Raises FileExistsError where a session lies in `out`.
    """
    file = out / "kernels.json"
    if file.exists():
        raise FileExistsError(f"{file} is a session already: give another --out, or show it with --render")
    out.mkdir(parents=True, exist_ok=True)
    session = _empty(steps, suites, pace)
    deadline = time.monotonic() + limit_s

    def keep_going() -> None:
        if time.monotonic() > deadline:
            raise OutOfTime

    with tempfile.TemporaryDirectory() as folder:
        playing = _contenders(steps, Path(folder))
        ahead = PrestartPool(list(playing.values()))
        try:
            for step, following in zip(steps, [*steps[1:], None], strict=True):
                say(f"\n{step.name}, trial {step.number + 1}, {len(step.cases)} cases")
                if time.monotonic() < deadline:
                    trial = launched(
                        ahead,
                        [playing[name] for name in step.providers],
                        step.cases,
                        step.paced(pace),
                        step.number,
                        seed=step.seed(session["began"]),
                        then=[playing[name] for name in following.providers] if following else [],
                        device=device,
                        keep_going=keep_going,
                    )
                    _keep(session, step, trial, playing)
                _note_left_out(session, step, limit_s)
                _write(file, session)
        finally:
            ahead.close()
            render([session], out)
    return session


def _write(file: Path, session: Mapping[str, Any]) -> None:
    """Whole or not at all: what ends the program while it writes leaves what was there."""
    beside = file.with_suffix(".part")
    beside.write_text(json.dumps(session))
    os.replace(beside, file)


def _contenders(steps: Sequence[Step], logs: Path) -> dict[str, Contender]:
    roles = {OURS: Role.HEAD, CONTROL: Role.CONTROL}
    wanted = {name: provider for step in steps for name, provider in step.providers.items()}
    return {name: contender(roles.get(name, Role.SOTA), provider, logs, name) for name, provider in wanted.items()}


def code_of(files: Sequence[Path] = CODE) -> dict[str, str]:
    """The revision where there is a repository, and a hash of our kernels and of the tuned plans that they are to use.

    The hash is kept beside the revision since that does not tell two trees with changes apart.
    """
    tuned = Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None
    read = [file.read_bytes() for file in (*files, *([tuned] if tuned and tuned.exists() else []))]
    found = {"kernels": hashlib.sha256(b"\0".join(read)).hexdigest()[:12]}
    with suppress(OSError, subprocess.SubprocessError):
        told = subprocess.run(
            ["git", "describe", "--always", "--dirty"],
            cwd=protocol.KERNELS,
            capture_output=True,
            text=True,
            check=True,
            timeout=20,
        )
        found["revision"] = told.stdout.strip()
    return found


def _empty(steps: Sequence[Step], suites: Sequence[str], pace: Pace) -> dict[str, Any]:
    of = {suite: {*cases_of(suite)} for suite in suites}
    return {
        "began": datetime.now(UTC).isoformat(timespec="microseconds"),  # a seed is made of it
        "code": code_of(),
        "pace": {name: asdict(pace)[name] for name in ("rounds", "warm", "timed", "graph_s")},
        "stack": {},
        "driver": None,
        "ceilings": [],
        "steps": [],
        "left_out": [],
        "cases": {
            str(case): {
                "suites": [suite for suite, members in of.items() if case in members],
                "least_bytes": case.least_bytes,
                "trials": [],
                "missing": {},
            }
            for step in steps
            for case in step.cases
        },
    }


def _keep(session: dict[str, Any], step: Step, trial: Trial, playing: Mapping[str, Contender]) -> None:
    labels = {name: playing[name].label for name in step.providers}
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
        told = {name: [cell.state, cell.reason or ""] for name, cell in cells.items() if cell.state != "measured"}
        kept["missing"] = gravest(kept["missing"], told)
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
    """Cases that have no trial of this step, since its time was over."""
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
    """Write and print the table, write the pictures, and say how far the goals are met."""
    found, text = rows(sessions), document(sessions)
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
            count = f"{len(each.ratios)} of {each.asked} cases, {each.below} below, {each.failed} failed"
            say(f"{each.goal.name:45} {mean} {count}  {met}")


def pictured(found: Sequence[Row], ceiling: float | None) -> list[Panel]:
    """GB/s against columns, a panel for each op and direction."""
    wanted = []
    for key in dict.fromkeys(row.case.key for row in found):
        members = sorted((row for row in found if row.case.key == key), key=lambda row: row.case.cols)
        series = {TITLES[name]: [row.gb_s(name) for row in members] for name in DRAWN}
        series = {title: ys for title, ys in series.items() if any(ys)}
        if series:
            norm, case = key.partition(".")[0], members[0].case
            limit = ("copy ceiling", ceiling) if ceiling else None
            xs = [row.case.cols for row in members]
            wanted.append(Panel(named(norm, case.direction), xs, series, "GB/s", limit=limit))
    return wanted


if __name__ == "__main__":
    main()
