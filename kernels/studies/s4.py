"""Study 4: which of Inductor's assumptions about shapes are worth how much, and what dynamic shapes cost."""

import math
from collections.abc import Collection, Mapping, Sequence
from itertools import combinations

from ..arena.session import Pace
from .results import Estimate, IntervalOver, Results
from .study import Arm, Conclusion, Source, Study, StudyReport, StudyStep, StudyTable
from .tabulating import NONE, because, change, microseconds, times

# The blocks of `benchmarks/kernels/published/arms/blocks.py` by suite, in the order of their importance.
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
    """A step for each suite: a session that is cut off leaves whole suites.

    What the published benchmark measured comes first: all suites with static shapes and AMP, then dynamic shapes.  All
    arms of a step compile at the same time and share the cores, so that newer settings have steps of their own.
    """
    if device == "cpu":  # Inductor writes C++ there, for which no setting of the study does anything
        few = ("language.gpt2_loss", "vision.mixer", "small.dlrm", "small.gru")
        cases = tuple(f"{block}.fp32" for block in few)
        pace = Pace(rounds=3, warm=1, timed=2)
        return [StudyStep("cpu", (INDUCTOR, EAGER, NO_SPLIT), cases, 1, pace, models=True)]
    found = [
        *_steps("", (INDUCTOR, EAGER, *ABLATIONS), "amp", quick),
        *_steps("-dynamic", (INDUCTOR, DYNAMIC, DYNAMIC_NO_THREE), "amp", quick),
    ]
    if quick:
        return found
    return [
        *found,
        *_steps("-today", (INDUCTOR, *TODAY), "amp", quick),
        *_steps("-bf16", (INDUCTOR, EAGER, NO_SPLIT, WITHOUT_THREE), "bf16", quick),
    ]


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
            *_interaction_table(results, cases),
            *_dynamic_table(results, cases),
            _blocks(results),
            *_launched(results),
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


def loss(results: Results, arm: str, cases: Sequence[str]) -> Estimate | None:
    """The geometric mean over blocks of the time of an arm relative to inductor's."""
    return _mean(results, [(1.0, arm)], cases)


def paired(results: Results, arm: str, than: str, cases: Sequence[str]) -> Estimate | None:
    """The time of one arm over that of another, each relative to inductor in its own step, over the blocks."""
    return _mean(results, [(1.0, arm), (-1.0, than)], cases)


def interaction(results: Results, cases: Sequence[str]) -> Estimate | None:
    """The loss without all three over the product of the single losses, over the blocks that have all arms."""
    return _mean(results, [(1.0, NO_THREE), *((-1.0, arm) for arm in SINGLES)], cases)


def _mean(results: Results, losses: Sequence[tuple[float, str]], cases: Sequence[str]) -> Estimate | None:
    """Of a weighted sum of losses.  Its interval is over trials, or over blocks where a step has a single trial."""
    return results.contrast([(weight, arm, "inductor") for weight, arm in losses], cases, or_over_cases=True)


def _with_all(results: Results, arms: Collection[str], cases: Sequence[str]) -> list[str]:
    """The blocks at which all arms were measured in turns with inductor, all with CUDA graphs or all without.

    What is compared is about the same blocks.  The arms of one step are timed in the same way, those of two need not.
    """
    return [
        case
        for case in cases
        if all(results.effects(arm, "inductor", case) for arm in arms) and len(_ways(results, arms, case)) == 1
    ]


def _ways(results: Results, arms: Collection[str], case: str) -> set[bool]:
    """Was a CUDA graph replayed at this block?"""
    return {one.replayed for arm in arms for one in results.of_arm(arm, case) if one.measured}


def published_interaction(suite: str) -> float:
    """The same of the source's geometric means."""
    base = PUBLISHED["inductor"][suite]
    singles = sum(math.log(base / PUBLISHED[arm][suite]) for arm in SINGLES)
    return math.log(base / PUBLISHED[NO_THREE][suite]) - singles


def _within(found: Estimate | None) -> bool:
    """Is the whole interval over trials so near to 1 that the difference is negligible?"""
    if found is None or found.low is None or found.high is None or found.over is not IntervalOver.TRIALS:
        return False
    return max(-math.log(found.low), math.log(found.high)) < NEGLIGIBLE


