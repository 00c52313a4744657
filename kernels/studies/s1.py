"""Study 1: torch.compile against Quack for LayerNorm and RMSNorm."""

from collections.abc import Sequence

from ..arena.protocol import built_in
from ..arena.session import Pace
from ..cases import Case, Direction
from .results import Estimate, Results
from .study import PACE, Arm, Conclusion, Source, Study, StudyFigure, StudyReport, StudyStep, StudyTable
from .tabulating import because, percent, times, whole

SHAPES = (*((32768, 256 << power) for power in range(9)), (16384, 131072), (8192, 262144))
SMALL_SHAPES = ((64, 256), (64, 1024), (64, 2048))  # on a CPU
NORMS = ("rmsnorm", "layernorm")
WIDE = 65536  # columns: rows that one program cannot hold
MIN_CASES = 8  # that decide a claim about the grid
MIN_EACH_SIDE = 4  # cases up to the threshold, and above it, that decide whether it is right
NEGLIGIBLE = 0.01  # of the speed
AS_FAST = 0.98  # of the time: a reduction that needs no more than the other one, but for noise
TUNED = ("max-autotune", "coordinate-descent")
HALF, NEAR = 0.67, 0.8  # speeds relative to Quack that count as half of it, and as near it
FIRST_COLUMNS = SHAPES[0][1]
LIMIT = 1024  # columns up to which Inductor makes a persistent reduction
AROUND = (512, 768, 1024, 1280, 1536, 2048, 3072, 4096, 8192)  # columns

QUACK = Arm("quack", "Quack", built_in("quack"))
EAGER = Arm("eager", "eager", built_in("eager"))
INDUCTOR = Arm("inductor", "torch.compile", built_in("inductor"))
MAX_AUTOTUNE = Arm("max-autotune", "max-autotune", built_in("inductor-max-autotune"))
COORDINATE = Arm("coordinate-descent", "coordinate descent", built_in("inductor-coordinate-descent"))
DYNAMIC = Arm("dynamic", "dynamic rows", built_in("inductor-dynamic"))


def arm_of_study(name: str, title: str, place: str, **options: object) -> Arm:
    """An arm whose provider is `module:Class` of `benchmarks/kernels/published/arms`."""
    return Arm(name, title, {**built_in(name), "study": place, "options": options})


def _without_reset(shapes: Sequence[tuple[int, int]]) -> Arm:
    """It begins with the first two shapes of the sweep: from the second on, its code is for any size."""
    return arm_of_study("without-reset", "one torch.compile, no reset", "norms:WithoutReset", sweep=shapes[:2])


LOOPED = arm_of_study("looped", "looped reduction", "norms:Patched", patches={"triton.persistent_reductions": False})
PERSISTENT = arm_of_study("persistent", "persistent reduction", "norms:AlwaysPersistent")


def steps(device: str, quick: bool) -> list[StudyStep]:
    """The widest cases have few arms at once: all share the memory of the GPU.

    Code for any size is slow to compile, and backward far slower than Quack, so that it has a step of its own, forward
    first.  Tuning with cold caches takes most of the time, so that it is last.
    """
    if device == "cpu":
        cases = _cases(SMALL_SHAPES, "fp32")
        return [StudyStep("modes", (INDUCTOR, EAGER, _without_reset(SMALL_SHAPES)), cases, 1, Pace(rounds=3))]
    shapes = SHAPES[2:9:3] if quick else SHAPES
    trials = 1 if quick else 2
    narrow, wide = (
        _cases([shape for shape in shapes if (shape[1] < WIDE) is is_narrow], "bf16-fp32")
        for is_narrow in (True, False)
    )
    sweep = tuple(sorted((*narrow, *wide), key=lambda case: Case.parse(case).direction is Direction.BWD))
    around = tuple(f"rmsnorm.{way}.16384x{cols}.bf16-fp32" for cols in AROUND for way in ("fwd", "bwd"))
    return [
        StudyStep("modes", (QUACK, INDUCTOR, DYNAMIC), narrow, trials, PACE),
        StudyStep("reset", (QUACK, INDUCTOR, _without_reset(SHAPES)), sweep, trials, PACE),
        StudyStep("wide", (QUACK, INDUCTOR), wide, trials, PACE),
        StudyStep("persistent", (INDUCTOR, PERSISTENT, LOOPED), around[::3] if quick else around, trials, PACE),
        StudyStep("tuned", (QUACK, INDUCTOR, MAX_AUTOTUNE, COORDINATE), _widths_apart(shapes), trials, PACE),
    ]


