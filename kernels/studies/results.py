"""Evaluate the records of a study: times, ratios with intervals, geometric means.  Pure and torch-free.

A ratio is the time of one arm over that of another, from rounds in which both had a turn: the median over the rounds of
a trial, then the geometric mean over the trials.  Its interval is over the trials, which are the units that vary
independently: Student's for the trials of one step, Welch's for a mean over cases of several steps.  Without at least
two trials there is none.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from functools import cached_property
from statistics import fmean, median, variance
from typing import Any

from ..cases import Case, Metric
from .records import CONTROL, Note, Record, Session, StudyFile

_OTHER_METRICS = tuple(f".{metric}" for metric in Metric if metric is not Metric.KERNEL)
SESSION_TRIALS = 1000  # more than any session has
# Two-sided 95 % quantiles of Student's t by degrees of freedom, to five digits; the normal one beyond.
_T95 = (12.706, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622, 2.2281, 2.2010, 2.1788, 2.1604, 2.1448)
_NORMAL = 1.95996
_ROUNDING = 1e-9  # of degrees of freedom that are whole numbers

# The effects of one trial are those of the same processes: by step and trial, the logarithm of a ratio.
TrialEffects = Mapping[tuple[str, int], float]


class IntervalOver(StrEnum):
    """The units whose variation an interval shows."""

    TRIALS = "trials"
    CASES = "cases"  # of a single trial: how much cases differ, which says nothing about another trial


@dataclass(frozen=True)
class Estimate:
    """A ratio with its 95 % interval, from `trials` trials; `low` and `high` are None without one."""

    ratio: float
    low: float | None
    high: float | None
    trials: int
    over: IntervalOver = IntervalOver.TRIALS

    @property
    def differs(self) -> bool | None:
        """Is 1 outside of the interval?  None without an interval."""
        return None if self.low is None or self.high is None else not self.low <= 1 <= self.high

    @property
    def above(self) -> bool | None:
        """Is the interval above 1 (True) or below it (False)?  None if 1 is within it, or without an interval."""
        return self.exceeds(1.0)

    def exceeds(self, bound: float) -> bool | None:
        """Is the interval above `bound` (True) or below it (False)?  None if it is within.

        None without an interval over trials as well: how much cases differ says nothing about another trial.
        """
        if self.low is None or self.high is None or self.over is not IntervalOver.TRIALS:
            return None
        return None if self.low <= bound <= self.high else self.low > bound

    @property
    def inverse(self) -> "Estimate":
        """The speed-up of the same pair."""
        low, high = (None if end is None else 1 / end for end in (self.high, self.low))
        return replace(self, ratio=1 / self.ratio, low=low, high=high)


def estimate(effects: Sequence[float]) -> Estimate | None:
    """From the logarithms of the ratios of the trials; None without one."""
    return sum_of_means([effects]) if effects else None


def sum_of_means(groups: Sequence[Sequence[float]]) -> Estimate:
    """The sum of the means of independent groups of logarithms, one for each trial.

    The interval is Welch's, with the degrees of freedom of Satterthwaite: for a single group it is Student's.
    """
    total, trials = sum(map(fmean, groups)), min(map(len, groups))
    if trials < 2:
        return Estimate(math.exp(total), None, None, trials)
    squares = [variance(one) / len(one) for one in groups]
    half = 0.0
    if whole := sum(squares):
        # Shares, because the square of a tiny variance is 0.
        parts = zip(squares, groups, strict=True)
        freedom = 1 / sum((square / whole) ** 2 / (len(one) - 1) for square, one in parts)
        half = student(math.floor(freedom + _ROUNDING)) * math.sqrt(whole)
    return Estimate(math.exp(total), math.exp(total - half), math.exp(total + half), trials)


def student(freedom: int) -> float:
    """The two-sided 95 % quantile of Student's t; beyond the table that of the next smaller entry, which is wider."""
    if freedom < 1:
        raise ValueError("an interval needs two trials")
    return _T95[min(freedom, len(_T95)) - 1] if freedom < 200 else _NORMAL