# -- findings --------------------------------------------------------------------------------------------------------


def _faster(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "torch.compile is faster than eager in every suite"
    speeds = {suite: loss(results, "eager", those) for suite, those in _by_suite(cases).items()}
    if not all(speeds.values()) or not speeds:
        return Conclusion(claim, "not measured", None)
    text = "; ".join(f"{suite} {times(one)}" for suite, one in speeds.items())
    sides = [one.above for one in speeds.values() if one]
    holds = False if False in sides else True if all(sides) and len(sides) == len(SUITES) else None
    return Conclusion(claim, f"speed-up: {text}", holds)


def _additive(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "The losses are not additive: without all three more is lost than the sum of the single losses"
    blocks = _with_all(results, (*SINGLES, NO_THREE), cases)
    found = interaction(results, blocks)
    if found is None:
        return Conclusion(claim, "not measured", None)
    text = f"the loss without all three is {change(found)} more than the single losses together"
    holds = False if _within(found) else found.above
    return Conclusion(claim, f"{text}, of {len(blocks)} blocks", holds)


def _suites_differ(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "The suites differ in what they need"
    suites = _by_suite(cases)
    by_arm = {
        arm: {suite: one for suite, those in suites.items() if (one := loss(results, arm, those))}
        for arm in (*SINGLES, NO_THREE)
    }
    if len(suites) < 2 or not any(by_arm.values()):
        return Conclusion(claim, "not measured", None)
    apart = [
        f"{TITLES[arm]}: {one} {change(losses[one])}, {other} {change(losses[other])}"
        for arm, losses in by_arm.items()
        for one, other in combinations(losses, 2)
        if _apart(losses[one], losses[other])
    ]
    if apart:
        return Conclusion(claim, "; ".join(apart), True)
    alike = all(_within(one) for losses in by_arm.values() for one in losses.values())
    return Conclusion(claim, "the intervals of all suites overlap", False if alike else None)


def _apart(one: Estimate, other: Estimate) -> bool:
    """Do the intervals over trials have nothing in common?"""
    if IntervalOver.CASES in (one.over, other.over):
        return False
    if one.low is None or one.high is None or other.low is None or other.high is None:
        return False
    return one.high < other.low or other.high < one.low


def _split_matters_most(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "Split reductions matter most of the three"
    blocks = _with_all(results, SINGLES, cases)
    losses = {arm: loss(results, arm, blocks) for arm in SINGLES}
    if not blocks:
        return Conclusion(claim, "not measured", None)
    text = "; ".join(f"{TITLES[arm]} {change(one)}" for arm, one in losses.items())
    against = [paired(results, "no-split", arm, blocks) for arm in SINGLES if arm != "no-split"]
    sides = [one.above for one in against if one]
    holds = False if False in sides else True if all(sides) else None
    today = loss(results, "no-mix-order", blocks)
    newer = f"; {TITLES['no-mix-order']}, which the source did not have, {change(today)}" if today else ""
    return Conclusion(claim, f"time of {len(blocks)} blocks: {text}{newer}", holds)


def _dynamic_within(results: Results, cases: Sequence[str]) -> Conclusion:
    claim = "Dynamic shapes cost no more than the loss of the three assumptions"
    blocks = _with_all(results, ("dynamic", NO_THREE), cases)
    cost, bound = loss(results, "dynamic", blocks), loss(results, NO_THREE, blocks)
    more = paired(results, "dynamic", NO_THREE, blocks)
    if more is None:
        return Conclusion(claim, "not measured", None)
    text = f"dynamic shapes {change(cost)} of the time, static ones without all three {change(bound)}"
    return Conclusion(claim, text, True if _within(more) else None if more.above is None else not more.above)


# -- tables ----------------------------------------------------------------------------------------------------------

_INTERVALS = f"Intervals are over trials, or, where a suite has a single one, over {IntervalOver.CASES}, the blocks."
_DYNAMIC_COLUMNS = {
    "dynamic": "dynamic",
    NO_THREE: "static, without all three",
    "dynamic-no-three": "dynamic, without all three",
}


def _speedups(results: Results, precision: str) -> StudyTable:
    groups = _groups(_of_precision(results, precision))
    rows = []
    for arm, title in TITLES.items():
        cells = [
            (results.contrast([(1.0, arm, "eager")], those, or_over_cases=True), PUBLISHED.get(arm, {}).get(group))
            for group, those in groups.items()
        ]
        if arm != "eager" and any(one for one, _ in cells):
            rows.append((title, *(_with_published(one, theirs) for one, theirs in cells)))
    columns = ("", *(f"{group} ({len(those)})" for group, those in groups.items()))
    note = (
        f"Geometric means of the time of eager over that of the arm, forward and backward. {_INTERVALS} "
        "In brackets the source's on an A100 with AMP, for "
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
    rows = [(TITLES[arm], *(change(loss(results, arm, those)) for those in groups.values())) for arm in arms]
    note = f"More time than inductor with its defaults, geometric means over blocks. {_INTERVALS}"
    return StudyTable("What each ablation costs", ("", *groups), tuple(rows), note)


def _interaction_table(results: Results, cases: Sequence[str]) -> list[StudyTable]:
    groups = _groups(_with_all(results, (*SINGLES, NO_THREE), cases))
    rows = []
    for group, those in groups.items():
        total = _mean(results, [(1.0, arm) for arm in SINGLES], those)
        theirs = f"{math.expm1(published_interaction(group)):+.1%}" if group in PUBLISHED_AS else NONE
        found = (total, loss(results, NO_THREE, those), interaction(results, those))
        rows.append((group, str(len(those)), *map(change, found), theirs))
    columns = ("", "blocks", "single losses together", "without all three", "interaction", "interaction, source")
    note = (
        "On the logarithmic scale: the interaction is the loss without all three minus the sum of the single losses. 0 "
        f"means that the losses add up. Of the blocks that have all of these arms. {_INTERVALS}"
    )
    return [StudyTable("Do the losses add up?", columns, tuple(rows), note)] if rows else []


def _dynamic_table(results: Results, cases: Sequence[str]) -> list[StudyTable]:
    dynamic = _with_all(results, ("dynamic",), cases)
    arms = [arm for arm in _DYNAMIC_COLUMNS if _with_all(results, (arm,), dynamic)]
    rows = []
    for group, those in _groups(_with_all(results, arms, dynamic)).items():
        losses = {arm: loss(results, arm, those) for arm in arms}
        again = sum(bool(results.fact("dynamic", case, "recompilations")) for case in those)
        rows.append((group, *(change(losses.get(arm)) for arm in _DYNAMIC_COLUMNS), f"{again} of {len(those)}"))
    columns = ("", *_DYNAMIC_COLUMNS.values(), "recompiled for another batch")
    note = (
        "More time than inductor with static shapes; batch and sequence may vary. Of the blocks that have all of these "
        f"arms. {_INTERVALS}"
    )
    return [StudyTable("What dynamic shapes cost", columns, tuple(rows), note)] if rows else []


def _blocks(results: Results) -> StudyTable:
    arms = [arm for arm in TITLES if arm in results.arms]
    rows = []
    for case in results.cases:
        kernels = results.fact("inductor", case, "kernels")
        rows.append((case, _about(results, case), str(kernels or NONE), *(_cell(results, arm, case) for arm in arms)))
    note = "Microseconds of a training step; kernels are those that inductor generated for it."
    if any(True in _ways(results, arms, case) for case in results.cases):
        note += " A step was replayed as a CUDA graph: the time has no launches by the host in it."
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


def _launched(results: Results) -> list[StudyTable]:
    """Blocks whose steps were launched because an arm could not be captured, with its reason."""
    rows = {
        (one.case, one.step, TITLES.get(one.arm, one.arm), str(one.facts.get("graph_reason")))
        for one in results.records
        if one.facts.get("graph") is False and "launched_with" not in one.facts
    }
    note = "All arms of such a step launch their kernels one by one; its times include how fast the host is."
    columns = ("block", "step", "arm", "why it has no CUDA graph")
    return [StudyTable("Launched one by one", columns, tuple(sorted(rows)), note)] if rows else []


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