def _cases(shapes: Sequence[tuple[int, int]], dtypes: str) -> tuple[str, ...]:
    """All norms and directions of a shape before the next shape: a run that is cut off has whole shapes."""
    return tuple(
        f"{op}.{way}.{rows}x{cols}.{dtypes}" for rows, cols in shapes for op in NORMS for way in ("fwd", "bwd")
    )


def _widths_apart(shapes: Sequence[tuple[int, int]]) -> tuple[str, ...]:
    """All cases, one norm before the other: a run that is cut off has widths from the whole range.

    Backward passes over the widest rows are left out: with five arms they do not fit into the memory of an H200.
    """
    spread = (*shapes[::4], *shapes[2::4], *shapes[1::2])
    cases = [Case.parse(case) for case in _cases(spread, "bf16-fp32")]
    fit = [case for case in cases if case.direction is Direction.FWD or case.cols < WIDE]
    return tuple(str(case) for case in sorted(fit, key=lambda case: NORMS.index(case.op)))


# -- what follows ----------------------------------------------------------------------------------------------------


def report(results: Results) -> StudyReport:
    cases = [case for case in results.cases if results.value("inductor", case)]
    baseline = "quack" if any(results.value("quack", case) for case in cases) else "eager"
    keys = list(dict.fromkeys(Case.parse(case).key for case in cases))
    grid = [case for case in cases if results.value(baseline, case)]
    return StudyReport(
        findings=tuple(_findings(results, grid, baseline)),
        tables=(
            _geomeans(results, grid, keys, baseline),
            *(_each_case(results, grid, key) for key in keys if _of(grid, key)),
            *_persistent_table(results),
        ),
        figures=tuple(_figure(results, _of(grid, key), key) for key in keys if len(_of(grid, key)) > 1),
    )


def _of(cases: Sequence[str], key: str) -> list[str]:
    return sorted((case for case in cases if Case.parse(case).key == key), key=_columns)


def _columns(case: str) -> int:
    return Case.parse(case).cols


def _speed(results: Results, arm: str, baseline: str, cases: Sequence[str]) -> Estimate | None:
    found = results.geomean(arm, baseline, cases)
    return None if found is None else found.inverse


def _findings(results: Results, cases: Sequence[str], baseline: str) -> list[Conclusion]:
    return [
        _without_a_reset(results, cases, baseline),
        _with_a_reset(results, cases, baseline),
        _tuning(results, cases),
        _threshold(results),
        _wide(results, cases, baseline),
    ]


def _faster_than(results: Results, arm: str, baseline: str, bound: float, cases: Sequence[str]) -> bool | None:
    """Does the mean of the speeds exceed a bound?  None where a few cases decide, or a single one.

    One decides if leaving it out changes the answer.
    """

    def exceeds(those: Sequence[str]) -> bool | None:
        return _exceeds(_speed(results, arm, baseline, those), bound)

    found = exceeds(cases)
    without_one = (exceeds([*cases[:at], *cases[at + 1 :]]) for at in range(len(cases)))
    return found if len(cases) >= MIN_CASES and all(one == found for one in without_one) else None


def _about_quack(holds: bool | None, baseline: str) -> bool | None:
    """The claims are about Quack."""
    return holds if baseline == "quack" else None


def _exceeds(found: Estimate | None, bound: float) -> bool | None:
    """By the interval over trials, which may leave it open; a single trial decides by its ratio."""
    if found is None:
        return None
    return found.ratio > bound if found.low is None else found.exceeds(bound)


def _no(exceeds: bool | None) -> bool | None:
    return None if exceeds is None else not exceeds


