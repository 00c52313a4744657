"""Estimates of ratios from trials: what cases share, intervals, and what a side usually takes.  Pure."""

import math
from collections import defaultdict
from collections.abc import Iterable, Sequence
from statistics import median

from kernels.cases import Comparison, Metric
from service.domain.metrics import metric_of
from service.domain.policy.policy import Policy
from service.domain.stats.estimates import Estimate, variance
from service.domain.stats.sequential import Effects
from service.domain.stats.variance_prior import Prior, priors
from service.domain.verdicts.samples import Pairs


def family(screened: Iterable[tuple[str, Effects]], policy: Policy) -> dict[str, Prior]:
    """Estimate the usual variance of trials by group, from the first trials of these cases.

    Only from those that every case has: which cases got more must not change what is known of all of them.  Bytes
    and counts have no such family, for they vary or do not vary for reasons of their own.
    """
    by_metric = defaultdict[Metric, list[tuple[float, str, int]]](list)
    for case, effects_of in screened:
        effects = [effect for effect in effects_of[: policy.screening[0]] if effect is not None]
        if len(effects) > 1 and (metric := metric_of(case)).varies:
            by_metric[metric].append((variance(effects), group_of(case), len(effects) - 1))
    known: dict[str, Prior] = {}
    for seen in by_metric.values():
        most = max(df for _, _, df in seen)
        whole = [(own, group) for own, group, df in seen if df == most]  # trials were lost of the others
        known |= priors([own for own, _ in whole], [group for _, group in whole], most)
    return known


def group_of(case: str) -> str:
    """Cases of which the trials vary alike: op, direction, dtype and metric, at any shape."""
    first, *rest = case.split(".")
    return ".".join([first, *rest[:1], *rest[2:]])


def compare(pairs: Pairs, confidence: float) -> Comparison | None:
    """The ratio with a t interval over its own trials alone; None with fewer than two trials."""
    estimate = Estimate.of(pairs.effects())
    return None if estimate is None else comparison(estimate, pairs, confidence)


def comparison(estimate: Estimate, pairs: Pairs, confidence: float) -> Comparison:
    low, high = estimate.interval(confidence)
    return Comparison(math.exp(estimate.centre), math.exp(low), math.exp(high), pairs.rounds, estimate.trials)


def usual(baseline: Sequence[Sequence[float | None]], trials: int | None = None) -> float | None:
    """Median over all or the first trials of a side, in the unit of the metric; None without values."""
    took = [median(some) for rounds in baseline[:trials] if (some := [each for each in rounds if each is not None])]
    return median(took) if took else None
