"""Study 4: which of Inductor's assumptions about shapes are worth how much, and what dynamic shapes cost."""

import math
from collections.abc import Mapping, Sequence
from itertools import combinations

from ...arena.session import Pace
from .results import Estimate, Results, estimate
from .study import Arm, Conclusion, Source, Study, StudyReport, StudyStep, StudyTable
from .tabulating import NONE, because, microseconds, times

# The blocks of `arms.blocks` by suite, in the order of their importance.
SUITES: Mapping[str, tuple[str, ...]] = {
    "language": ("bert", "t5", "llama", "gpt2", "qwen3", "gemma", "falcon", "opt", "gpt2_loss"),
    "vision": ("resnet", "vit", "convnext", "efficientnet", "mixer", "swin", "densenet"),
    "small": ("unet", "dlrm", "gru", "deeprecommender", "edsr", "demucs", "dcgan"),
}
PUBLISHED_AS = {"language": "HuggingFace", "vision": "timm", "small": "TorchBench"}
SINGLES = ("no-divisible", "no-persistent", "no-split")
NO_THREE = "no-three"
# Geometric means of the source: speed-up over eager, by arm and suite.
PUBLISHED: Mapping[str, Mapping[str, float]] = {
    "inductor": {"language": 1.40, "vision": 1.35, "small": 1.15},
    "no-divisible": {"language": 1.40, "vision": 1.33, "small": 1.15},
    "no-persistent": {"language": 1.40, "vision": 1.34, "small": 1.15},
    "no-split": {"language": 1.37, "vision": 1.20, "small": 1.10},
    NO_THREE: {"language": 1.33, "vision": 1.11, "small": 1.08},
}
NEGLIGIBLE = 0.01  # of the time: a difference too small to act on
ALL = "all blocks"
STEP_PACE = Pace(rounds=5, warm=1, timed=2)


def _arm(name: str, title: str, patches: Mapping[str, bool] | None = None, *, dynamic: bool = False) -> Arm:
    """torch.compile with `patches` of Inductor's configuration."""
    spec = {"workload": "ablation:TrainingStep", "compile": True, "dynamic": dynamic, "patches": dict(patches or {})}
    return Arm(name, title, spec)


_NO_DIVISIBLE = {"triton.divisible_by_16": False}
_NO_PERSISTENT = {"triton.persistent_reductions": False}
_NO_SPLIT = {"split_reductions": False}
_NO_MIX_ORDER = {"triton.mix_order_reduction": False}
_NO_THREE = {**_NO_DIVISIBLE, **_NO_PERSISTENT, **_NO_SPLIT}

EAGER = Arm("eager", "eager", {"workload": "ablation:TrainingStep", "compile": False})
INDUCTOR = _arm("inductor", "inductor")
NO_SPLIT = _arm("no-split", "without split reductions", _NO_SPLIT)
WITHOUT_THREE = _arm(NO_THREE, "without all three", _NO_THREE)
ABLATIONS = (
    _arm("no-divisible", "without divisible_by_16", _NO_DIVISIBLE),
    _arm("no-persistent", "without persistent reductions", _NO_PERSISTENT),
    NO_SPLIT,
    WITHOUT_THREE,
)
# What the source did not have: both are newer ways to do what split reductions do.
TODAY = (
    _arm("no-mix-order", "without mix-order reductions", _NO_MIX_ORDER),
    _arm("no-four", "without all three and mix-order", {**_NO_THREE, **_NO_MIX_ORDER}),
    _arm("cooperative", "with cooperative reductions", {"triton.cooperative_reductions": True}),
)
DYNAMIC = _arm("dynamic", "dynamic shapes", dynamic=True)
DYNAMIC_NO_THREE = _arm("dynamic-no-three", "dynamic shapes, without all three", _NO_THREE, dynamic=True)
_IN_ORDER = (INDUCTOR, EAGER, *ABLATIONS, *TODAY, DYNAMIC, DYNAMIC_NO_THREE)
TITLES = {one.name: one.title for one in _IN_ORDER}


