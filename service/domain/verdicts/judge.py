"""Did this revision change the case?  Pure: samples in, verdicts out; no clock, no session, no client.

The unit of sampling is the trial (a set of fresh processes); how much trials vary is learned from all cases of the
run together.  What looks like a change after some trials is only a *suspicion*: fresh trials, which had no part in
raising it, decide alone whether there is one, for all suspected cases of the run at once.  The numbers come from
`service.domain.verdicts.analysis` and `service.domain.stats`;
docs/statistics.md says why they are as they are, and how often they err.

`judge` and `wanted` take all cells of a run.  Nothing else in the service knows how a verdict is reached.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kernels.cases import Comparison
from service.domain.policy.policy import Policy
from service.domain.stats.estimates import Estimate
from service.domain.stats.sequential import Decision, Effects, Zone
from service.domain.verdicts.analysis import Doubt, Reading, readings
from service.domain.verdicts.estimation import compare, comparison
from service.domain.verdicts.reasons import Reason, ReasonCode, reason
from service.domain.verdicts.samples import Cell, Name, Outcome, Pairs

__all__ = ["CHANGES", "Cell", "Outcome", "Pairs", "Verdict", "compare", "judge", "wanted"]

Why = Literal["look", "confirm"]  # what more trials are for

MANY_DOUBTED = 0.1
CHANGES = (Outcome.REGRESSION, Outcome.IMPROVEMENT)


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: Reason
    comparison: Comparison | None = None
    confirmed: bool = False
    control: float | None = None  # the A/A control's ratio at this case: the copy over the original
    suspected: bool = False  # the first trials looked like a change
    p: float | None = None  # of the fresh trials where there are any, else of the first
    q: float | None = None  # p among the family of the run
    smallest_change: float | None = None  # the smallest relevant change that held here, relative
    doubt: Doubt | None = None  # what equal code of the session says against deciding it, where it is inconclusive
    known_before: bool = False  # invalid or failed, and so it was before this revision
    quarantined_by: str | None = None  # who quarantines it, where that is why a confirmed change is inconclusive


def judge(cells: Sequence[Cell], policy: Policy) -> dict[Name, Verdict]:
    """A verdict for every cell of a run, each by the limits of its metric and case."""
    read = readings(cells, policy)
    return {cell.name: _controlled(cell, read.get(cell.name), policy.at(cell.case)) for cell in cells}


def controls_are_off(judged: Mapping[Name, Verdict]) -> bool:
    """Did equal code leave so much of the run undecided that another session is worth its time?

    That is where a suspected change is in doubt, or one case in ten.
    """
    doubted = [one for one in judged.values() if one.doubt is not None]
    compared = sum(one.comparison is not None for one in judged.values())
    return any(one.suspected for one in doubted) or len(doubted) > MANY_DOUBTED * compared


def wanted(cells: Sequence[Cell], policy: Policy) -> Mapping[Name, Why]:
    """The cells that deserve more trials: "look" for the undecided, "confirm" for the suspected.

    Empty when everything is decided or the budget (the last of `policy.looks` and of `policy.confirms`) is spent.
    """
    asked: dict[Name, Why] = {}
    for name, one in readings(cells, policy).items():
        if one.last.futile:
            continue
        if one.first.zone is Zone.OPEN:
            if len(one.looked) < policy.screening[-1]:
                asked[name] = "look"
        elif one.suspected and one.fresh.zone is Zone.OPEN and len(one.confirmed) < policy.confirmation[-1]:
            asked[name] = "confirm"
    return asked


def trials_until_next_look(done: int, policy: Policy, why: Why = "look") -> int:
    """How many trials the undecided, or the suspected, get before they are looked at again; 0 when none are left."""
    steps = policy.screening if why == "look" else policy.confirmation
    return next((step - done for step in steps if step > done), 0)


def _controlled(cell: Cell, reading: Reading | None, policy: Policy) -> Verdict:
    control = reading.control if reading else Estimate.of(cell.control.effects())
    return replace(_judge(cell, reading, policy), control=math.exp(control.centre) if control else None)


def _judge(cell: Cell, reading: Reading | None, policy: Policy) -> Verdict:
    if cell.trouble:
        return Verdict(cell.trouble.outcome, cell.trouble.reason, known_before=cell.trouble.known_before)
    if reading is None:
        return Verdict(Outcome.NEW, cell.baseline_trouble or reason(ReasonCode.NO_BASELINE))
    verdict = _first(cell, reading, policy) if not reading.suspected else _second(cell, reading, policy)
    doubt = reading.doubt if verdict.outcome is Outcome.INCONCLUSIVE else None
    return replace(verdict, suspected=reading.suspected, smallest_change=reading.smallest_change, doubt=doubt)


def _first(cell: Cell, reading: Reading, policy: Policy) -> Verdict:
    """The screening found no suspicion: the case is steady or undecided."""
    seen, outcome = reading.first, Outcome.INCONCLUSIVE
    if seen.zone is Zone.SMALL and not _may_hide_a_change(reading, policy):
        outcome, why = Outcome.STEADY, reason(ReasonCode.WITHIN, smallest_change=reading.smallest_change)
    elif reading.doubt is not None:
        why = _doubted(reading, reading.doubt)
    elif len(reading.looked) < policy.screening[-1] or None in reading.looked:
        why = _cut_short(reading.looked, policy.screening, suspected=False)
    else:
        why = reason(ReasonCode.TOO_WIDE, trials=len(reading.looked))
    return _of(outcome, why, seen, cell.looked, policy)


def _second(cell: Cell, reading: Reading, policy: Policy) -> Verdict:
    """The screening found a suspicion, and the confirmation trials decide."""
    fresh = reading.fresh
    if fresh.zone is Zone.SMALL and not _may_hide_a_change(reading, policy):
        why = reason(ReasonCode.NOT_REPEATED, smallest_change=reading.smallest_change, trials=fresh.trials)
        return _of(Outcome.STEADY, why, fresh, cell.confirmed, policy)
    if reading.doubt is not None:
        return _of(Outcome.INCONCLUSIVE, _doubted(reading, reading.doubt), reading.first, cell.looked, policy)
    if fresh.zone is not reading.first.zone:
        return _unconfirmed(cell, reading, policy)
    if cell.same_code:
        return _of(Outcome.INCONCLUSIVE, reason(ReasonCode.SAME_CODE), fresh, cell.confirmed, policy)
    if cell.quarantined:
        why = reason(ReasonCode.QUARANTINED, why=cell.quarantined.why)
        verdict = _of(Outcome.INCONCLUSIVE, why, fresh, cell.confirmed, policy)
        return replace(verdict, quarantined_by=cell.quarantined.by)
    outcome = Outcome.REGRESSION if fresh.zone is Zone.MORE else Outcome.IMPROVEMENT
    return _confirmed(cell, outcome, fresh, policy)


def _confirmed(cell: Cell, outcome: Outcome, fresh: Decision, policy: Policy) -> Verdict:
    """The confirmation trials alone give the size: those of the screening were chosen for being large."""
    if fresh.estimate is None:
        raise ValueError(f"A confirmed change of {cell.case} without trials.")
    seen = comparison(fresh.estimate, cell.confirmed, policy.confidence)
    control = cell.borrowed if cell.control.effects() else False
    why = reason(ReasonCode.CONFIRMED, ratio=seen.ratio, trials=seen.trials, control=control)
    return Verdict(outcome, why, seen, confirmed=True, p=fresh.p, q=fresh.q)


def _may_hide_a_change(reading: Reading, policy: Policy) -> bool:
    """Could the head be steady only because its baseline's processes were off, by as much as the control shows?

    Then it is steady where it is within the smallest change of the copy as well.
    """
    seen = reading.last.estimate
    if not reading.off or reading.control is None or seen is None:
        return False
    from_copy = replace(seen, centre=seen.centre - reading.control.centre)
    return from_copy.p_within(math.log1p(reading.smallest_change)) > policy.beta


def _doubted(reading: Reading, doubt: Doubt) -> Reason:
    """What equal code of the session says against deciding the case."""
    if doubt is Doubt.MACHINE:
        return reason(ReasonCode.MACHINE)
    if doubt is Doubt.CONTROL and reading.control is not None:
        size = math.expm1(reading.control.centre)
        return reason(ReasonCode.CONTROL_OFF, size=size, smallest_change=reading.smallest_change)
    spread = reading.offset.sd if reading.offset else None
    return reason(ReasonCode.COPIES_DIFFER, spread=spread, smallest_change=reading.smallest_change)


def _unconfirmed(cell: Cell, reading: Reading, policy: Policy) -> Verdict:
    why = reason(ReasonCode.UNCONFIRMED)
    cut = len(reading.confirmed) < policy.confirmation[-1] or None in reading.confirmed
    if reading.fresh.zone is Zone.OPEN and cut:
        why = _cut_short(reading.confirmed, policy.confirmation, suspected=True)
    verdict = _of(Outcome.INCONCLUSIVE, why, reading.first, cell.looked, policy)
    return verdict if reading.fresh.p is None else replace(verdict, p=reading.fresh.p, q=reading.fresh.q)


def _of(outcome: Outcome, why: Reason, seen: Decision, pairs: Pairs, policy: Policy) -> Verdict:
    compared = comparison(seen.estimate, pairs, policy.confidence) if seen.estimate else None
    return Verdict(outcome, why, compared, p=seen.p, q=seen.q)


def _cut_short(trials: Effects, steps: Sequence[int], *, suspected: bool) -> Reason:
    """Why fewer trials count than the policy allows: they were not made, or all their rounds were dropped."""
    if len(trials) < steps[-1]:
        return reason(ReasonCode.SESSION_ENDED, suspected=suspected)
    return reason(ReasonCode.ROUNDS_LOST, suspected=suspected, lost=trials.count(None), trials=len(trials))
