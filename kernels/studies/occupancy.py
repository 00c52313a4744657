"""What every chosen plan of our kernels compiles to, without a GPU: registers, spills, shared memory, programs an SM.

python -m kernels.studies.occupancy [--arch sm_90 sm_100] [--only PATTERN] [--markdown]

Plans of teams that differ in the size of the team alone are one: it changes what a thread waits for, and no tile.
Of one width (`TWO_PASSES`) what rows take where no team can exchange sums is listed as well.
"""

import argparse
import os
import re
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from ..cases import DTYPE_BYTES, OPS, Case, Direction
from ..norms import plans
from ..norms.plans import ForwardPlan
from ..suites import SUITES
from .facts_speed import compiled
from .launching import say

ARCHITECTURES = ("sm_90", "sm_100")
FROM = ("quack", "pr101", "models", "small", "awkward")
DTYPES = (("bf16", "fp32"), ("bf16", "bf16"), ("fp32", "fp32"))  # of rows and of weights
ROWS = 32768  # nothing is computed: there may be many
TWO_PASSES = 65536  # columns
SLAB = 64  # rows of which two passes are told: the kernels are those of all others
SHAPE = ("rows", "block", "warps")
HELPERS = ("_sum_partials",)  # kernels that no plan speaks of
BEFORE = ("_forward_sums", "_backward_sums")  # a program for each row and program of its team


@dataclass(frozen=True)
class Row:
    """One kernel of one plan."""

    architecture: str
    case: Case  # one of those that it is chosen for
    plan: ForwardPlan
    kernel: str
    registers: int  # of a thread
    spills: int  # instructions
    shared: int  # bytes of a program
    fitting: int  # programs on an SM at once
    wanted: int  # that the plan launches for each SM; 0 where they may wait for each other
    over: str | None = None  # the hard limit that it goes over, or why it does not compile

    @property
    def trouble(self) -> str | None:
        """Why it should not be chosen."""
        if self.over:
            return self.over
        found = []
        if self.spills:
            found.append(f"{self.spills} spills at {self.registers} registers")
        if self.fitting < self.wanted:
            found.append(f"{self.fitting} programs fit on an SM, {self.wanted} are launched")
        if self.plan.team > 1 and self.plan.exchange and not self.plan.programs:
            found.append("a team for each tile: not all of them run at once")
        return "; ".join(found) or None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--arch", nargs="+", default=ARCHITECTURES)
    parser.add_argument("--only", default="", help="cases in which this pattern is found")
    parser.add_argument("--markdown", action="store_true")
    chosen = parser.parse_args()
    cases = [case for case in chosen_for() if re.search(chosen.only, str(case))]
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        rows = occupancies(chosen.arch, cases, Path(folder))
        wide = [case for case in two_passes_for() if re.search(chosen.only, str(case))]
        rows += two_passes(chosen.arch, wide, Path(folder))
    shown = [row for row in rows if row.kernel not in HELPERS or row.trouble]
    for line in markdown(shown) if chosen.markdown else lines(shown):
        say(line)
    say(f"\n{sum(row.trouble is not None for row in rows)} of {len(rows)} kernels should not be chosen")


def chosen_for() -> list[Case]:
    """One case for each plan that is chosen at widths of the suites; two, where some fill its tiles and some do not."""
    widths = sorted({Case.parse(text).cols for suite in FROM for text in SUITES[suite]})
    found: dict[Any, Case] = {}
    norms = (op for op in OPS if op in ("rmsnorm", "layernorm"))
    for op, direction, dtypes in product(norms, (Direction.FWD, Direction.BWD), DTYPES):
        for cols in widths:
            case = Case(op, direction, ROWS, cols, *dtypes)
            plan = plan_of(case)
            alike = replace(plan, team=min(plan.team, 2))
            found.setdefault((op, direction, dtypes, alike, plan.block * plan.team == cols), case)
    return list(found.values())


def plan_of(case: Case) -> ForwardPlan:
    center = OPS[case.op].norm == "layernorm"
    return plans.default(case.direction, case.cols, center=center, size=DTYPE_BYTES[case.dtype])


def occupancies(architectures: Sequence[str], cases: Sequence[Case], logs: Path) -> list[Row]:
    """Compiled in a process for each architecture, all at once."""
    with ThreadPoolExecutor(len(architectures)) as pool:
        answered = pool.map(lambda one: compiled("triton", one, cases, logs, ahead=len(cases))[1], architectures)
        return [
            row
            for architecture, answers in zip(architectures, answered, strict=True)
            for case, answer in zip(cases, answers, strict=True)
            for row in _rows(architecture, case, answer, plan_of(case))
        ]