@dataclass(frozen=True)
class Results:
    """The records of one or several sessions of a study on one kind of device."""

    sessions: tuple[Session, ...]
    records: tuple[Record, ...]
    notes: tuple[Note, ...] = ()

    @classmethod
    def of(cls, files: Iterable[StudyFile]) -> "Results":
        """Trials of several sessions count together; each session numbers its own.

        Raises ValueError for files that are not different sessions of one study on one kind of device.
        """
        files = list(files)
        for what in ("study", "device"):
            if len(kinds := sorted({getattr(file.session, what) for file in files})) > 1:
                raise ValueError(f"sessions of one {what} count together, not of {' and '.join(kinds)}")
        if len({(file.session.study, file.session.began) for file in files}) < len(files):
            raise ValueError("two files have the same session, whose trials would count twice; name one of them")
        sessions: list[Session] = []
        records: list[Record] = []
        notes: list[Note] = []
        for number, file in enumerate(files):
            sessions.append(file.session)
            notes += file.notes
            records += [replace(one, trial=one.trial + SESSION_TRIALS * number) for one in file.records]
        return cls(tuple(sessions), tuple(records), tuple(notes))

    @cached_property
    def cases(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(one.case for one in self.records))

    @cached_property
    def arms(self) -> tuple[str, ...]:
        """Without the controls."""
        return tuple(dict.fromkeys(one.arm for one in self.records if one.arm != CONTROL))

    @cached_property
    def _by_key(self) -> Mapping[tuple[str, int, str], Mapping[str, Record]]:
        found: dict[tuple[str, int, str], dict[str, Record]] = {}
        for one in self.records:
            found.setdefault(one.key, {})[one.arm] = one
        return found

    @cached_property
    def _by_arm(self) -> Mapping[tuple[str, str], list[Record]]:
        found: dict[tuple[str, str], list[Record]] = {}
        for one in self.records:
            found.setdefault((one.arm, one.case), []).append(one)
        return found

    @cached_property
    def _keys_of(self) -> Mapping[str, list[tuple[str, int, str]]]:
        """By case, the keys of its turns."""
        found: dict[str, list[tuple[str, int, str]]] = {}
        for key in self._by_key:
            found.setdefault(key[2], []).append(key)
        return found

    def of_arm(self, arm: str, case: str) -> list[Record]:
        return self._by_arm.get((arm, case), [])

    def value(self, arm: str, case: str) -> float | None:
        """The median over trials of the median over rounds, in the unit of the records; None if not measured."""
        found = [median(counted) for one in self.of_arm(arm, case) if one.measured and (counted := _counted(one))]
        return median(found) if found else None

    def fact(self, arm: str, case: str, name: str) -> Any:
        """A fact of the first trial that has it; None if none has."""
        return next((one.facts[name] for one in self.of_arm(arm, case) if name in one.facts), None)

    def why_not(self, arm: str, case: str) -> str | None:
        """The state and reason of an arm that was measured in no trial; None if it was, or if it took no part."""
        found = self.of_arm(arm, case)
        if not found or any(one.measured for one in found):
            return None
        return f"{found[0].state}: {found[0].reason or 'no reason given'}"

    def effects(self, arm: str, than: str, case: str) -> dict[tuple[str, int], float]:
        """By step and trial, the logarithm of the time of `arm` over that of `than`."""
        found = {}
        for step, trial, at in self._keys_of.get(case, ()):
            turns = self._by_key[step, trial, at]
            if arm in turns and than in turns and turns[arm].measured and turns[than].measured:
                effect = _effect(turns[arm], turns[than])
                if effect is not None:
                    found[step, trial] = effect
        return found

    def ratio(self, arm: str, than: str, case: str) -> Estimate | None:
        """Time of `arm` over time of `than`."""
        return estimate(list(self.effects(arm, than, case).values()))

    def geomean(self, arm: str, than: str, cases: Iterable[str]) -> Estimate | None:
        """Of the ratios of the cases that both have."""
        return self.contrast([(1.0, arm, than)], cases)

    def contrast(
        self, terms: Sequence[tuple[float, str, str]], cases: Iterable[str], *, or_over_cases: bool = False
    ) -> Estimate | None:
        """The mean over cases of a weighted sum of effects, as a ratio.

        A term is a weight, an arm, and the arm that its time is relative to.  Cases without one of the effects do not
        count.  Cases of one step were measured in the same trials: their mean has one value for each trial that has all
        of them, and is independent of that of other steps.

        `or_over_cases`: where a step has a single trial, the interval is over the cases.
        """
        found = [effects for case in cases if all(effects := [self.effects(arm, than, case) for _, arm, than in terms])]
        if not found:
            return None
        weights = [weight for weight, _, _ in terms]
        weighted = [(weight / len(found), one) for case in found for weight, one in zip(weights, case, strict=True)]
        over_trials = sum_of_means([_by_trial(group) for group in _of_shared_trials(weighted)])
        if over_trials.low is not None or not or_over_cases:
            return over_trials
        each = [sum(weight * fmean(one.values()) for weight, one in zip(weights, case, strict=True)) for case in found]
        over_cases = sum_of_means([each])
        return replace(over_cases, trials=1, over=IntervalOver.CASES)

    def control(self) -> list[float]:
        """The distances of all controls from their originals, as logarithms of single trials, in ascending order.

        Of times of the device: the host's vary by far more from process to process.
        """
        found = []
        for (_, _, case), turns in self._by_key.items():
            if case.endswith(_OTHER_METRICS) or CONTROL not in turns or not turns[CONTROL].measured:
                continue
            original = next((one for one in turns.values() if one.arm != CONTROL), None)  # the first arm
            if original is not None and original.measured:
                effect = _effect(turns[CONTROL], original)
                found += [] if effect is None else [abs(effect)]
        return sorted(found)

    def ceiling(self, name: str = "copy_gb_s") -> float | None:
        """The median of what the sessions measured: `copy_gb_s` or `matmul_tflop_s`."""
        found = [note.value[name] for note in self.notes if note.what == "ceilings" and name in note.value]
        return median(found) if found else None

    def gb_s(self, arm: str, case: str) -> float | None:
        """The minimum of bytes of the case over its time."""
        us = self.value(arm, case)
        return None if us is None else Case.parse(case).least_bytes / us / 1e3


