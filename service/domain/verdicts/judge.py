"""Did this revision change the case?  Pure: samples in, verdicts out; no clock, no session, no client.

The unit of sampling is the trial, a set of fresh processes.  The variance of trials is estimated from all cases of the
run together.  A screening that looks like a change raises only a *suspicion*.  New trials, the confirmation, decide
alone whether the change is real, for all suspected cases of the run at once.  `service.domain.verdicts.analysis` and
`service.domain.stats` compute the numbers; docs/statistics.md explains them and gives the error rates.
Counts are exact, and compared as they are.

`judge` and `wanted` take all cells of a run.  No other module decides a verdict.
"""

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from kernels.cases import Comparison
from service.domain.metrics import metric_of
from service.domain.policy.policy import Policy
from service.domain.states import Outcome
from service.domain.stats import counts
from service.domain.stats.estimates import Estimate
from service.domain.stats.sequential import MIN_SHARE, Decision, Effects, Zone
from service.domain.verdicts.analysis import NONE_KNOWN, Doubt, KnownVariances, Reading, readings
from service.domain.verdicts.baselines import NO_OFFSET, SessionOffset
from service.domain.verdicts.reasons import Reason, ReasonCode, reason
from service.domain.verdicts.samples import Cell, Name, Pairs, compare, comparison, count_comparison, counts_of

__all__ = ["CHANGES", "Cell", "Outcome", "Pairs", "Verdict", "compare", "judge", "settled", "wanted"]

Why = Literal["look", "confirm"]  # what more trials are for

MIN_COUNTS = 2  # trials that must agree
MANY_DOUBTED = 0.1
# Of the trials that were made.  With fewer lost, the interval is about 1 / sqrt(0.75), at most 15 %, wider than that of
# all trials: the noise leaves the case open, not the loss.
MANY_LOST = 0.25
REPEATED = 0.5  # of the size that raised a suspicion: confirmation trials that show less in the end did not repeat it
_DIFFERS = {
    Doubt.OFFSET: ReasonCode.COPIES_DIFFER,
    Doubt.EARLIER: ReasonCode.COPIES_DIFFERED,
    Doubt.BUILD: ReasonCode.BUILDS_DIFFERED,
}
CHANGES = (Outcome.REGRESSION, Outcome.IMPROVEMENT)


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: Reason
    comparison: Comparison | None = None
    confirmed: bool = False
    control: float | None = None  # the A/A control's ratio at this case: the copy over the original
    suspected: bool = False  # the screening looked like a change
    p: float | None = None  # of the confirmation if there was one, else of the screening
    q: float | None = None  # p corrected over all cases of the run
    smallest_change: float | None = None  # the smallest change that matters at this case, relative
    doubt: Doubt | None = None  # why equal code of the session leaves it inconclusive
    second_decides: bool = False  # offsets of earlier sessions leave it open; with this result twice it would not be
    known_before: bool = False  # an earlier revision was invalid or failed at this case too
    quarantined_by: str | None = None  # who quarantines the case, if that makes a confirmed change inconclusive
    refuted: bool = False  # the confirmation trials speak against the suspicion, although they do not decide
    session_offset: SessionOffset = NO_OFFSET  # for comparisons with other baselines of the session


def judge(cells: Sequence[Cell], policy: Policy, variances: KnownVariances = NONE_KNOWN) -> dict[Name, Verdict]:
    """A verdict for every cell of a run, each by the limits of its metric and case; `variances` as for `readings`."""
    read = readings(cells, policy, variances)
    return {
        cell.name: _of_counts(cell, policy.at(cell.case))
        if cell.screened.counts and cell.comparable
        else _controlled(cell, read.get(cell.name), policy.at(cell.case))
        for cell in cells
    }


def controls_are_off(judged: Mapping[Name, Verdict]) -> bool:
    """Whether the comparisons of equal code left so much undecided that the run must be repeated.

    True if a suspected change is in doubt, or more than one case in ten.  What earlier sessions leave in doubt does not
    count: a second session would know the same.
    """
    doubted = [verdict for verdict in judged.values() if verdict.doubt not in (None, Doubt.EARLIER, Doubt.BUILD)]
    compared = sum(verdict.comparison is not None for verdict in judged.values())
    return any(verdict.suspected for verdict in doubted) or len(doubted) > MANY_DOUBTED * compared


def needs_second_session(judged: Mapping[Name, Verdict]) -> bool:
    """Whether a second session, with fresh builds, could decide a case that offsets of earlier sessions leave open."""
    return any(verdict.second_decides for verdict in judged.values())


