"""Decide whether a regression is fixed, and by which run.  Pure: later results of the case in, a run out."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

from service.domain.verdicts.judge import CHANGES, Outcome


@dataclass(frozen=True)
class CaseStep:
    """The effect of one mainline revision on a case.  Ordinals are positions on the mainline."""

    run_id: int
    ordinal: int
    baseline: int | None  # the place of the revision that `outcome` and `ratio` are against
    outcome: Outcome
    ratio: float | None
    direct: Outcome | None = None  # against the last revision that was not slow, in the same session
    direct_ratio: float | None = None


def fixed_by_run(
    steps: Sequence[CaseStep], opened: int, ratio: float, smallest_change: float, *, before: float = 1.0
) -> int | None:
    """The first run after which a regression of `ratio`, opened at the ordinal `opened`, is gone.

    A direct comparison with the good revision decides where it is decided.  Otherwise each step multiplies the ratio of
    its baseline, so that several small improvements fix one large regression: confirmed ones had more trials than the
    direct comparison, which on a noisy case may never decide.  A baseline from before the regression counts as
    `before`: 1, or the full ratio where the slow-down had come gradually.  `smallest_change` is relative.

    A slow-down opens by a share of the smallest change, so `ratio` may be within it.  Hence only a step that shows
    something closes: an improvement, or as fast as a baseline from before the regression.
    """
    ordinals, nets = [opened], [ratio]
    for step in steps:
        net = nets[-1]  # also where the baseline left the mainline
        if step.baseline is not None and step.outcome in (Outcome.STEADY, *CHANGES):
            earlier = bisect_right(ordinals, step.baseline)  # revisions that were not measured changed nothing
            net = nets[earlier - 1] if earlier else before
        if step.outcome in CHANGES:
            net *= step.ratio or 1.0
        if step.direct in CHANGES:
            net = step.direct_ratio or net
        since_before = step.baseline is not None and step.baseline < opened and before < ratio
        shown = step.outcome is Outcome.IMPROVEMENT or (step.outcome is Outcome.STEADY and since_before)
        fixed = shown and net <= 1 + smallest_change and step.direct is not Outcome.REGRESSION
        if fixed or step.direct in (Outcome.STEADY, Outcome.IMPROVEMENT):
            return step.run_id
        ordinals.append(step.ordinal)
        nets.append(net)
    return None


def unexplained(ratio: float, known: Sequence[float]) -> float:
    """The part of a leak of `ratio` that the known regressions since its baseline do not explain."""
    for each in known:
        ratio /= each
    return ratio
