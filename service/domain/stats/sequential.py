"""Sequential tests in two stages: screening decides or suspects a change; confirmation by new trials decides."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from service.domain.stats.estimates import benjamini_hochberg, stops

from .estimates import Estimate, pooled_variance
from .offsets import Offset
from .variance_prior import Prior

MIN_SHARE = 0.4  # of the smallest relevant change that a change is shown to exceed
Effects = Sequence[float | None]  # one for each trial; None where all its rounds were lost


class Zone(StrEnum):
    OPEN = "open"
    SMALL = "small"  # shown to be less than the smallest relevant change in both directions
    MORE = "more"
    LESS = "less"


@dataclass(frozen=True)
class Limits:
    """Error probabilities over all interim tests; `smallest_change` is the log of the smallest relevant change.

    A change must be shown to exceed `min_change`.  If that were the smallest relevant change itself, a change of
    exactly that size would be found half of the time.  With 0.5 of it 85 % are found in 8 trials and with 0.4 of it
    92 % (simulated, trials vary by 0.25 %).
    """

    smallest_change: float
    steps: tuple[int, ...]  # numbers of trials after which is tested
    beta: float  # that a change of `smallest_change` is called small
    alpha: float  # of screening: the type I error rate; of confirmation: the false discovery rate

    @property
    def min_change(self) -> float:
        return MIN_SHARE * self.smallest_change


@dataclass(frozen=True)
class Decision:
    """The result of the interim test that decided, or of the last one.

    `p` is of that test alone; `q` is adjusted for all interim tests and, in confirmation, for the family.
    """

    zone: Zone = Zone.OPEN
    estimate: Estimate | None = None
    p: float | None = None
    q: float | None = None
    futile: bool = False  # open, and no number of trials could decide: the session's offset is too large
    second: bool = False  # futile, but a second session with the same result would decide

    @property
    def trials(self) -> int:
        return self.estimate.trials if self.estimate else 0


def screen(
    effects: Effects,
    limits: Limits,
    prior: Prior | None,
    offset: Offset | None = None,
    before: Estimate | None = None,
) -> Decision:
    """Test the screening trials after each step of the limits until one decides.

    `before` is the estimate of an earlier session; `offset` is then that of the mean over both.
    """
    seen = Decision()
    for stop in stops(limits.steps, len(effects)):
        estimate = Estimate.of(_measured(effects[: stop.trials]), prior, before=before, offset=offset)
        if estimate is not None:
            p = estimate.p_no_change()
            zone = _zone(estimate, p, limits, stop.share)
            futile = zone is Zone.OPEN and _futile(estimate, limits, offset)
            second = futile and offset is not None and not _futile(estimate, limits, offset.of_two_sessions())
            seen = Decision(zone, estimate, p, futile=futile, second=second)
        if seen.zone is not Zone.OPEN or seen.futile:
            break
    return seen


def _futile(estimate: Estimate, limits: Limits, offset: Offset | None) -> bool:
    """Would this stay open with any number of trials, because of the session's offset alone?"""
    if offset is None or offset.variance == 0:
        return False
    at_best = estimate.with_error(offset.sd, offset.df)
    return _zone(at_best, at_best.p_no_change(), limits, 1.0) is Zone.OPEN


def _zone(estimate: Estimate, p_no_change: float, limits: Limits, share: float) -> Zone:
    if estimate.p_within(limits.smallest_change) <= limits.beta * share:
        return Zone.SMALL
    if p_no_change <= limits.alpha * share and abs(estimate.centre) >= limits.min_change:
        return Zone.MORE if estimate.centre > 0 else Zone.LESS
    return Zone.OPEN


@dataclass(frozen=True)
class Suspect:
    """A case that screening suspects of a change in one direction, and its confirmation trials."""

    direction: Zone
    screening: Effects
    confirmation: Effects
    limits: Limits
    prior: Prior | None
    offset: Offset | None = None
    typical: float = 0.0  # median effect of the provider's cases
    before: Estimate | None = None  # of an earlier session; `offset` is then that of the mean over both

    def estimate(self, trials: int, *, offset: bool = True) -> Estimate | None:
        """Estimate from the first `trials` confirmation trials; the variance is at least that of all the case's trials.

        A few cases of a family may vary several times as much as the rest, which three trials do not always show.
        Without a prior of the family, the prior is the variance of the case's own trials.
        """
        effects = _measured(self.confirmation[:trials])
        if not offset:
            return replace(self, offset=None, before=None)._estimate(trials, effects, 0.0)
        return self._estimate(trials, effects, self.offset.variance if self.offset else 0.0)

    def pooled(self) -> Estimate | None:
        """Estimate from all trials, for a case that they leave undecided.

        The screening trials were selected for looking like a change, so this is drawn towards one; the confirmation
        trials, of which there are usually more, draw it back.
        """
        effects = [*_measured(self.screening), *_measured(self.confirmation)]
        added = self.offset.variance if self.offset else 0.0
        return self._estimate(len(self.confirmation), effects, added)

    def p_of_all(self, trials: int) -> float:
        """p of no change, from the screening trials together with the first `trials` confirmation trials.

        An offset that all cases share cannot make one case differ from the others.  So either the case is shown to
        differ from them, or the controls show that no shared offset is as large.  There is one control for each
        provider, and more trials do not add any.
        """
        if self.offset is None:
            return 0.0
        effects = [*_measured(self.screening), *_measured(self.confirmation[:trials])]
        estimate = self._estimate(trials, effects, self.offset.own)
        if estimate is None:
            return 1.0
        p = _beyond(estimate, self)
        if self.exceeds_common(estimate):
            return p
        return max(p, _beyond(estimate.less(self.typical), self))

    def in_two_sessions(self) -> "Suspect":
        """The same with the offsets of the mean over two sessions."""
        return replace(self, offset=self.offset.of_two_sessions()) if self.offset else self

    def exceeds_common(self, estimate: Estimate) -> bool:
        """Whether the change is larger than the offset that all cases of the session share."""
        if self.offset is None or self.offset.common == 0:
            return True
        common = estimate.with_error(math.sqrt(self.offset.common), self.offset.providers)
        return _beyond(common, self) <= self.limits.alpha

    def _estimate(self, trials: int, effects: Sequence[float], offset_variance: float) -> Estimate | None:
        """Estimate from these effects; `trials` of the confirmation count for the variance.  None with too few."""
        screening = _measured(self.screening)
        own = pooled_variance(screening, _measured(self.confirmation[:trials]))
        prior = self.prior or (Prior(own, len(screening) - 1, math.inf) if own else None)
        estimate = Estimate.of(effects, prior, at_least=own, before=self.before)
        if estimate is None or self.offset is None:
            return estimate
        return estimate.with_variance(offset_variance, self.offset.df)


