"""Study 3: sum dweight in the backward kernel of RMSNorm, or in a kernel of its own."""

from collections.abc import Sequence
from itertools import product

from ..arena.protocol import built_in
from ..arena.session import Pace
from ..cases import Case
from .results import Results
from .s1 import EAGER, INDUCTOR, QUACK, arm_of_study
from .study import Arm, Conclusion, Source, Study, StudyFigure, StudyReport, StudyStep, StudyTable
from .tabulating import NONE, microseconds, times

ROWS = tuple(4096 << power for power in range(5))
COLUMNS = (256, 512, 1024, 2048, 3072, 4096, 6144, 8192)
GROUP = 16  # parts of a group of the tree
FUSED = ("last", "tree")
NOT_SLOWER = 1.005  # of the time; copies of equal code differ by as much
MIN_CASES = 8  # that decide a claim
# The source's speed of the fused sum relative to the separate one on a GB200, by columns: the most and the least.
PUBLISHED = {
    256: (1.41, 0.95),
    512: (1.60, 1.01),
    1024: (1.40, 0.97),
    2048: (1.07, 1.02),
    3072: (0.94, 0.90),
    4096: (0.88, 0.82),
}
CHOSEN_UP_TO = 2048  # columns: the source fuses up to there

SEPARATE = arm_of_study("separate", "a kernel of its own", "norms:DweightBy", sum="separate")
LAST = arm_of_study("last", "the last program", "norms:DweightBy", sum="last")
TREE = arm_of_study("tree", "a tree of last programs", "norms:DweightBy", sum="tree", group=GROUP)
OURS = Arm("triton", "ours, chosen by size", built_in("triton"))


def steps(device: str, quick: bool) -> list[StudyStep]:
    if device == "cpu":  # our kernels need a GPU: the same question between eager, which sums apart, and Inductor
        cases = tuple(f"rmsnorm.bwd.{rows}x{cols}.fp32" for rows, cols in ((64, 256), (256, 512)))
        return [StudyStep("dweight", (EAGER, INDUCTOR), cases, 1, Pace(rounds=3))]
    shapes = product(ROWS[::2], COLUMNS[::3]) if quick else product(ROWS, COLUMNS)
    cases = tuple(f"rmsnorm.bwd.{rows}x{cols}.bf16-fp32" for rows, cols in shapes)
    return [StudyStep("dweight", (SEPARATE, LAST, TREE, OURS, QUACK), cases, 1 if quick else 2)]


def report(results: Results) -> StudyReport:
    cases = sorted(results.cases, key=lambda case: (_shape(case)[1], _shape(case)[0]))
    columns = sorted({_shape(case)[1] for case in cases})
    if not any(results.value("separate", case) for case in cases):
        return StudyReport((), (_times(results, cases),))
    return StudyReport(
        findings=tuple(_findings(results, cases)),
        tables=(_crossover(results, cases, columns), _times(results, cases)),
        figures=tuple(_figure(results, cases, columns, arm) for arm in FUSED),
    )


def _shape(case: str) -> tuple[int, int]:
    parsed = Case.parse(case)
    return parsed.rows, parsed.cols


def _speeds(results: Results, cases: Sequence[str], cols: int) -> dict[str, float]:
    """By case of this width, the speed of the better fused way relative to the separate kernel."""
    found = {}
    for case in cases:
        ratios = [one.inverse.ratio for arm in FUSED if (one := results.ratio(arm, "separate", case))]
        if _shape(case)[1] == cols and ratios:
            found[case] = max(ratios)
    return found


def _findings(results: Results, cases: Sequence[str]) -> list[Conclusion]:
    all_speeds = {
        case: speed
        for cols in {_shape(case)[1] for case in cases}
        for case, speed in _speeds(results, cases, cols).items()
    }
    narrow = [speed for case, speed in all_speeds.items() if _shape(case)[1] <= CHOSEN_UP_TO]
    wide = [speed for case, speed in all_speeds.items() if _shape(case)[1] > CHOSEN_UP_TO]
    found = []
    for claim, speeds, gains in (
        (f"Up to {CHOSEN_UP_TO} columns the fused sum is faster", narrow, narrow),
        (f"Above {CHOSEN_UP_TO} columns the separate kernel is faster", wide, [1 / speed for speed in wide]),
    ):
        text = (
            f"speed of the better fused way: {min(speeds):.3f} to {max(speeds):.3f} in {len(speeds)} cases"
            if speeds
            else "not measured"
        )
        found.append(Conclusion(claim, text, _always_faster(gains)))
    chosen = results.geomean("triton", "separate", cases)
    against = results.geomean("triton", "quack", cases)
    text = (
        f"our choice by size has {times(chosen and chosen.inverse)} of the speed of the separate kernel and "
        f"{times(against and against.inverse)} of Quack's"
    )
    compared = [case for case in cases if results.ratio("triton", "separate", case)]
    fast = chosen.ratio < NOT_SLOWER if chosen and len(compared) >= MIN_CASES else None
    found.append(Conclusion("A choice by size is at least as fast as the separate kernel", text, fast))
    return found


def _always_faster(speeds: Sequence[float]) -> bool | None:
    """Is one way faster in every case?  None where a few cases, or a difference like that of equal code, decide it."""
    if len(speeds) < MIN_CASES:
        return None
    if min(speeds) > 1:
        return True
    return False if min(speeds) < 1 / NOT_SLOWER else None


def _crossover(results: Results, cases: Sequence[str], columns: Sequence[int]) -> StudyTable:
    rows = []
    for cols in columns:
        speeds = list(_speeds(results, cases, cols).values())
        published = PUBLISHED.get(cols)
        theirs = f"{published[0]:.2f} … {published[1]:.2f}" if published else NONE
        ours = f"{max(speeds):.3f} … {min(speeds):.3f}" if speeds else NONE
        rows.append((str(cols), theirs, ours))
    note = (
        "Above 1 the better fused way is faster. The source measured its own kernels on a GB200; its fused sum is not "
        "in Quack 0.6.5, which has a separate kernel."
    )
    return StudyTable("Fused over separate, by columns", ("columns", "source", "measured"), tuple(rows), note)


def _times(results: Results, cases: Sequence[str]) -> StudyTable:
    rows = [(case, *(microseconds(results.value(arm, case)) for arm in results.arms)) for case in cases]
    return StudyTable("Microseconds", ("case", *results.arms), tuple(rows))


def _figure(results: Results, cases: Sequence[str], columns: Sequence[int], arm: str) -> StudyFigure:
    rows = sorted({_shape(case)[0] for case in cases})
    by_shape = {_shape(case): case for case in cases}

    def speed(shape: tuple[int, int]) -> float | None:
        found = results.ratio(arm, "separate", by_shape[shape]) if shape in by_shape else None
        return None if found is None else found.inverse.ratio

    series = {f"{count:,} rows": tuple(speed((count, cols)) for cols in columns) for count in rows}
    title = f"dweight by {'the last program' if arm == 'last' else 'a tree'}: speed relative to a kernel of its own"
    return StudyFigure(title, "columns", "speed", tuple(map(float, columns)), series, ("equal", 1.0))


STUDY = Study(
    "s3",
    "Sum dweight in the backward kernel, or in one of its own",
    "At which sizes is a fused sum of the weight gradient faster than a second kernel?",
    Source("Quack, pull request 101", "https://github.com/Dao-AILab/quack/pull/101", "GB200"),
    steps,
    report,
)