def steps(device: str, quick: bool) -> list[StudyStep]:
    """A step for each suite: a session that is cut off leaves whole suites.  Static shapes come first."""
    if device == "cpu":  # Inductor writes C++ there, for which no setting of the study does anything
        few = ("language.gpt2_loss", "vision.mixer", "small.dlrm", "small.gru")
        cases = tuple(f"{block}.fp32" for block in few)
        pace = Pace(rounds=3, warm=1, timed=2)
        return [StudyStep("cpu", (INDUCTOR, EAGER, NO_SPLIT), cases, 1, pace, models=True)]
    found = [
        *_steps("", (INDUCTOR, EAGER, *ABLATIONS, *TODAY), "amp", quick),
        *_steps("-dynamic", (INDUCTOR, DYNAMIC, DYNAMIC_NO_THREE), "amp", quick),
    ]
    return found if quick else [*found, *_steps("-bf16", (INDUCTOR, EAGER, NO_SPLIT, WITHOUT_THREE), "bf16", quick)]


def _steps(suffix: str, arms: tuple[Arm, ...], precision: str, quick: bool) -> list[StudyStep]:
    return [
        StudyStep(
            f"{suite}{suffix}",
            arms,
            tuple(f"{suite}.{block}.{precision}" for block in (blocks[:2] if quick else blocks)),
            1 if quick else 2,
            STEP_PACE,
            models=True,
            prepare_together=True,
        )
        for suite, blocks in SUITES.items()
    ]


# -- what follows ----------------------------------------------------------------------------------------------------


def report(results: Results) -> StudyReport:
    precisions = list(dict.fromkeys(_precision(case) for case in results.cases))
    if not precisions:
        return StudyReport((), ())
    cases = _of_precision(results, precisions[0])
    return StudyReport(
        findings=(
            _faster(results, cases),
            _additive(results, cases),
            _suites_differ(results, cases),
            _split_matters_most(results, cases),
            _dynamic_within(results, cases),
        ),
        tables=(
            *(_speedups(results, precision) for precision in precisions),
            _losses(results, cases),
            *([_interaction(results, cases)] if interactions(results, cases) else []),
            *_dynamic_table(results, cases),
            _blocks(results),
            *_missing(results),
        ),
    )


def _precision(case: str) -> str:
    return case.rpartition(".")[2]


def _of_precision(results: Results, precision: str) -> list[str]:
    return [case for case in results.cases if _precision(case) == precision]


def _by_suite(cases: Sequence[str]) -> dict[str, list[str]]:
    """The suites that have cases."""
    found = {suite: [case for case in cases if case.startswith(f"{suite}.")] for suite in SUITES}
    return {suite: those for suite, those in found.items() if those}


def _groups(cases: Sequence[str]) -> dict[str, list[str]]:
    suites = _by_suite(cases)
    return {**suites, ALL: list(cases)} if len(suites) > 1 else suites


def loss(results: Results, arm: str, case: str, than: str = "inductor") -> float | None:
    """The logarithm of the time of an arm over that of inductor at one block."""
    found = results.ratio(arm, than, case)
    return None if found is None else math.log(found.ratio)


def over_blocks(results: Results, arm: str, cases: Sequence[str], than: str = "inductor") -> Estimate | None:
    """The geometric mean over blocks of time relative to `than`, with an interval over the blocks."""
    return estimate([one for case in cases if (one := loss(results, arm, case, than)) is not None])


def interactions(results: Results, cases: Sequence[str]) -> list[float]:
    """By block that has all arms, the loss without all three minus the sum of the single losses (logarithms)."""
    found = []
    for case in cases:
        singles = [loss(results, arm, case) for arm in SINGLES]
        together = loss(results, NO_THREE, case)
        known = [one for one in singles if one is not None]
        if together is not None and len(known) == len(SINGLES):
            found.append(together - sum(known))
    return found


def published_interaction(suite: str) -> float:
    """The same of the source's geometric means."""
    base = PUBLISHED["inductor"][suite]
    singles = sum(math.log(base / PUBLISHED[arm][suite]) for arm in SINGLES)
    return math.log(base / PUBLISHED[NO_THREE][suite]) - singles


def paired(results: Results, arm: str, than: str, cases: Sequence[str]) -> Estimate | None:
    """The time of one arm over that of another, each relative to inductor in its own step, over the blocks."""
    found = []
    for case in cases:
        mine, other = loss(results, arm, case), loss(results, than, case)
        if mine is not None and other is not None:
            found.append(mine - other)
    return estimate(found)


def _percent(found: Estimate | None) -> str:
    """A loss of time: `+3.1 % (+1.0 % to +5.2 %)`."""
    if found is None:
        return NONE
    if found.low is None or found.high is None:
        return f"{found.ratio - 1:+.1%}"
    return f"{found.ratio - 1:+.1%} ({found.low - 1:+.1%} to {found.high - 1:+.1%})"