def wanted(cells: Sequence[Cell], policy: Policy, variances: KnownVariances = NONE_KNOWN) -> Mapping[Name, Why]:
    """The cells that need more trials: "look" if they are undecided, "confirm" if they are suspected.

    Empty if everything is decided or the budget (the last of `policy.screening` and `policy.confirmation`) is spent.
    A case whose code is the same is looked at once, and again only if it is suspected: the machine may have moved.
    """
    equal = {cell.name for cell in cells if cell.same_code}
    asked: dict[Name, Why] = {}
    for name, reading in readings(cells, policy, variances).items():
        if reading.last.futile:
            continue
        if reading.first.zone is Zone.OPEN:
            if name not in equal and len(reading.screened) < policy.screening[-1]:
                asked[name] = "look"
        elif reading.suspected and reading.fresh.zone is Zone.OPEN and len(reading.confirmed) < policy.confirmation[-1]:
            asked[name] = "confirm"
    return asked


def settled(
    cells: Sequence[Cell], policy: Policy, variances: KnownVariances, compared_before: Collection[Name]
) -> set[Name]:
    """The cells that need no trial after the first: the code is the same, and did not move in that trial.

    Only where an earlier session compared this code with all other baselines (`compared_before`), which one trial
    cannot do.  Empty unless earlier sessions know the variance of each case: others take it from cases of the run.
    """
    read = readings(cells, policy, variances)
    varying = [(name, metric) for name in read if (metric := metric_of(name[1])).varies]
    if not all(metric in variances and name in variances[metric].usual for name, metric in varying):
        return set()
    return {
        cell.name
        for cell in cells
        if cell.same_code and cell.name in compared_before and cell.name in read and _is_unmoved(cell, read[cell.name])
    }


def _is_unmoved(cell: Cell, reading: Reading) -> bool:
    """Whether a single trial shows nothing that may be a change, neither of the head nor of the control."""
    effects = [*reading.screened, *cell.control.made()]
    limit = MIN_SHARE * math.log1p(reading.smallest_change)
    return len(reading.screened) == 1 and all(effect is not None and abs(effect) < limit for effect in effects)


def trials_until_next_look(done: int, policy: Policy, why: Why = "look") -> int:
    """Number of trials until the next test of the undecided or suspected cells; 0 if none are left."""
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
    decide = _after_confirmation if reading.suspected else _after_screening
    verdict = decide(cell, reading, policy)
    doubt = reading.doubt if verdict.outcome is Outcome.INCONCLUSIVE else None
    return replace(
        verdict,
        suspected=reading.suspected,
        smallest_change=reading.smallest_change,
        doubt=doubt,
        second_decides=reading.last.second and doubt in (Doubt.EARLIER, Doubt.BUILD),
        session_offset=SessionOffset(reading.offset, _doubt(reading, reading.doubt) if reading.doubt else None),
    )


def _of_counts(cell: Cell, policy: Policy) -> Verdict:
    """Decided without a confirmation, because a count does not vary by chance."""
    now, before = (counts_of(side, cell.screened, cell.confirmed) for side in ("candidate", "baseline"))
    copies = () if cell.borrowed else counts_of("candidate", cell.control)
    control = counts.ratio(copies[0] - before[0]) if copies and before else None
    why = reason(ReasonCode.SESSION_ENDED, suspected=False)
    verdict = Verdict(Outcome.INCONCLUSIVE, why, control=control, smallest_change=policy.smallest_change)
    if len(now) < MIN_COUNTS or len(before) < MIN_COUNTS:
        return verdict
    verdict = replace(verdict, comparison=count_comparison(cell.screened))
    if len(set(now)) > 1 or len({*before, *copies}) > 1:
        why = reason(ReasonCode.COUNTS_VARY, now=sorted(set(now)), before=sorted({*before, *copies}))
        return replace(verdict, reason=why)
    change, smallest = now[0] - before[0], counts.smallest(policy.smallest_change)
    why = reason(ReasonCode.COUNTED, now=now[0], before=before[0], smallest=smallest)
    if abs(change) < smallest:
        return replace(verdict, outcome=Outcome.STEADY, reason=why)
    if cell.quarantined:
        why = reason(ReasonCode.QUARANTINED, why=cell.quarantined.why)
        return replace(verdict, reason=why, suspected=True, quarantined_by=cell.quarantined.by)
    outcome = Outcome.REGRESSION if change > 0 else Outcome.IMPROVEMENT
    return replace(verdict, outcome=outcome, reason=why, confirmed=True, suspected=True)


def _after_screening(cell: Cell, reading: Reading, policy: Policy) -> Verdict:
    """The screening found no suspicion: the case is steady, also by its code, or undecided."""
    seen, outcome = reading.first, Outcome.INCONCLUSIVE
    if seen.zone is Zone.SMALL and not _may_hide_a_change(reading, policy):
        outcome, why = Outcome.STEADY, reason(ReasonCode.WITHIN, smallest_change=reading.smallest_change)
    elif cell.same_code and (seen.estimate is not None or _is_unmoved(cell, reading)):
        outcome, why = Outcome.STEADY, reason(ReasonCode.EQUAL_CODE, trials=seen.trials or 1)
    elif reading.doubt is not None:
        why = _doubt(reading, reading.doubt)
    else:
        cut_short = _cut_short(reading.screened, policy.screening, suspected=False)
        why = cut_short or reason(ReasonCode.TOO_WIDE, trials=seen.trials)
    return _of(outcome, why, seen, cell.screened, policy)


