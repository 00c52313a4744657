"""First trials: is it shown to be small, does it look like a change, or is more needed?  Then fresh ones decide."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from .estimates import Estimate, pooled_variance
from .multiplicity import benjamini_hochberg, stops
from .offsets import Offset
from .variance_prior import Prior

LEAST = 0.4  # of the smallest relevant change
Effects = Sequence[float | None]  # one a trial that was made; None where all its rounds were lost


class Zone(StrEnum):
    OPEN = "open"
    SMALL = "small"  # shown to be less than the smallest relevant change, either way
    MORE = "more"
    LESS = "less"


@dataclass(frozen=True)
class Limits:
    """`smallest` is the log of the smallest relevant change; the others are chances of a wrong answer, over all looks.

    A change is one when it is surely past `least`.  Were that the smallest change itself, a change of exactly that size
    would be found every second time only; at half of it 85 of 100 are found in 8 trials, at .4 of it 92
    (trials that vary by .25 %, simulated), and what is shown to be below the smallest change is steady all the same.
    """

    smallest: float
    steps: tuple[int, ...]  # trials after which it is looked at
    missed: float  # that a smallest change is called small
    error: float  # of a alpha: that equal sides look like a change; of a confirmation: what is told and is none

    @property
    def least(self) -> float:
        return LEAST * self.smallest


@dataclass(frozen=True)
class Seen:
    """What the trials up to the look that decided, or the last one, say.

    `p` is as at that look and `q` for the whole: over all looks and, of what was confirmed, the family.
    """

    zone: Zone = Zone.OPEN
    estimate: Estimate | None = None
    p: float | None = None
    q: float | None = None
    futile: bool = False  # open, and no number of trials could settle it: the session's offset hides the answer

    @property
    def trials(self) -> int:
        return self.estimate.trials if self.estimate else 0


def first_look(effects: Effects, limits: Limits, prior: Prior | None, offset: Offset | None = None) -> Seen:
    """Look at the first trials as often as the limits allow, until they say something."""
    seen = Seen()
    for stop in stops(limits.steps, len(effects)):
        estimate = Estimate.of(_measured(effects[: stop.trials]), prior, offset=offset)
        if estimate is not None:
            p = estimate.p_no_change()
            zone = _zone(estimate, p, limits, stop.share)
            seen = Seen(zone, estimate, p, futile=zone is Zone.OPEN and _futile(estimate, limits, offset))
        if seen.zone is not Zone.OPEN or seen.futile:
            break
    return seen


def _futile(estimate: Estimate, limits: Limits, offset: Offset | None) -> bool:
    """Would this stay open with any number of trials, as the offset of the session alone hides the answer?"""
    if offset is None or offset.variance == 0:
        return False
    at_best = estimate.with_error(offset.sd, offset.cases)
    return _zone(at_best, at_best.p_no_change(), limits, 1.0) is Zone.OPEN


def _zone(estimate: Estimate, p_no_change: float, limits: Limits, share: float) -> Zone:
    if estimate.p_within(limits.smallest) <= limits.missed * share:
        return Zone.SMALL
    if p_no_change <= limits.error * share and abs(estimate.centre) >= limits.least:
        return Zone.MORE if estimate.centre > 0 else Zone.LESS
    return Zone.OPEN


@dataclass(frozen=True)
class Suspect:
    """A case whose first trials looked like a change in one direction, and the fresh trials that decide."""

    direction: Zone
    looked: Effects
    fresh: Effects
    limits: Limits
    prior: Prior | None
    offset: Offset | None = None
    typical: float = 0.0  # by how much the middle case of the provider moved

    def estimate(self, trials: int, *, offset: bool = True) -> Estimate | None:
        """Of the first so many fresh trials alone; but a case is not taken to vary less than all of its own do.

        A few cases of a family may vary several times as much as the rest, which three trials do not always show.
        Without a family all that is known of the variance is what the case's own trials say.
        """
        added = self.offset.variance if offset and self.offset else 0.0
        return self._estimate(trials, _measured(self.fresh[:trials]), added)

    def p_of_all(self, trials: int) -> float:
        """How often no change would look like this, of the first trials together with so many fresh ones.

        An offset that all cases share cannot have made a case unlike the others: so either that is shown, or the
        controls show that no such offset is as large.  They are few, one for each provider, and more trials do not
        make them more.
        """
        if self.offset is None:
            return 0.0
        effects = [*_measured(self.looked), *_measured(self.fresh[:trials])]
        estimate = self._estimate(trials, effects, self.offset.own)
        if estimate is None:
            return 1.0
        p = _beyond(estimate, self)
        if self.exceeds_common(estimate):
            return p
        return max(p, _beyond(estimate.less(self.typical), self))

    def exceeds_common(self, estimate: Estimate) -> bool:
        """Is the change surely larger than what all cases of the session have in common without any?"""
        if self.offset is None or self.offset.common == 0:
            return True
        common = estimate.with_error(math.sqrt(self.offset.common), self.offset.providers)
        return _beyond(common, self) <= self.limits.error

    def _estimate(self, trials: int, effects: Sequence[float], added: float) -> Estimate | None:
        looked = _measured(self.looked)
        own = pooled_variance(looked, _measured(self.fresh[:trials]))
        prior = self.prior or (Prior(own, len(looked) - 1, math.inf) if own else None)
        estimate = Estimate.of(effects, prior, at_least=own)
        if estimate is None or self.offset is None:
            return estimate
        return estimate.with_variance(added, self.offset.cases)


def confirm(suspects: Sequence[Suspect], compared: int = 0) -> list[Seen]:
    """What the fresh trials of all suspected cases of a run say, looked at in steps.

    At each step the p-values of those still open go through Benjamini-Hochberg together with what was confirmed at
    earlier steps, twice.  Of the fresh trials the family is only the suspected: what varies from trial to trial is
    independent of what chose them (a two-stage design: Zehetmayer, Bauer & Posch 2005).  The offset of the session is
    not: it raised the suspicion and confirms it.  So where an offset is known, all trials together must say the same
    among all `compared` cases.  OPEN is what more trials could decide; the direction of its suspicion is what was
    confirmed; SMALL is shown to be no change; the other direction contradicts.
    """
    found = [Seen() for _ in suspects]
    looks = [stops(one.limits.steps, len(one.fresh)) for one in suspects]
    for step in range(max(map(len, looks), default=0)):
        fresh = [0.0 if _told(seen, one) else 1.0 for seen, one in zip(found, suspects, strict=True)]
        total = fresh.copy()
        for place, one in enumerate(suspects):
            if found[place].zone is not Zone.OPEN or found[place].futile or step >= len(looks[place]):
                continue
            stop = looks[place][step]
            estimate, trials_alone = one.estimate(stop.trials), one.estimate(stop.trials, offset=False)
            if estimate is None or trials_alone is None:
                continue
            p = _beyond(trials_alone, one)
            found[place] = Seen(_refuted(estimate, one, stop.share), estimate, p)
            if found[place].zone is Zone.OPEN:
                fresh[place] = min(1.0, p / stop.share)
                # Its looks spend nothing: the offset is the same at each of them, so it has one chance and not several.
                total[place] = one.p_of_all(stop.trials)
        both = zip(benjamini_hochberg(fresh), benjamini_hochberg(total, compared), strict=True)
        for place, q in enumerate(map(max, both)):
            one, seen = suspects[place], found[place]
            if seen.zone is Zone.OPEN and not seen.futile and seen.estimate is not None and step < len(looks[place]):
                zone = one.direction if q <= one.limits.error else Zone.OPEN
                found[place] = replace(seen, q=q, zone=zone, futile=zone is Zone.OPEN and _in_vain(seen.estimate, one))
    return found


def _in_vain(estimate: Estimate, one: Suspect) -> bool:
    """Could no number of fresh trials confirm or refute it, because of the session's offset?"""
    if one.offset is None or one.offset.variance == 0:
        return False
    at_best = estimate.with_error(math.sqrt(one.offset.own), one.offset.cases)
    if at_best.p_within(one.limits.smallest) <= one.limits.missed:
        return False
    apart = at_best.less(one.typical)
    p = max(_beyond(at_best, one), 0.0 if one.exceeds_common(estimate) else _beyond(apart, one))
    return p > one.limits.error


def _told(seen: Seen, one: Suspect) -> bool:
    return seen.zone is one.direction


def _beyond(estimate: Estimate, one: Suspect) -> float:
    """How often a change of no more than `least` would look like this one, in its direction."""
    return estimate.p_above(one.limits.least) if one.direction is Zone.MORE else estimate.p_below(-one.limits.least)


def _refuted(estimate: Estimate, one: Suspect, share: float) -> Zone:
    """SMALL, or the other direction, where the fresh trials show that; else it is open."""
    zone = _zone(estimate, estimate.p_no_change(), one.limits, share)
    return Zone.OPEN if zone is one.direction else zone


def _measured(effects: Effects) -> list[float]:
    return [effect for effect in effects if effect is not None]