def _from_trials(*found: Estimate | None) -> str:
    """The end of a finding: a single trial is named, because its ratio has no interval."""
    return " (a single trial)" if any(one is not None and one.low is None for one in found) else ""


def _without_a_reset(results: Results, cases: Sequence[str], baseline: str) -> Conclusion:
    claim = "(a) One compiled function for all shapes, without a reset, has about half of Quack's speed (forward)"
    beyond = [case for case in cases if Case.parse(case).direction is Direction.FWD and _columns(case) > FIRST_COLUMNS]
    measured = [case for case in beyond if results.value("without-reset", case)]
    found = _speed(results, "without-reset", baseline, measured)
    own = _speed(results, "without-reset", "inductor", measured)
    if found is None:
        return Conclusion(claim, "not measured", None)
    text = (
        f"from the second shape on, {times(found)} of the speed of {baseline} over {_count(measured)}, and "
        f"{times(own)} of its own speed with a reset{_from_trials(found, own)}"
    )
    holds = _no(_faster_than(results, "without-reset", baseline, HALF, measured))
    return Conclusion(claim, text, _about_quack(holds, baseline))


def _with_a_reset(results: Results, cases: Sequence[str], baseline: str) -> Conclusion:
    claim = "(b) With a reset between shapes, torch.compile is near Quack"
    found = _speed(results, "inductor", baseline, cases)
    if found is None:
        return Conclusion(claim, "not measured", None)
    text = f"{times(found)} of the speed of {baseline} over {_count(cases)}{_from_trials(found)}"
    holds = _faster_than(results, "inductor", baseline, NEAR, cases)
    return Conclusion(claim, text, _about_quack(holds, baseline))


