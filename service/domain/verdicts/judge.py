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
from service.domain.metrics import words
from service.domain.policy.policy import Policy
from service.domain.stats.estimates import Estimate
from service.domain.stats.sequential import Decision, Effects, Zone
from service.domain.text import in_percent
from service.domain.verdicts.analysis import Doubt, Reading, readings
from service.domain.verdicts.estimation import compare, comparison
from service.domain.verdicts.samples import Cell, Name, Outcome, Pairs

__all__ = ["CHANGES", "Cell", "Outcome", "Pairs", "Verdict", "compare", "judge", "wanted"]

Why = Literal["look", "confirm"]  # what more trials are for

MANY_DOUBTED = 0.1
CHANGES = (Outcome.REGRESSION, Outcome.IMPROVEMENT)
# How kinds of reasons begin, by which a reader of stored verdicts knows them again.
KNOWN_BEFORE = "already so before this revision: "
QUARANTINED = "quarantined: "
SESSION_ENDED = "the session ended before "
THROTTLED = "were lost to a throttled device"  # and how the reason ends that names how many


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: str
    comparison: Comparison | None = None
    confirmed: bool = False
    control: float | None = None  # the A/A control's ratio at this case: the copy over the original
    suspected: bool = False  # the first trials looked like a change
    p: float | None = None  # of the fresh trials where there are any, else of the first
    q: float | None = None  # p among the family of the run
    smallest: float | None = None  # the smallest relevant change that held here, relative
    doubt: Doubt | None = None  # what equal code of the session says against deciding it, where it is inconclusive


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
        outcome, reason = cell.trouble
        return Verdict(outcome, reason)
    if reading is None:
        return Verdict(Outcome.NEW, cell.baseline_trouble or "there is no earlier revision to compare with")
    verdict = _first(cell, reading, policy) if not reading.suspected else _second(cell, reading, policy)
    doubt = reading.doubt if verdict.outcome is Outcome.INCONCLUSIVE else None
    return replace(verdict, suspected=reading.suspected, smallest=reading.smallest, doubt=doubt)


def _first(cell: Cell, reading: Reading, policy: Policy) -> Verdict:
    """The first trials show that there is nothing, or not even whether there may be something."""
    seen, outcome = reading.first, Outcome.INCONCLUSIVE
    if seen.zone is Zone.SMALL and not _may_hide_a_change(reading, policy):
        outcome, reason = Outcome.STEADY, f"within {in_percent(reading.smallest)} of its baseline"
    elif reading.doubt is not None:
        reason = _doubted(reading)
    elif len(reading.looked) < policy.screening[-1] or None in reading.looked:
        reason = _cut_short(reading.looked, policy.screening, "more trials could settle it")
    else:
        reason = f"the interval is still too wide after {len(reading.looked)} trials"
    return _of(outcome, reason, seen, cell.looked, policy)


def _second(cell: Cell, reading: Reading, policy: Policy) -> Verdict:
    """It looked like a change, and fresh trials were to decide."""
    fresh = reading.fresh
    if fresh.zone is Zone.SMALL and not _may_hide_a_change(reading, policy):
        reason = (
            f"within {in_percent(reading.smallest)} of its baseline: {fresh.trials} fresh trials did not repeat "
            "what looked like a change"
        )
        return _of(Outcome.STEADY, reason, fresh, cell.confirmed, policy)
    if reading.doubt is not None:
        return _of(Outcome.INCONCLUSIVE, _doubted(reading), reading.first, cell.looked, policy)
    if fresh.zone is not reading.first.zone:
        return _unconfirmed(cell, reading, policy)
    if cell.same_code:
        reason = (
            "it ran the same compiled kernels as its baseline, launched alike, so the change is not in the code: "
            "suspect the machine"
        )
        return _of(Outcome.INCONCLUSIVE, reason, fresh, cell.confirmed, policy)
    if cell.quarantined:
        reason = f"{QUARANTINED}{cell.quarantined}"
        return _of(Outcome.INCONCLUSIVE, reason, fresh, cell.confirmed, policy)
    outcome = Outcome.REGRESSION if fresh.zone is Zone.MORE else Outcome.IMPROVEMENT
    # The fresh trials alone give the size: those that raised the suspicion were chosen for being large.
    verdict = _of(outcome, "", fresh, cell.confirmed, policy)
    return replace(verdict, reason=_size(cell, verdict), confirmed=True)


def _may_hide_a_change(reading: Reading, policy: Policy) -> bool:
    """Could the head be steady only because its baseline's processes were off, by as much as the control shows?

    Then it is steady where it is within the smallest change of the copy as well.
    """
    seen = reading.last.estimate
    if not reading.off or reading.control is None or seen is None:
        return False
    from_copy = replace(seen, centre=seen.centre - reading.control.centre)
    return from_copy.p_within(math.log1p(reading.smallest)) > policy.beta


def _doubted(reading: Reading) -> str:
    """What equal code of the session says against deciding the case."""
    smallest = in_percent(reading.smallest)
    if reading.doubt is Doubt.MACHINE:
        return "the machine: most cases moved this way in this session, and equal code moved with them"
    if reading.doubt is Doubt.CONTROL and reading.control is not None:
        size = math.expm1(reading.control.centre)
        return (
            f"the control is off: a second copy of the baseline differed from it by {size:+.2%} here, "
            f"which is too much to decide {smallest}"
        )
    spread = f" ({reading.offset.sd:.2%})" if reading.offset else ""
    return (
        f"copies of the baseline differ too much in this session{spread} to decide {smallest} here, "
        "and more trials do not change that"
    )


def _unconfirmed(cell: Cell, reading: Reading, policy: Policy) -> Verdict:
    why = "fresh trials did not confirm it"
    cut = len(reading.confirmed) < policy.confirmation[-1] or None in reading.confirmed
    if reading.fresh.zone is Zone.OPEN and cut:
        why = _cut_short(reading.confirmed, policy.confirmation, "fresh trials could settle it")
    verdict = _of(Outcome.INCONCLUSIVE, f"it looked like a change, and {why}", reading.first, cell.looked, policy)
    return verdict if reading.fresh.p is None else replace(verdict, p=reading.fresh.p, q=reading.fresh.q)


def _size(cell: Cell, verdict: Verdict) -> str:
    """How much it changed, in the words of its metric."""
    if verdict.comparison is None:
        raise ValueError(f"A confirmed change of {cell.case} without trials.")
    said, ratio = words(cell.case), verdict.comparison.ratio
    word = said.more if verdict.outcome is Outcome.REGRESSION else said.less
    size = f"{abs(ratio - 1):.1%} {word} than" if ratio < 2 else f"{ratio:.1f} times {said.as_much}"
    reason = f"{size} its baseline, confirmed by {verdict.comparison.trials} fresh trials"
    if not cell.control.effects():
        return f"{reason}, without an A/A control at this case"
    return f"{reason}, with the A/A control of {cell.borrowed}" if cell.borrowed else reason


def _of(outcome: Outcome, reason: str, seen: Decision, pairs: Pairs, policy: Policy) -> Verdict:
    compared = comparison(seen.estimate, pairs, policy.confidence) if seen.estimate else None
    return Verdict(outcome, reason, compared, p=seen.p, q=seen.q)


def _cut_short(trials: Effects, steps: Sequence[int], settled: str) -> str:
    """Why fewer trials count than the policy allows: they were not made, or all their rounds were dropped."""
    if len(trials) < steps[-1]:
        return f"{SESSION_ENDED}{settled}"
    return f"the rounds of {trials.count(None)} of {len(trials)} trials {THROTTLED}"
