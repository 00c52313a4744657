"""First launches: is it shown to be small, does it look like a change, or is more needed?  Then fresh ones decide."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from .estimates import Estimate, pooled_variance
from .families import benjamini_hochberg, stops
from .moderation import Prior

LEAST = 0.4  # of the smallest relevant change
Effects = Sequence[float | None]  # one a launch that was made; None where all its rounds were lost


class Zone(StrEnum):
    OPEN = "open"
    SMALL = "small"  # shown to be less than the smallest relevant change, either way
    MORE = "more"
    LESS = "less"


@dataclass(frozen=True)
class Limits:
    """`smallest` is the log of the smallest relevant change; the others are chances of a wrong answer, over all looks.

    A change is one when it is surely past `least`.  Were that the smallest change itself, a change of exactly that size
    would be found every second time only; at half of it 85 of 100 are found in 8 launches, at .4 of it 92
    (launches that vary by .25 %, simulated), and what is shown to be below the smallest change is steady all the same.
    """

    smallest: float
    steps: tuple[int, ...]  # launches after which it is looked at
    missed: float  # that a smallest change is called small
    error: float  # of a suspicion: that equal sides look like a change; of a confirmation: what is told and is none

    @property
    def least(self) -> float:
        return LEAST * self.smallest


@dataclass(frozen=True)
class Seen:
    """What the launches up to the look that decided, or the last one, say.

    `p` is as at that look and `q` for the whole: over all looks and, of what was confirmed, the family.
    """

    zone: Zone = Zone.OPEN
    estimate: Estimate | None = None
    p: float | None = None
    q: float | None = None

    @property
    def launches(self) -> int:
        return self.estimate.launches if self.estimate else 0


def first_look(effects: Effects, limits: Limits, prior: Prior | None) -> Seen:
    """Look at the first launches as often as the limits allow, until they say something."""
    seen = Seen()
    for stop in stops(limits.steps, len(effects)):
        estimate = Estimate.of(_measured(effects[: stop.launches]), prior)
        if estimate is not None:
            p = estimate.p_no_change()
            seen = Seen(_zone(estimate, p, limits, stop.share), estimate, p)
        if seen.zone is not Zone.OPEN:
            break
    return seen


def _zone(estimate: Estimate, p_no_change: float, limits: Limits, share: float) -> Zone:
    if estimate.p_within(limits.smallest) <= limits.missed * share:
        return Zone.SMALL
    if p_no_change <= limits.error * share and abs(estimate.centre) >= limits.least:
        return Zone.MORE if estimate.centre > 0 else Zone.LESS
    return Zone.OPEN


@dataclass(frozen=True)
class Suspect:
    """A case whose first launches looked like a change in one direction, and the fresh launches that decide."""

    direction: Zone
    looked: Effects
    fresh: Effects
    limits: Limits
    prior: Prior | None

    def estimate(self, launches: int) -> Estimate | None:
        """Of the first so many fresh launches alone; but a case is not taken to vary less than all of its own do.

        A few cases of a family may vary several times as much as the rest, which three launches do not always show.
        Without a family all that is known of the variance is what the case's own launches say.
        """
        looked, fresh = _measured(self.looked), _measured(self.fresh[:launches])
        own = pooled_variance(looked, fresh)
        prior = self.prior or (Prior(own, len(looked) - 1, math.inf) if own else None)
        return Estimate.of(fresh, prior, at_least=own)


def confirm(suspects: Sequence[Suspect]) -> list[Seen]:
    """What the fresh launches of all suspected cases of a run say, looked at in steps.

    At each step the p-values of those still open go through Benjamini-Hochberg together with what was confirmed at
    earlier steps.  The family is only the suspected: fresh launches are independent of those that chose them, so
    however many cases were looked at first, theirs are ordinary p-values (a two-stage design: Zehetmayer, Bauer &
    Posch 2005).  OPEN is what more launches could decide; the direction of its suspicion is what was confirmed;
    SMALL is shown to be no change; the other direction contradicts.
    """
    found = [Seen() for _ in suspects]
    looks = [stops(one.limits.steps, len(one.fresh)) for one in suspects]
    for step in range(max(map(len, looks), default=0)):
        chances = [0.0 if _told(seen, one) else 1.0 for seen, one in zip(found, suspects, strict=True)]
        for place, one in enumerate(suspects):
            if found[place].zone is not Zone.OPEN or step >= len(looks[place]):
                continue
            stop = looks[place][step]
            estimate = one.estimate(stop.launches)
            if estimate is None:
                continue
            p = _beyond(estimate, one)
            found[place] = Seen(_refuted(estimate, one, stop.share), estimate, p)
            if found[place].zone is Zone.OPEN:
                chances[place] = min(1.0, p / stop.share)
        for place, q in enumerate(benjamini_hochberg(chances)):
            one, seen = suspects[place], found[place]
            if seen.zone is Zone.OPEN and seen.estimate is not None and step < len(looks[place]):
                found[place] = replace(seen, q=q, zone=one.direction if q <= one.limits.error else Zone.OPEN)
    return found


def _told(seen: Seen, one: Suspect) -> bool:
    return seen.zone is one.direction


def _beyond(estimate: Estimate, one: Suspect) -> float:
    """How often a change of no more than `least` would look like this one, in its direction."""
    return estimate.p_above(one.limits.least) if one.direction is Zone.MORE else estimate.p_below(-one.limits.least)


def _refuted(estimate: Estimate, one: Suspect, share: float) -> Zone:
    """SMALL, or the other direction, where the fresh launches show that; else it is open."""
    zone = _zone(estimate, estimate.p_no_change(), one.limits, share)
    return Zone.OPEN if zone is one.direction else zone


def _measured(effects: Effects) -> list[float]:
    return [effect for effect in effects if effect is not None]