def _within(found: Estimate | None) -> bool:
    """Is the whole interval so near to 1 that the difference is negligible?"""
    if found is None or found.low is None or found.high is None:
        return False
    return max(-math.log(found.low), math.log(found.high)) < NEGLIGIBLE


# -- findings --------------------------------------------------------------------------------------------------------


def _faster(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "torch.compile is faster than eager in every suite"
    speeds = {suite: over_blocks(results, "eager", those) for suite, those in _by_suite(cases).items()}
    if not all(speeds.values()) or not speeds:
        return Conclusion(claim, "not measured", None)
    text = "; ".join(f"{suite} {times(one)}" for suite, one in speeds.items())
    sides = [one.above for one in speeds.values() if one]
    holds = False if False in sides else True if all(sides) and len(sides) == len(SUITES) else None
    return Conclusion(claim, f"speed-up, interval over blocks: {text}", holds)


def _additive(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "The losses are not additive: without all three more is lost than the sum of the single losses"
    found = estimate(interactions(results, cases))
    if found is None:
        return Conclusion(claim, "not measured", None)
    text = f"the loss without all three is {_percent(found)} more than the single losses together"
    holds = False if _within(found) else found.above
    return Conclusion(claim, f"{text}, over {found.trials} blocks", holds)


def _suites_differ(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "The suites differ in what they need"
    suites = _by_suite(cases)
    by_arm = {
        arm: {suite: one for suite, those in suites.items() if (one := over_blocks(results, arm, those))}
        for arm in (*SINGLES, NO_THREE)
    }
    if len(suites) < 2 or not any(by_arm.values()):
        return Conclusion(claim, "not measured", None)
    apart = [
        f"{TITLES[arm]}: {one} {_percent(losses[one])}, {other} {_percent(losses[other])}"
        for arm, losses in by_arm.items()
        for one, other in combinations(losses, 2)
        if _apart(losses[one], losses[other])
    ]
    if apart:
        return Conclusion(claim, "; ".join(apart), True)
    alike = all(_within(one) for losses in by_arm.values() for one in losses.values())
    return Conclusion(claim, "the intervals over blocks of all suites overlap", False if alike else None)


def _apart(one: Estimate, other: Estimate) -> bool:
    """Do the intervals have nothing in common?"""
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.high < other.low or other.high < one.low


def _split_matters_most(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "Split reductions matter most of the three"
    losses = {arm: over_blocks(results, arm, cases) for arm in SINGLES}
    against = [paired(results, "no-split", arm, cases) for arm in SINGLES if arm != "no-split"]
    if not all(losses.values()) or not all(against):
        return Conclusion(claim, "not measured", None)
    text = "; ".join(f"{TITLES[arm]} {_percent(one)}" for arm, one in losses.items())
    sides = [one.above for one in against if one]
    holds = False if False in sides else True if all(sides) else None
    today = over_blocks(results, "no-mix-order", cases)
    newer = f"; {TITLES['no-mix-order']}, which the source did not have, {_percent(today)}" if today else ""
    return Conclusion(claim, f"time over all blocks: {text}{newer}", holds)


def _dynamic_within(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "Dynamic shapes cost no more than the loss of the three assumptions"
    cost, bound = over_blocks(results, "dynamic", cases), over_blocks(results, NO_THREE, cases)
    more = paired(results, "dynamic", NO_THREE, cases)
    if cost is None or bound is None or more is None:
        return Conclusion(claim, "not measured", None)
    text = f"dynamic shapes {_percent(cost)} of the time, static ones without all three {_percent(bound)}"
    return Conclusion(claim, text, True if _within(more) else None if more.above is None else not more.above)


# -- tables ----------------------------------------------------------------------------------------------------------


def _speedups(results: Results, precision: str) -> StudyTable:
    groups = _groups(_of_precision(results, precision))
    rows = []
    for arm, title in TITLES.items():
        cells = [
            (results.geomean(arm, "eager", those), PUBLISHED.get(arm, {}).get(group)) for group, those in groups.items()
        ]
        if arm != "eager" and any(one for one, _ in cells):
            rows.append((title, *(_with_published(one, theirs) for one, theirs in cells)))
    columns = ("", *(f"{group} ({len(those)})" for group, those in groups.items()))
    note = (
        "Geometric means of the time of eager over that of the arm, forward and backward, with intervals over trials; "
        "in brackets the source's on an A100 with AMP, for "
        + ", ".join(f"{PUBLISHED_AS[group]} ({group})" for group in groups if group in PUBLISHED_AS)
        + "."
    )
    return StudyTable(f"Speed-up over eager, {precision}", columns, tuple(rows), note)


def _with_published(found: Estimate | None, published: float | None) -> str:
    theirs = f" [{published:.2f}]" if published else ""
    return f"{times(found and found.inverse)}{theirs}"


def _losses(results: Results, cases: Sequence[str]) -> StudyTable:
    groups = _groups(cases)
    arms = [arm for arm in (*(one.name for one in ABLATIONS), *(one.name for one in TODAY)) if arm in results.arms]
    rows = [(TITLES[arm], *(_percent(over_blocks(results, arm, those)) for those in groups.values())) for arm in arms]
    note = "More time than inductor with its defaults: geometric means and their intervals over blocks."
    return StudyTable("What each ablation costs", ("", *groups), tuple(rows), note)


def _interaction(results: Results, cases: Sequence[str]) -> StudyTable:
    rows = []
    for group, those in _groups(cases).items():
        together = over_blocks(results, NO_THREE, those)
        singles = [over_blocks(results, arm, those) for arm in SINGLES]
        known = [math.log(one.ratio) for one in singles if one is not None]
        total = f"{math.expm1(sum(known)):+.1%}" if len(known) == len(SINGLES) else NONE
        theirs = f"{math.expm1(published_interaction(group)):+.1%}" if group in PUBLISHED_AS else NONE
        interaction = estimate(interactions(results, those))
        rows.append((group, total, _percent(together), _percent(interaction), theirs))
    columns = ("", "single losses together", "without all three", "interaction", "interaction, source")
    note = (
        "On the logarithmic scale: the interaction is the loss without all three minus the sum of the single losses, "
        "by block, with Student's interval over the blocks. 0 means that the losses add up."
    )
    return StudyTable("Do the losses add up?", columns, tuple(rows), note)


def _dynamic_table(results: Results, cases: Sequence[str]) -> list[StudyTable]:
    groups = _groups([case for case in cases if loss(results, "dynamic", case) is not None])
    rows = []
    for group, those in groups.items():
        cost = over_blocks(results, "dynamic", those)
        bound = over_blocks(results, NO_THREE, those)
        both = over_blocks(results, "dynamic-no-three", those)
        again = sum(bool(results.fact("dynamic", case, "recompilations")) for case in those)
        rows.append((group, _percent(cost), _percent(bound), _percent(both), f"{again} of {len(those)}"))
    columns = ("", "dynamic", "static, without all three", "dynamic, without all three", "recompiled for another batch")
    note = "More time than inductor with static shapes, over blocks; batch and sequence may vary."
    return [StudyTable("What dynamic shapes cost", columns, tuple(rows), note)] if rows else []


def _blocks(results: Results) -> StudyTable:
    arms = [arm for arm in TITLES if arm in results.arms]
    rows = []
    for case in results.cases:
        kernels = results.fact("inductor", case, "kernels")
        rows.append((case, _about(results, case), str(kernels or NONE), *(_cell(results, arm, case) for arm in arms)))
    note = "Microseconds of a training step; kernels are those that inductor generated for it."
    return StudyTable("Blocks", ("block", "architecture", "kernels", *arms), tuple(rows), note)


def _about(results: Results, case: str) -> str:
    arm = next((arm for arm in results.arms if results.fact(arm, case, "about")), None)
    if arm is None:
        return NONE
    about: str = results.fact(arm, case, "about")
    shapes = " and ".join("x".join(map(str, shape)) for shape in results.fact(arm, case, "inputs"))
    return f"tiny widths, {shapes}, of {about}" if results.fact(arm, case, "tiny") else about


def _cell(results: Results, arm: str, case: str) -> str:
    found = results.value(arm, case)
    why = results.why_not(arm, case)
    return microseconds(found) if found is not None or why is None else because(why.partition(":")[0])


def _missing(results: Results) -> list[StudyTable]:
    """Arms that could not be measured, with the reason."""
    rows = [
        (case, TITLES.get(arm, arm), because(why))
        for case in results.cases
        for arm in results.arms
        if (why := results.why_not(arm, case))
    ]
    return [StudyTable("Not measured", ("block", "arm", "reason"), tuple(rows))] if rows else []


STUDY = Study(
    "s4",
    "What Inductor's assumptions about shapes are worth",
    "How much slower are models without divisibility by 16, persistent reductions and split reductions, and is that "
    "the price of dynamic shapes?",
    Source(
        "A small inductor optimization ablation study",
        "https://dev-discuss.pytorch.org/t/a-small-inductor-optimization-ablation-study/1181",
        "A100",
    ),
    steps,
    report,
)
