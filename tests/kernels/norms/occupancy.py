"""Registers, spills, shared memory and programs per SM of all plans of our kernels, without a GPU.

Plans that differ only in the size of a team are listed once: it does not change the tiles.  For one width
(`TWO_PASSES`) the kernels for devices whose teams cannot exchange sums are listed as well.
"""

from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, fields, replace
from itertools import product
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from kernels.cases import DTYPE_BYTES, OPS, Case, Direction
from kernels.facts.architectures import KNOWN
from kernels.norms.plans import ForwardPlan
from kernels.norms.tuned_plans import default_of
from kernels.suites import SUITES
from tests.kernels.norms.compiling import compiled

ARCHITECTURES = ("sm_90", "sm_100")
FROM = ("quack", "pr101", "models", "small", "awkward")
DTYPES = (("bf16", "fp32"), ("bf16", "bf16"), ("fp32", "fp32"))  # of rows and of weights
# Many, and few: several to an SM, or one, or several SMs to a row; nothing is computed.
ROWS = (100_000, 1000, 300, 130, 100, 60, 34, 8, 1)
# Ops whose plans are compiled: those of others are theirs.
WITH_PLANS = ("rmsnorm", "rmsnorm_residual", "rmsnorm_bias", "layernorm", "layernorm_residual")
# Columns of 16-bit rows that do not all begin on a boundary of 32 bytes: no suite has wide ones.
UNALIGNED = (13000, 15000, 20488, 30648)
TWO_PASSES = 65536  # columns
SLAB = 64  # rows of the two-pass kernels, which do not depend on it
SHAPE = ("rows", "block", "warps")
# Instructions of one thread.  RMSNorm forward with 65536 columns in one program has two on sm_90, and is the fastest.
FEW_SPILLS = 2
HELPERS = ("_sum_partials",)  # kernels without a plan
FIRST_PASS = ("_forward_sums", "_backward_sums")  # a program for each row and program of its team


@dataclass(frozen=True)
class KernelUse:
    """One kernel of one plan."""

    architecture: str
    case: Case  # one case with this plan
    plan: ForwardPlan
    kernel: str
    registers: int  # of a thread
    spills: int  # instructions
    shared: int  # bytes of a program
    fitting: int  # programs on an SM at once
    wanted: int  # programs that the plan launches for each SM; 0 if programs may wait
    over: str | None = None  # the hard limit that it exceeds, or why it does not compile

    @property
    def objection(self) -> str | None:
        """Why the plan should not be chosen; None if it is fine."""
        if self.over:
            return self.over
        found = []
        if self.spills > FEW_SPILLS:
            found.append(f"{self.spills} spills at {self.registers} registers")
        if self.fitting < self.wanted:
            found.append(f"{self.fitting} programs fit on an SM, {self.wanted} are launched")
        if self.plan.team > 1 and self.plan.exchange and not self.plan.programs:
            found.append("a team for each tile: not all of them run at once")
        return "; ".join(found) or None


def chosen_for() -> list[Case]:
    """One case for each plan at widths of the suites and `UNALIGNED`; two if only some widths fill its tiles."""
    widths = sorted({Case.parse(text).cols for suite in FROM for text in SUITES[suite]})
    found: dict[Any, Case] = {}
    for op, direction, dtypes in product(WITH_PLANS, (Direction.FWD, Direction.BWD), DTYPES):
        unaligned = UNALIGNED if DTYPE_BYTES[dtypes[0]] == 2 else ()
        for cols, rows in product((*widths, *unaligned), ROWS):
            case = Case(op, direction, rows, cols, *dtypes)
            plan = plan_of(case)
            alike = replace(plan, team=min(plan.team, 2))
            found.setdefault((op, direction, dtypes, alike, plan.span * plan.team == cols), case)
    return list(found.values())


def plan_of(case: Case, architecture: str = ARCHITECTURES[0]) -> ForwardPlan:
    return default_of(case, KNOWN[architecture].sms)


def occupancies(architectures: Sequence[str], cases: Sequence[Case], logs: Path) -> list[KernelUse]:
    """Compile the cases in one process for each architecture, at the same time."""
    with ThreadPoolExecutor(len(architectures)) as pool:
        answered = pool.map(lambda one: compiled("triton", one, cases, logs, ahead=len(cases))[1], architectures)
        return [
            row
            for architecture, answers in zip(architectures, answered, strict=True)
            for case, answer in zip(cases, answers, strict=True)
            for row in _rows(architecture, case, answer, plan_of(case, architecture))
        ]


