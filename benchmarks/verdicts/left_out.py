"""Runs of one stored H200 session, judged with what the other stored sessions know of its cases."""

from collections import defaultdict
from functools import cache
from statistics import fmean

from benchmarks.verdicts.h200 import Donor, Measured, donors, measured
from benchmarks.verdicts.simulated import NOISES, POLICY, PROVIDER, Family
from kernels.cases import Metric
from service.domain.stats.case_variances import PastComparison, learn
from service.domain.stats.estimates import variance
from service.domain.verdicts.analysis import KnownVariances

FEWEST = 8  # cases of a session that is worth leaving out


def unit_of(one: Measured) -> str:
    """What is left out at once: a session, or all sessions of one database, which followed each other."""
    return one.session.split("#")[0]


def _units() -> tuple[str, ...]:
    cases = defaultdict[str, set[str]](set)
    for one in measured():
        cases[unit_of(one)].add(one.case)
    return tuple(unit for unit, names in cases.items() if len(names) >= FEWEST)


UNITS = _units()


@cache
def _of_unit(unit: str) -> tuple[Donor, ...]:
    return tuple(donors(lambda one: unit_of(one) == unit))


def family_of(unit: str, seed: int) -> Family:
    """A run of all cases of a session, with trials redrawn from it."""
    cases = _of_unit(unit)
    return Family(NOISES[0], [0.0] * len(cases), seed, cases)


@cache
def known_without(unit: str) -> KnownVariances:
    """What the sessions of the same source say, all but this one: the variance of every pair of different sides."""
    [source] = {one.source for one in measured() if unit_of(one) == unit}
    past = []
    for one in measured():
        if one.source != source or unit_of(one) == unit:
            continue
        for number, effects in enumerate(one.apart()):
            first = effects[: POLICY.screening[0]]
            if len(first) > 1:
                key = one.session, number
                past.append(PastComparison(key, (PROVIDER, one.case), fmean(first), variance(first), len(first) - 1))
    learned = learn(past, POLICY.screening[0] - 1)
    return {Metric.KERNEL: learned} if learned else {}
