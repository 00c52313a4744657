"""The changes of a series: all of them, or whether the newest revision is one.  Pure: values in, changes out."""

import math
from collections.abc import Iterator, Sequence
from itertools import groupby, pairwise

import numpy as np

from service.history.adjusted import adjusted
from service.history.segments import segments
from service.history.steps import MAD_TO_SIGMA, Logs, Step
from service.history.values import Change, HistoryLimits, Level, Seen

BLOCK_SEPARATION = 0.8  # Cliff's delta of a change that may block
CLOSED_AFTER = 30  # revisions after a change that cannot undo it any more
TAIL = 200  # newest revisions that are looked at again when one is added
SUSPECT = 3.5  # robust deviations by which the newest revision is out of line
USUAL = 30  # revisions before it that say what is usual
FEWEST_USUAL = 8
DEFAULTS = HistoryLimits()


def changes(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS) -> list[Change]:
    """Every change of level in a series, oldest first.

    Epochs (one stack each) are looked at alone: what changed together with the stack is nobody's commit.
    Raises ValueError where the revisions are not in order.
    """
    _check_order(seen)
    found = []
    for epoch in epochs(seen):
        for place, step in segments(_logs(epoch), limits):
            found.append(_change(epoch[place - 1], epoch[place], step, limits))
    return found


def changes_since(seen: Sequence[Seen], known: Sequence[Change], limits: HistoryLimits = DEFAULTS) -> list[Change]:
    """`known`, brought up to date with the newest revisions: cheap, and what is closed stays as it is.

    A change is closed once `CLOSED_AFTER` revisions follow it.  Only what came after the last closed one is looked at
    again, and of that no more than `TAIL` revisions: begin a series with `changes`.
    """
    closed_before = seen[-CLOSED_AFTER].ordinal if len(seen) >= CLOSED_AFTER else -math.inf
    closed = [change for change in known if change.ordinal <= closed_before]
    since = max((change.ordinal for change in closed), default=-math.inf)
    tail = [one for one in seen[-TAIL:] if one.ordinal >= since]
    _check_order(tail)
    open_before = tail[0].ordinal if tail else 0
    older = [change for change in known if change.ordinal <= open_before and change not in closed]
    found = [
        _change(epoch[place - 1], epoch[place], step, limits)
        for epoch in epochs(tail)
        for place, step in segments(_logs(epoch), limits)
    ]
    return [*closed, *older, *found]


def epochs(seen: Sequence[Seen]) -> Iterator[list[Seen]]:
    """Runs of revisions that were measured with one stack."""
    for _, epoch in groupby(seen, key=lambda one: one.stack):
        yield list(epoch)


def newest(seen: Sequence[Seen], limits: HistoryLimits = DEFAULTS, known: Sequence[Change] = ()) -> Change | None:
    """The newest revision as a change, where it is out of line with what is usual since the last of `known`.

    One revision is a suspicion, never more than NOTIFY: ask for two fresh sessions of it and of its parent.
    None where fewer than eight revisions of its stack came before it.
    """
    _check_order(seen)
    epoch = [one for one in seen if one.stack == seen[-1].stack] if seen else []
    since = max((change.ordinal for change in known), default=epoch[0].ordinal if epoch else 0)
    level = [one for one in epoch if one.ordinal >= since]
    if len(level) <= FEWEST_USUAL:
        return None
    logs = _logs(level)
    usual, last = logs[:-1][-USUAL:], float(logs[-1])
    middle = float(np.median(usual))
    sigma = MAD_TO_SIGMA * float(np.median(np.abs(usual - middle))) or 1.2533 * float(np.abs(usual - middle).mean())
    shift = last - middle
    if abs(shift) <= SUSPECT * sigma or abs(shift) < math.log1p(limits.notify):
        return None
    reach = 1.96 * sigma
    return Change(
        ordinal=level[-1].ordinal,
        before=level[-2].ordinal,
        ratio=math.exp(shift),
        low=math.exp(shift - reach),
        high=math.exp(shift + reach),
        level=Level.NOTIFY,
        p=math.erfc(abs(shift) / sigma / math.sqrt(2)) if sigma else 0.0,
    )


def _check_order(seen: Sequence[Seen]) -> None:
    for one, other in pairwise(seen):
        if one.ordinal >= other.ordinal:
            raise ValueError(
                f"Revision {other.ordinal} comes after {one.ordinal}: give each revision once, oldest first."
            )


def _logs(epoch: Sequence[Seen]) -> Logs:
    value = np.log(np.array([one.value for one in epoch]))
    reference = np.log(np.array([math.nan if one.reference is None else one.reference for one in epoch]))
    return adjusted(value, reference)


def _change(before: Seen, first: Seen, step: Step, limits: HistoryLimits) -> Change:
    blocks = step.effect >= math.log1p(limits.block) and step.separation >= BLOCK_SEPARATION
    low, high = step.interval()
    return Change(
        ordinal=first.ordinal,
        before=before.ordinal,
        ratio=math.exp(step.shift),
        low=low,
        high=high,
        level=Level.BLOCK if blocks else Level.NOTIFY,
        p=step.p,
    )