def _after_confirmation(cell: Cell, reading: Reading, policy: Policy) -> Verdict:
    """The screening found a suspicion, and the confirmation trials decide."""
    fresh = reading.fresh
    if fresh.zone is Zone.SMALL and not _may_hide_a_change(reading, policy):
        why = reason(ReasonCode.NOT_REPEATED, smallest_change=reading.smallest_change, trials=fresh.trials)
        return _of(Outcome.STEADY, why, fresh, cell.confirmed, policy)
    if reading.doubt is not None:
        return _undecided(cell, reading, _doubt(reading, reading.doubt), policy)
    if fresh.zone is not reading.first.zone:
        why = _unconfirmed(reading, policy)
        verdict = replace(_undecided(cell, reading, why, policy), refuted=_refuted(reading, why, policy))
        if not cell.same_code or why.code is not ReasonCode.UNCONFIRMED:
            return verdict
        trials = len(cell.screened.candidate) + len(cell.confirmed.candidate)
        return replace(verdict, outcome=Outcome.STEADY, reason=reason(ReasonCode.EQUAL_CODE, trials=trials))
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
    """Whether an error of the baseline as large as the A/A control shows could hide a change of the head.

    No if the head is within the smallest change of the second copy of the baseline as well.
    """
    seen = reading.last.estimate
    if not reading.off or reading.control is None or seen is None:
        return False
    from_copy = replace(seen, centre=seen.centre - reading.control.centre)
    return from_copy.p_within(math.log1p(reading.smallest_change)) > policy.beta


def _doubt(reading: Reading, doubt: Doubt) -> Reason:
    """Evidence from equal code of the session against deciding the case."""
    if doubt is Doubt.MACHINE:
        return reason(ReasonCode.MACHINE)
    if doubt is Doubt.CONTROL and reading.control is not None:
        size = math.expm1(reading.control.centre)
        return reason(ReasonCode.CONTROL_OFF, size=size, smallest_change=reading.smallest_change)
    spread = reading.offset.sd if reading.offset else None
    return reason(_DIFFERS[doubt], spread=spread, smallest_change=reading.smallest_change)


def _unconfirmed(reading: Reading, policy: Policy) -> Reason:
    contradicted = reading.fresh.zone is not Zone.OPEN
    cut_short = None if contradicted else _cut_short(reading.confirmed, policy.confirmation, suspected=True)
    return cut_short or reason(ReasonCode.UNCONFIRMED)


def _refuted(reading: Reading, why: Reason, policy: Policy) -> bool:
    """Whether the confirmation trials exclude a change of the smallest size, or in the end did not repeat the change.

    Confirmation that was cut short refutes only by its interval: the size that two trials show says little.
    """
    first, fresh = reading.first.estimate, reading.fresh.estimate
    if first is None or fresh is None:
        return False
    low, high = fresh.interval(policy.confidence)
    most = high if first.centre > 0 else -low
    not_repeated = why.code is ReasonCode.UNCONFIRMED and fresh.centre / first.centre < REPEATED
    return most < math.log1p(reading.smallest_change) or not_repeated


def _undecided(cell: Cell, reading: Reading, why: Reason, policy: Policy) -> Verdict:
    """A suspicion that was neither confirmed nor refuted: the interval is of all trials."""
    every = Pairs((*cell.screened.candidate, *cell.confirmed.candidate))
    pooled = reading.suspect.pooled() if reading.suspect else None
    verdict = _of(Outcome.INCONCLUSIVE, why, replace(reading.first, estimate=pooled), every, policy)
    return verdict if reading.fresh.p is None else replace(verdict, p=reading.fresh.p, q=reading.fresh.q)


def _of(outcome: Outcome, why: Reason, seen: Decision, pairs: Pairs, policy: Policy) -> Verdict:
    compared = comparison(seen.estimate, pairs, policy.confidence) if seen.estimate else None
    return Verdict(outcome, why, compared, p=seen.p, q=seen.q)


def _cut_short(trials: Effects, steps: Sequence[int], *, suspected: bool) -> Reason | None:
    """Why too few trials count: the session ended, or many trials lost all their rounds.  None if enough count."""
    if len(trials) < steps[-1]:
        return reason(ReasonCode.SESSION_ENDED, suspected=suspected)
    lost = trials.count(None)
    if lost < MANY_LOST * len(trials):
        return None
    return reason(ReasonCode.ROUNDS_LOST, suspected=suspected, lost=lost, trials=len(trials))