def _effect(mine: Record, other: Record) -> float | None:
    """The median over rounds that both have of the logarithm of the ratio of their times; None without such a round."""
    both = zip(mine.samples, other.samples, strict=False)
    effects = [math.log(a / b) for a, b in both if a and b]
    return median(effects) if effects else None


def _of_shared_trials(effects: Iterable[tuple[float, TrialEffects]]) -> list[list[tuple[float, TrialEffects]]]:
    """Groups of weighted effects, so that no trial is in two groups."""
    groups: list[list[tuple[float, TrialEffects]]] = []
    for weight, one in effects:
        shares = [group for group in groups if any(one.keys() & other.keys() for _, other in group)]
        groups = [group for group in groups if group not in shares]
        groups.append([(weight, one), *(each for group in shares for each in group)])
    return groups


def _by_trial(group: Sequence[tuple[float, TrialEffects]]) -> list[float]:
    """The weighted sum in each trial that has all effects; without two of these, that of the means over trials."""
    whole = set.intersection(*(set(one) for _, one in group))
    if len(whole) < 2:
        return [sum(weight * fmean(one.values()) for weight, one in group)]
    return [sum(weight * one[trial] for weight, one in group) for trial in sorted(whole)]


def _counted(record: Record) -> list[float]:
    return [one for one in record.samples if one]
