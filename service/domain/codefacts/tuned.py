"""Which configurations an autotuner of a target chose from trial to trial, and whether they mean anything.  Pure.

An autotuner chooses again in each process.  Where it wavers, what the first trial ran says nothing of the others: a
configuration that both sides ran in some trial is no difference between them.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from service.domain.roofline import number
from service.domain.text import listed, one_line

EQUAL = 0.01  # medians of two configurations that differ by less are of equal speed
NAMED = 3


@dataclass(frozen=True)
class Choice:
    """One configuration, the trials that ran it, and their medians in the unit of the case."""

    configuration: str
    trials: int
    medians: tuple[float, ...]


@dataclass(frozen=True)
class Choices:
    """The configurations that trials of one contender at one case chose, most frequent first; empty without tuning."""

    found: tuple[Choice, ...] = ()

    @property
    def waver(self) -> bool:
        """Did trials run different configurations?"""
        return len(self.found) > 1

    @property
    def equally_fast(self) -> bool:
        """Whether all chosen configurations are equally fast."""
        typical = [median(one.medians) for one in self.found if one.medians]
        return bool(typical) and max(typical) <= min(typical) * (1 + EQUAL)

    @property
    def words(self) -> str:
        """`its autotuner chose 2 configurations of equal speed in 5 trials (BLOCK=64 in 3, BLOCK=128 in 2)`."""
        if not self.waver:
            return ""
        trials = sum(one.trials for one in self.found)
        speed = " of equal speed" if self.equally_fast else " of different speeds"
        each = [f"{one_line(one.configuration, 80)} in {one.trials}" for one in self.found[:NAMED]]
        if more := len(self.found) - NAMED:
            each += [f"{more} more"] if more > 0 else []
        return f"its autotuner chose {len(self.found)} configurations{speed} in {trials} trials ({listed(each)})"


def chosen_by_order(facts: Mapping[str, Any]) -> str:
    """Where the key of an autotuner does not tell the case from another at which it chose otherwise; else empty."""
    stored = facts.get("tuned_by_order")
    for kernel, found in stored.items() if isinstance(stored, Mapping) else ():
        if isinstance(found, Mapping):
            case, here, there = (one_line(str(found.get(name, "")), 80) for name in ("case", "here", "there"))
            return (
                f"the key of its autotuner does not tell this case from {case}: in a program, the first of them "
                f"chooses for both ({one_line(str(kernel), 80)}: {here} here, {there} there)"
            )
    return ""


def choices(facts: Mapping[str, Any]) -> Choices:
    """The choices that a contender's facts hold; what makes no sense in them counts as not said."""
    stored = facts.get("tuned")
    found: dict[str, list[float | None]] = {}
    for one in stored if isinstance(stored, Sequence) and not isinstance(stored, str) else ():
        if isinstance(one, Mapping) and isinstance(one.get("configuration"), str):
            found.setdefault(one["configuration"], []).append(number(one.get("median")))
    by_count = sorted(found.items(), key=lambda item: -len(item[1]))
    return Choices(
        tuple(
            Choice(configuration, len(medians), tuple(each for each in medians if each))
            for configuration, medians in by_count
        )
    )


def interchangeable(head: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Did a side waver, and ran both sides the same configuration in some trial?  Then none explains a difference."""
    mine, theirs = choices(head), choices(other)
    shared = {one.configuration for one in mine.found} & {one.configuration for one in theirs.found}
    return bool(shared) and (mine.waver or theirs.waver)