def confirm(suspects: Sequence[Suspect], compared: int = 0) -> list[Decision]:
    """Test the confirmation trials of all suspected cases of a run, step by step.

    At each step, Benjamini-Hochberg is applied twice to the open cases and those confirmed before.  For confirmation
    trials the family is the suspected cases, because noise from trial to trial is independent of the selection (a
    two-stage design: Zehetmayer, Bauer & Posch 2005).  The offset of the session is not: it raised the suspicion and
    would confirm it.  So where an offset is known, all trials together must show the change too, in the family of all
    `compared` cases.

    The zone of a result is OPEN if more trials could decide, SMALL if a relevant change was excluded, the suspected
    direction if it was confirmed, and the other direction if it was contradicted.
    """
    decisions = [Decision() for _ in suspects]
    tests = [stops(suspect.limits.steps, len(suspect.confirmation)) for suspect in suspects]
    for step in range(max(map(len, tests), default=0)):
        alone = [
            0.0 if seen.zone is suspect.direction else 1.0 for seen, suspect in zip(decisions, suspects, strict=True)
        ]
        total = alone.copy()
        for place, suspect in enumerate(suspects):
            if decisions[place].zone is not Zone.OPEN or decisions[place].futile or step >= len(tests[place]):
                continue
            stop = tests[place][step]
            estimate, trials_alone = suspect.estimate(stop.trials), suspect.estimate(stop.trials, offset=False)
            if estimate is None or trials_alone is None:
                continue
            p = _beyond(trials_alone, suspect)
            decisions[place] = Decision(_refuted(estimate, suspect, stop.share), estimate, p)
            if decisions[place].zone is Zone.OPEN:
                alone[place] = min(1.0, p / stop.share)
                # No alpha is spent: the offset is the same at each test, so it has one chance and not several.
                total[place] = suspect.p_of_all(stop.trials)
        both = zip(benjamini_hochberg(alone), benjamini_hochberg(total, compared), strict=True)
        for place, q in enumerate(map(max, both)):
            suspect, seen = suspects[place], decisions[place]
            if seen.zone is Zone.OPEN and not seen.futile and seen.estimate is not None and step < len(tests[place]):
                zone = suspect.direction if q <= suspect.limits.alpha else Zone.OPEN
                futile = zone is Zone.OPEN and _is_futile(seen.estimate, suspect)
                second = futile and not _is_futile(seen.estimate, suspect.in_two_sessions())
                decisions[place] = replace(seen, q=q, zone=zone, futile=futile, second=second)
    return decisions


def _is_futile(estimate: Estimate, suspect: Suspect) -> bool:
    """Whether the session's offset prevents any number of confirmation trials from deciding."""
    if suspect.offset is None or suspect.offset.variance == 0:
        return False
    at_best = estimate.with_error(math.sqrt(suspect.offset.own), suspect.offset.df)
    if at_best.p_within(suspect.limits.smallest_change) <= suspect.limits.beta:
        return False
    apart = at_best.less(suspect.typical)
    p = max(_beyond(at_best, suspect), 0.0 if suspect.exceeds_common(estimate) else _beyond(apart, suspect))
    return p > suspect.limits.alpha


def _beyond(estimate: Estimate, suspect: Suspect) -> float:
    """p of a change of at most `min_change` in the suspected direction."""
    limit = suspect.limits.min_change
    return estimate.p_above(limit) if suspect.direction is Zone.MORE else estimate.p_below(-limit)


def _refuted(estimate: Estimate, suspect: Suspect, share: float) -> Zone:
    """SMALL or the other direction if the confirmation trials show that; else OPEN."""
    zone = _zone(estimate, estimate.p_no_change(), suspect.limits, share)
    return Zone.OPEN if zone is suspect.direction else zone


def _measured(effects: Effects) -> list[float]:
    return [effect for effect in effects if effect is not None]
