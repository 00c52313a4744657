"""Ways to sum the parts of dweight: list them, predict their cost, choose by measured times.  Pure."""

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from kernels.norms.plans import BackwardPlan, Sum

GROUPS = (8, 12, 16, 32)  # parts of a group of a tree
PROGRAMS = (1, 2, 4)  # on an SM: they decide how many parts there are
TOLERANCE = 0.01  # a way that is faster by less is not worth its code

# Assumptions of the prediction, which the study refuted (dweight-study.md in docs/measurements/).
LAUNCH_US = 1.25  # of one more kernel in a CUDA graph: 1 to 1.5
SM_BYTES_US = 100e3  # 100 GB/s is what one SM reads from the L2
BYTES = 4  # of a sum, fp32


@dataclass(frozen=True)
class Way:
    sum: Sum
    programs: int  # on an SM
    group: int = 0
    early: bool = True  # launch the separate kernel during the first one, if the device supports it
    again: bool = False  # a second copy, to see how much equal code differs

    @property
    def name(self) -> str:
        """Without the number of programs."""
        tree = f" of {self.group}" if self.sum is Sum.TREE else ""
        return f"{self.sum}{tree}{'' if self.early else ', not early'}{', again' if self.again else ''}"

    @property
    def fused(self) -> bool:
        return self.sum is not Sum.SEPARATE


def ways(plan: BackwardPlan, parts_of: Callable[[int], int]) -> list[Way]:
    """The ways to compare; first the separate kernel of the chosen plan.  `parts_of`: parts by programs per SM.

    A team keeps the number of programs of its plan, because all its programs must run at once.  Numbers of programs
    with the same parts count once; a tree needs more parts than a group has.
    """
    counts: dict[int, int] = {}
    for programs in (plan.programs, *(() if plan.team > 1 else PROGRAMS)):
        counts.setdefault(parts_of(programs), programs)
    first = Way(Sum.SEPARATE, plan.programs)
    found = [first, Way(Sum.SEPARATE, plan.programs, again=True)]
    if plan.team == 1:  # the kernel after that of a team is never launched early
        found.append(Way(Sum.SEPARATE, plan.programs, early=False))
    for parts, programs in counts.items():
        found += [Way(Sum.SEPARATE, programs), Way(Sum.LAST, programs)]
        found += [Way(Sum.TREE, programs, group) for group in GROUPS if group < parts]
    return list(dict.fromkeys(found))


# -- what each should cost -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SumShape:
    cols: int
    parts: int
    sum_cols: int  # of a program of the separate kernel
    gradients: int = 1  # that are summed: dweight, and dbias where there is one
    team: int = 1
    sms: int = 132


@dataclass(frozen=True)
class Cost:
    written: int  # bytes; nearly all stay in the L2
    read: int
    us: float  # lower bound of the time that the way adds after the last row


def cost(way: Way, shape: SumShape) -> Cost:
    """An SM reads the parts that it sums one after the other; the SM with most of them determines the time.

    A lower bound: it ignores the latency of atomics and the total bandwidth of the L2.
    """
    row = shape.cols * BYTES * shape.gradients
    if way.sum is Sum.SEPARATE:
        programs = math.ceil(shape.cols / shape.sum_cols) * shape.gradients
        one = math.ceil(programs / shape.sms) * shape.parts * min(shape.cols, shape.sum_cols) * BYTES
        return Cost(shape.parts * row, shape.parts * row, LAUNCH_US + one / SM_BYTES_US)
    own = math.ceil(shape.cols / shape.team) * BYTES * shape.gradients  # of a part, what one member of a team adds up
    if way.sum is Sum.LAST:
        return Cost(shape.parts * row, shape.parts * row, shape.parts * own / SM_BYTES_US)
    groups = math.ceil(shape.parts / way.group)
    moved = (shape.parts + groups) * row
    return Cost(moved, moved, (min(way.group, shape.parts) + groups) * own / SM_BYTES_US)


def expected(plan: BackwardPlan, cols: int, sum_cols: int, sms: int = 132) -> str:
    """A row of the table in dweight-study.md: µs of each way for this number of columns and very many rows."""
    parts = plan.programs * sms // plan.team
    shape = SumShape(cols, parts, sum_cols, team=plan.team, sms=sms)
    trees = [cost(Way(Sum.TREE, plan.programs, group), shape).us for group in GROUPS if group < parts]
    separate = cost(Way(Sum.SEPARATE, plan.programs), shape)
    last = cost(Way(Sum.LAST, plan.programs), shape)
    label = f"{cols}, teams of {plan.team}" if plan.team > 1 else str(cols)
    cells = [label, str(parts), f"{separate.written / 1e6:.1f} MB", *(f"{us:.1f}" for us in (separate.us, last.us))]
    return f"| {' | '.join(cells)} | {min(trees):.1f} |"


# -- which one the times speak for -----------------------------------------------------------------------------------


@dataclass(frozen=True)
class Measured:
    """Times of the ways relative to the separate one, with the same plan and parts, at one number of rows."""

    rows: int
    cols: int
    parts: int
    ratios: Mapping[str, float]  # by name of a fused way


def choice(measured: Iterable[Measured]) -> dict[tuple[int, int], str]:
    """The best way by (columns, parts), in their order.

    A fused way is chosen if its geometric mean over the numbers of rows is faster than the separate one by more than
    `TOLERANCE`, and it is slower by more than that at none of them; of several, the fastest.  Ways that were not
    measured at all numbers of rows are ignored.
    """
    by_key: dict[tuple[int, int], list[Measured]] = {}
    for one in measured:
        by_key.setdefault((one.cols, one.parts), []).append(one)
    return {key: _best([one.ratios for one in by_key[key]]) for key in sorted(by_key)}


def _best(ratios: Sequence[Mapping[str, float]]) -> str:
    means = {
        name: geometric_mean([each[name] for each in ratios])
        for name in ratios[0]
        if all(name in each and each[name] <= 1 + TOLERANCE for each in ratios)
    }
    ahead = {name: mean for name, mean in means.items() if mean < 1 - TOLERANCE}
    return min(ahead, key=lambda name: ahead[name]) if ahead else str(Sum.SEPARATE)


def geometric_mean(values: Sequence[float]) -> float:
    return math.exp(fmean(map(math.log, values)))