def two_passes_for() -> list[Case]:
    """One case for each plan with a team at this width."""
    norms = (op for op in OPS if op in ("rmsnorm", "layernorm"))
    found: dict[Any, Case] = {}
    for op, direction, dtypes in product(norms, (Direction.FWD, Direction.BWD), DTYPES):
        case = Case(op, direction, ROWS[0], TWO_PASSES, *dtypes)
        if (plan := plan_of(case)).team > 1:
            found.setdefault((op, direction, plan), case)
    return list(found.values())


def two_passes(architectures: Sequence[str], cases: Sequence[Case], folder: Path) -> list[KernelUse]:
    """As `occupancies`, for the two-pass kernels, which replace teams whose programs cannot exchange sums."""
    with get_context("spawn").Pool(len(architectures)) as pool:
        answered = pool.starmap(_two_passes, [(architecture, cases, folder) for architecture in architectures])
    return [
        row
        for architecture, answers in zip(architectures, answered, strict=True)
        for case, answer in zip(cases, answers, strict=True)
        for row in _rows(architecture, case, answer, replace(plan_of(case), exchange=False))
    ]


def _two_passes(architecture: str, cases: Sequence[Case], folder: Path) -> list[dict[str, Any]]:
    """Runs in its own process, in which torch and Triton see only the fake device."""
    import torch

    from kernels.facts.machine import Reader
    from kernels.facts.offline.described import cubins_of, facts_of
    from kernels.facts.offline.launches import Launches
    from kernels.facts.offline.pretend import become, inputs_of
    from kernels.norms.tuning import call_of

    known = KNOWN[architecture]
    mode = become(known)
    launches = Launches(known)
    reader = Reader(known, folder / "machine-code")
    seen = []
    with mode, torch.no_grad():
        for case in cases:
            launches.clear()
            slab = replace(case, rows=SLAB)
            call_of(slab, replace(plan_of(case), exchange=False), inputs_of(slab))()
            seen.append(list({launch.kernel.hash: launch for launch in launches.seen}.values()))
    reader.facts([cubin for each in seen for cubin in cubins_of(each)])  # takes as long for one as for all
    return [{"facts": facts_of(known, reader, each, (), 0)} for each in seen]


def _rows(architecture: str, case: Case, answer: Mapping[str, Any], plan: ForwardPlan) -> Iterator[KernelUse]:
    facts = answer.get("facts") or {}
    kernels = [*facts.get("kernels", ()), *facts.get("refused", ())]
    if not kernels:
        yield KernelUse(architecture, case, plan, "", 0, 0, 0, 0, 0, str(answer.get("reason") or answer.get("error")))
    for kernel in kernels:
        yield KernelUse(
            architecture,
            case,
            plan,
            kernel["name"],
            kernel["registers"],
            kernel["spills"],
            kernel["shared_dynamic"] + kernel["shared_static"],
            kernel["blocks"],
            0 if kernel["name"] in HELPERS + FIRST_PASS else plan.programs,
            kernel.get("over"),
        )


def lines(rows: Sequence[KernelUse]) -> Iterator[str]:
    """Aligned text, one line for each kernel."""
    cells = list(table(rows))
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    for row in cells:
        yield "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


def table(rows: Sequence[KernelUse]) -> Iterator[list[str]]:
    """The heading and a row for each kernel."""
    yield ["", "case", "kernel", "plan", "registers", "spills", "shared", "programs an SM", ""]
    for row in rows:
        yield [
            row.architecture,
            str(row.case),
            row.kernel,
            describe_plan(row.plan),
            *(str(number) for number in (row.registers, row.spills, row.shared)),
            f"{row.fitting} of {row.wanted}" if row.wanted else str(row.fitting),
            row.objection or "",
        ]


def describe_plan(plan: ForwardPlan) -> str:
    """The plan's shape and its values other than the defaults: `2x4096 warps=8 programs=2`."""
    usual = {field.name: field.default for field in fields(plan)}
    more = ((name, value) for name, value in asdict(plan).items() if value != usual[name] and name not in SHAPE)
    return " ".join([f"{plan.rows}x{plan.block}", f"warps={plan.warps}", *(f"{name}={value}" for name, value in more)])