def two_passes_for() -> list[Case]:
    """One case for each plan with a team at this width."""
    norms = (op for op in OPS if op in ("rmsnorm", "layernorm"))
    found: dict[Any, Case] = {}
    for op, direction, dtypes in product(norms, (Direction.FWD, Direction.BWD), DTYPES):
        case = Case(op, direction, ROWS, TWO_PASSES, *dtypes)
        if (plan := plan_of(case)).team > 1:
            found.setdefault((op, direction, plan), case)
    return list(found.values())


def two_passes(architectures: Sequence[str], cases: Sequence[Case], folder: Path) -> list[Row]:
    """As `occupancies`, of the kernels that a team's rows go through where its programs can not exchange sums."""
    with get_context("spawn").Pool(len(architectures)) as pool:
        answered = pool.starmap(_two_passes, [(architecture, cases, folder) for architecture in architectures])
    return [
        row
        for architecture, answers in zip(architectures, answered, strict=True)
        for case, answer in zip(cases, answers, strict=True)
        for row in _rows(architecture, case, answer, replace(plan_of(case), exchange=False))
    ]


def _two_passes(architecture: str, cases: Sequence[Case], folder: Path) -> list[dict[str, Any]]:
    """In a process of its own: torch and Triton see the architecture's device in all of it."""
    import torch

    from ..facts.offline.architectures import KNOWN
    from ..facts.offline.described import cubins_of, facts_of
    from ..facts.offline.launches import Launches
    from ..facts.offline.machine import Reader
    from ..facts.offline.pretend import become, inputs_of
    from ..norms.tuning import call_of

    known = KNOWN[architecture]
    mode, launches, reader = become(known), Launches(known), Reader(known, folder / "machine-code")
    seen = []
    with mode, torch.no_grad():
        for case in cases:
            launches.clear()
            slab = replace(case, rows=SLAB)
            call_of(slab, replace(plan_of(case), exchange=False), inputs_of(slab))()
            seen.append(list({launch.kernel.hash: launch for launch in launches.seen}.values()))
    reader.facts([cubin for each in seen for cubin in cubins_of(each)])  # as slow for one as for all
    return [{"facts": facts_of(known, reader, each, (), 0)} for each in seen]


def _rows(architecture: str, case: Case, answer: Mapping[str, Any], plan: ForwardPlan) -> Iterator[Row]:
    facts = answer.get("facts") or {}
    kernels = [*facts.get("kernels", ()), *facts.get("refused", ())]
    if not kernels:
        yield Row(architecture, case, plan, "", 0, 0, 0, 0, 0, str(answer.get("reason") or answer.get("error")))
    for kernel in kernels:
        yield Row(
            architecture,
            case,
            plan,
            kernel["name"],
            kernel["registers"],
            kernel["spills"],
            kernel["shared_dynamic"] + kernel["shared_static"],
            kernel["blocks"],
            0 if kernel["name"] in HELPERS + BEFORE else plan.programs,
            kernel.get("over"),
        )


def lines(rows: Sequence[Row]) -> Iterator[str]:
    """Text in columns, a line for each kernel."""
    cells = list(_cells(rows))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def markdown(rows: Sequence[Row]) -> Iterator[str]:
    heading, *others = _cells(rows)
    for cells in (heading, ["---"] * len(heading), *others):
        yield f"| {' | '.join(cells)} |"


def _cells(rows: Sequence[Row]) -> Iterator[list[str]]:
    yield ["", "case", "kernel", "plan", "registers", "spills", "shared", "programs an SM", ""]
    for row in rows:
        yield [
            row.architecture,
            str(row.case),
            row.kernel,
            told(row.plan),
            *(str(number) for number in (row.registers, row.spills, row.shared)),
            f"{row.fitting} of {row.wanted}" if row.wanted else str(row.fitting),
            row.trouble or "",
        ]


def told(plan: ForwardPlan) -> str:
    """What differs from a plan that says nothing: `2x4096 w8 programs=2`."""
    usual = {field.name: field.default for field in fields(plan)}
    more = ((name, value) for name, value in asdict(plan).items() if value != usual[name] and name not in SHAPE)
    return " ".join([f"{plan.rows}x{plan.block}", f"warps={plan.warps}", *(f"{name}={value}" for name, value in more)])


if __name__ == "__main__":
    main()