def _tuning(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "(c) Autotuning is faster than the defaults, which could therefore be better"
    measured = [case for case in cases if all(results.value(arm, case) for arm in TUNED)]
    speeds = {arm: found for arm in TUNED if (found := _speed(results, arm, "inductor", measured))}
    if not speeds:
        return Conclusion(claim, "not measured", None)
    text = "; ".join(f"{arm}: {times(one)}" for arm, one in speeds.items())
    faster = [_faster_than(results, arm, "inductor", 1 + NEGLIGIBLE, measured) for arm in speeds]
    holds = True if True in faster else None if None in faster else False
    text = f"speed relative to the default over {_count(measured)}: {text}{_from_trials(*speeds.values())}"
    return Conclusion(claim, text, holds)


def _count(cases: Sequence[str]) -> str:
    return f"{len(cases)} case{'s' * (len(cases) != 1)}"


def _threshold(results: Results) -> Conclusion:
    claim = f"(d) Up to {LIMIT} columns a persistent reduction is right, above a looped one"
    measured = {case: found for case in results.cases if (found := results.ratio("looped", "persistent", case))}
    ratios = {case: found for case, found in measured.items() if not _same_code(results, case)}
    same = f"; {len(measured) - len(ratios)} cases ran the same code in both" if len(measured) > len(ratios) else ""
    below = [one for case, one in ratios.items() if _columns(case) <= LIMIT]
    above = [one for case, one in ratios.items() if _columns(case) > LIMIT]
    if not below or not above:
        return Conclusion(claim, f"not measured{same}", None)
    # A distance from 1 that is not noise: with an interval for each of many cases, some would exclude 1 by chance.
    slower = [_no(_exceeds(one, AS_FAST)) for one in below]
    faster = [_exceeds(one, 1 / AS_FAST) for one in above]
    text = (
        f"looped over persistent: {_range(below)} up to {LIMIT} columns, {_range(above)} above; above, the persistent "
        f"one is faster in {faster.count(True)} of {len(above)} cases{_from_trials(*ratios.values())}{same}"
    )
    wrong = [*slower, *faster]
    holds = False if True in wrong else None if None in wrong else True
    return Conclusion(claim, text, holds if min(len(below), len(above)) >= MIN_EACH_SIDE else None)


def _same_code(results: Results, case: str) -> bool:
    """Did both switches lead to the same code and settings?  The backward pass, for one, sums columns in any case."""
    mine, other = (
        [results.fact(arm, case, what) for what in ("code", "config", "registers", "shared")]
        for arm in ("looped", "persistent")
    )
    return mine[0] is not None and mine == other


def _range(found: Sequence[Estimate]) -> str:
    ratios = [one.ratio for one in found]
    return f"{min(ratios):.2f} to {max(ratios):.2f}"


def _wide(results: Results, cases: Sequence[str], baseline: str) -> Conclusion:
    claim = "Quack stays ahead at the widest rows, where one program cannot hold a row"
    wide = [case for case in cases if _columns(case) >= WIDE]
    found = _speed(results, "inductor", baseline, wide)
    if found is None:
        return Conclusion(claim, "not measured", None)
    text = (
        f"torch.compile has {times(found)} of the speed of {baseline} over {_count(wide)} from {WIDE:,} columns "
        f"on{_from_trials(found)}"
    )
    holds = _no(_faster_than(results, "inductor", baseline, 1, wide))
    return Conclusion(claim, text, _about_quack(holds, baseline))


def _geomeans(results: Results, cases: Sequence[str], keys: Sequence[str], baseline: str) -> StudyTable:
    arms = [arm for arm in results.arms if arm not in (baseline, "persistent", "looped")]
    rows = [
        (key, *(times(_speed(results, arm, baseline, _of(cases, key))) for arm in arms))
        for key in keys
        if _of(cases, key)
    ]
    return StudyTable(
        f"Speed relative to {baseline}, geometric mean over the shapes",
        ("", *arms),
        tuple(rows),
        f"Time of {baseline} over the time of the arm: above 1 the arm is faster. Intervals are over trials.",
    )


def _each_case(results: Results, cases: Sequence[str], key: str) -> StudyTable:
    arms = [arm for arm in results.arms if arm not in ("persistent", "looped")]
    ceiling = results.ceiling()
    rows = []
    for case in _of(cases, key):
        parsed = Case.parse(case)
        cells = [_gb_s(results, arm, case) for arm in arms]
        best = max((speed for arm in arms if (speed := results.gb_s(arm, case))), default=None)
        share = best / ceiling if best and ceiling else None
        rows.append((f"{parsed.rows}x{parsed.cols}", *cells, percent(share)))
    return StudyTable(f"{key}: GB/s", ("rows x columns", *arms, "best, share of a copy"), tuple(rows))


def _gb_s(results: Results, arm: str, case: str) -> str:
    speed = results.gb_s(arm, case)
    return whole(speed) if speed else because(results.why_not(arm, case))


def _persistent_table(results: Results) -> list[StudyTable]:
    cases = [case for case in results.cases if results.value("persistent", case) or results.value("looped", case)]
    rows = []
    for case in sorted(cases, key=lambda case: (Case.parse(case).key, _columns(case))):
        both = [results.ratio(arm, "inductor", case) for arm in ("persistent", "looped")]
        rows.append((case, *(times(one.inverse if one else None) for one in both)))
    columns = ("case", "persistent", "looped")
    note = "Speed relative to Inductor's own choice: above 1 the other choice is faster."
    return [StudyTable("Persistent or looped", columns, tuple(rows), note)] if rows else []


def _figure(results: Results, cases: Sequence[str], key: str) -> StudyFigure:
    arms = [arm for arm in results.arms if arm not in ("persistent", "looped")]
    ceiling = results.ceiling()
    return StudyFigure(
        f"{key}: GB/s by columns",
        "columns",
        "GB/s",
        tuple(float(_columns(case)) for case in cases),
        {arm: tuple(results.gb_s(arm, case) for case in cases) for arm in arms},
        ("a copy", ceiling) if ceiling else None,
    )


STUDY = Study(
    "s1",
    "torch.compile against Quack for LayerNorm and RMSNorm",
    "How close does torch.compile come to hand-written kernels, and which of its assumptions matter?",
    Source(
        "SOTA Normalization Performance with torch.compile",
        "https://pytorch.org/blog/sota-normalization-performance-with-torch-compile/",
        "H100 and B200",
    ),
    steps,
    report,
)
