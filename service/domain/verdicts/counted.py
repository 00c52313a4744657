"""Verdicts about counts: exact, so two trials that agree decide, and any that disagree leave the case undecided.  Pure.

No statistics take part: a count of equal code does not vary.  Where it does, no number of trials can say which value is
right, and the case is inconclusive.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kernels.cases import Comparison
from service.domain.stats import counts
from service.domain.verdicts.reasons import Reason, ReasonCode, reason
from service.domain.verdicts.samples import Cell, Outcome, Pairs, Rounds

MIN_TRIALS = 2  # that must agree


@dataclass(frozen=True)
class Counted:
    """A case whose metric counts, against its baseline."""

    outcome: Outcome
    reason: Reason
    comparison: Comparison | None = None
    control: float | None = None  # as a ratio (`service.domain.stats.counts`)


def compare_counts(cell: Cell, smallest: int) -> Counted:
    """Compare the counts of a cell that has a baseline; `smallest` is the smallest difference that matters."""
    now, before = (_values(side, cell.screened, cell.confirmed) for side in ("candidate", "baseline"))
    copies = () if cell.borrowed else _values("candidate", cell.control)
    control = counts.ratio(copies[0] - before[0]) if copies and before else None
    if len(now) < MIN_TRIALS or len(before) < MIN_TRIALS:
        return Counted(Outcome.INCONCLUSIVE, reason(ReasonCode.SESSION_ENDED, suspected=False), control=control)
    if len(set(now)) > 1 or len({*before, *copies}) > 1:
        seen = {"now": sorted(set(now)), "before": sorted({*before, *copies})}
        return Counted(
            Outcome.INCONCLUSIVE, reason(ReasonCode.COUNTS_VARY, **seen), _comparison(cell.screened), control
        )
    change = now[0] - before[0]
    outcome = Outcome.STEADY
    if abs(change) >= smallest:
        outcome = Outcome.REGRESSION if change > 0 else Outcome.IMPROVEMENT
    why = reason(ReasonCode.COUNTED, now=now[0], before=before[0], smallest=smallest)
    return Counted(outcome, why, _comparison(cell.screened), control)


def counted(pairs: Pairs, baseline: str, smallest: int) -> Reason | None:
    """The counts of the head and of a baseline other than its parent; None for what is not counted."""
    if not pairs.counts:
        return None
    now, before = (_values(side, pairs) for side in ("candidate", "baseline"))
    if len(set(now)) == len(set(before)) == 1:
        return reason(ReasonCode.COUNTED, now=now[0], before=before[0], smallest=smallest, baseline=baseline)
    return reason(ReasonCode.COUNTS_VARY, now=sorted(set(now)), before=sorted(set(before)), baseline=baseline)


def _values(side: str, *pairs: Pairs) -> tuple[int, ...]:
    """The counts of a side, one for each trial that was not lost."""
    trials: Sequence[Rounds] = [rounds for one in pairs for rounds in getattr(one, side)]
    return tuple(int(value) for rounds in trials for value in rounds[:1] if value is not None)


def _comparison(pairs: Pairs) -> Comparison | None:
    """The difference as a ratio, without an interval around it."""
    effects = pairs.effects()
    if not effects:
        return None
    lowest, middle, highest = min(effects), sorted(effects)[len(effects) // 2], max(effects)
    return Comparison(math.exp(middle), math.exp(lowest), math.exp(highest), pairs.rounds, len(effects))
