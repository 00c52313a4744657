"""The changes of a series: all of them, those of its newest part, or whether the newest revision is one."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np

from service.history.adjusted import adjusted
from service.history.segments import Place, places
from service.history.steps import MAD_TO_SIGMA, MEAN_TO_SIGMA, Logs
from service.history.values import Change, HistoryLimits, Level, Seen

CLOSED_AFTER = 30  # revisions that close a change: it stays, whatever comes
TAIL = 200  # newest revisions that are looked at again when one is added
WARM_UP = 100  # revisions before those, from which the control variate has learned
CALM = 2.5  # deviations by which no part of a calm tail leans from the rest
SUSPECT = 3.5  # deviations by which the newest revision is out of line
USUAL = 30  # revisions before it that say what is usual
FEWEST_USUAL = 8
FAST_SMALLEST = 0.01  # a single revision is not asked about half a percent
DEFAULTS = HistoryLimits()


def changes(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS) -> list[Change]:
    """Every change of level in a series, oldest first.

    Epochs (one stack each) are looked at alone: what changed together with the stack is nobody's commit.
    Raises ValueError where the revisions are not in order.
    """
    _check_order(seen)
    return [change for epoch in _epochs(seen) for change in _changes(epoch, _logs(epoch), limits)]


def changes_since(seen: Sequence[Seen], known: Sequence[Change], limits: HistoryLimits = DEFAULTS) -> list[Change]:
    """`known`, brought up to date with the newest revisions: cheap, and what is closed stays as it is.

    A change is closed once `CLOSED_AFTER` revisions follow it.  Only what came after the last closed one is looked at
    again, and of that no more than `TAIL` revisions: begin a series with `changes`.
    """
    warm_up = WARM_UP if seen and seen[-1].reference is not None else 0
    recent = seen[-TAIL - warm_up :]
    _check_order(recent)
    settled = recent[-CLOSED_AFTER].ordinal if len(recent) >= CLOSED_AFTER else -math.inf
    closed = [change for change in known if change.ordinal <= settled]
    since = max((change.ordinal for change in closed), default=-math.inf)
    if len(recent) > TAIL:
        since = max(since, recent[-TAIL].ordinal)
    found: list[Change] = []
    for epoch in _epochs(recent):
        if epoch[-1].ordinal < since:
            continue
        first = next(place for place, one in enumerate(epoch) if one.ordinal >= since)
        logs = _logs(epoch)[first:]
        if len(closed) < len(known) or not _calm(logs):
            found += _changes(epoch[first:], logs, limits)
    return [*closed, *found]


def newest(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS, known: Sequence[Change] = ()) -> Change | None:
    """The newest revision as a change, where it is out of line with what was usual since the last of `known`.

    One revision is a suspicion, never more than NOTIFY: ask for two fresh sessions of it and of its parent.
    None where fewer than eight revisions of its stack came before it.
    """
    recent = seen[-TAIL:]
    _check_order(recent)
    since = max((change.ordinal for change in known), default=-math.inf)
    level = [one for one in recent if one.stack == recent[-1].stack and one.ordinal >= since]
    if len(level) <= FEWEST_USUAL:
        return None
    logs = _logs(level)
    usual, last = logs[-USUAL - 1 : -1], float(logs[-1])
    middle = float(np.median(usual))
    away = np.abs(usual - middle)
    sigma = MAD_TO_SIGMA * float(np.median(away)) or MEAN_TO_SIGMA * float(away.mean())
    shift = last - middle
    if abs(shift) <= SUSPECT * sigma or abs(shift) < math.log1p(max(limits.notify, FAST_SMALLEST)):
        return None
    return Change(
        ordinal=level[-1].ordinal,
        before=level[-2].ordinal,
        ratio=math.exp(shift),
        low=math.exp(shift - 1.96 * sigma),
        high=math.exp(shift + 1.96 * sigma),
        level=Level.NOTIFY,
        p=math.erfc(abs(shift) / sigma / math.sqrt(2)) if sigma else 0.0,
    )


def _check_order(seen: Sequence[Seen]) -> None:
    for one, other in pairwise(seen):
        if one.ordinal >= other.ordinal:
            raise ValueError(
                f"Revision {other.ordinal} comes after {one.ordinal}: give each revision once, oldest first."
            )


def _epochs(seen: Sequence[Seen]) -> Iterator[list[Seen]]:
    """Runs of revisions that were measured with one stack."""
    for _, epoch in groupby(seen, key=lambda one: one.stack):
        yield list(epoch)


def _logs(epoch: Sequence[Seen]) -> Logs:
    value = np.log([one.value for one in epoch])
    if all(one.reference is None for one in epoch):
        return value
    return adjusted(value, np.log([math.nan if one.reference is None else one.reference for one in epoch]))


def _calm(logs: Logs) -> bool:
    """No split of the tail has two means further apart than noise puts them (CUSUM: Page, 1954)."""
    middle = float(np.median(logs))
    spread = MAD_TO_SIGMA * float(np.median(np.abs(logs - middle)))
    residuals = np.clip(logs - middle, -3 * spread, 3 * spread)
    residuals -= residuals.mean()
    sigma = float(residuals.std())
    if sigma == 0:
        return bool(np.ptp(logs) == 0)
    place = np.arange(1, len(logs))
    lean = np.abs(np.cumsum(residuals)[:-1]) / np.sqrt(place * (len(logs) - place) / len(logs))
    return bool((lean <= CALM * sigma).all())


def _changes(epoch: Sequence[Seen], logs: Logs, limits: HistoryLimits) -> list[Change]:
    return [_change(epoch, place, limits) for place in places(logs, limits)]


def _change(epoch: Sequence[Seen], place: Place, limits: HistoryLimits) -> Change:
    step = place.step
    blocks = step.p <= limits.block_alpha and step.effect >= math.log1p(limits.block)
    low, high = step.interval()
    return Change(
        ordinal=epoch[place.start].ordinal,
        before=epoch[place.start - 1].ordinal,
        ratio=math.exp(step.shift),
        low=low,
        high=high,
        level=Level.BLOCK if blocks else Level.NOTIFY,
        p=step.p,
    )
