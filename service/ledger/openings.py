"""Which verdicts of a mainline run open a regression: against its baseline, the last good revision, the slow baseline.

The caller holds the target's lock and settles the incidents.
"""

from collections.abc import Sequence

from sqlalchemy import Select, and_, or_, select
from sqlalchemy.orm import Session

from service.ledger import regressions
from service.mending import unexplained
from service.models import (
    STANDING,
    WATCHED,
    FoundBy,
    RegressionRow,
    RegressionState,
    Revision,
    Run,
    RunState,
    VerdictRow,
)
from service.policy import Policy
from service.verdicts import Outcome

_IN_THIS_ORDER = {"parent": 1, "good": 2, "slow": 3}  # a leak is what the others leave unexplained
_ACCEPTED = (RegressionState.ACKNOWLEDGED, RegressionState.DISMISSED)


def opened_by(session: Session, run: Run, verdicts: Sequence[VerdictRow], policy: Policy) -> list[RegressionRow]:
    """The records that the verdicts of a run open.  What has one already opens no second."""
    slower = [one for one in verdicts if one.outcome == Outcome.REGRESSION and one.ratio is not None]
    pairs = {(one.provider, one.case): one for one in verdicts if one.against == "parent"}
    found = list[RegressionRow | None]()
    for one in sorted(slower, key=lambda one: _IN_THIS_ORDER.get(one.against, 0)):
        limits, pair = policy.at(one.case), pairs.get((one.provider, one.case))
        smallest = pair.smallest if pair and pair.smallest is not None else limits.smallest_change
        match one.against:
            case "parent":
                found.append(_of_the_pair(session, run, one, smallest))
            case "good":
                found.append(_carried_on(session, run, one, pair, smallest))
            case "slow":
                found.append(_leaked(session, run, one, limits.leak))
    return [one for one in found if one is not None]


def _of_the_pair(session: Session, run: Run, verdict: VerdictRow, smallest: float) -> RegressionRow | None:
    """Slower than its baseline.  Where that is its parent it did it itself; else one that was passed over may have."""
    same_baseline = and_(
        Run.baseline == run.baseline,
        Revision.ordinal.is_not(None),
        # A dismissed one does not come back with the next revision that is compared with the same baseline.
        RegressionRow.state != RegressionState.FIXED,
        RegressionRow.ratio * (1 + smallest) >= verdict.ratio,
    )
    known = _recorded(run, verdict).where(RegressionRow.found_by != FoundBy.SLOW)
    if session.scalars(known.where(or_(Run.revision_id == run.revision_id, same_baseline)).limit(1)).first():
        return None
    return _open(session, run, _slower(verdict), FoundBy.PAIR, run.baseline, verdict.reason)


def _carried_on(
    session: Session, run: Run, verdict: VerdictRow, pair: VerdictRow | None, smallest: float
) -> RegressionRow | None:
    """Slower than the last good revision without a record of that: what was suspected of an earlier one is confirmed.

    That comparison is fresh to the suspicion, but only asks whether something is left of it: the size has to matter as
    well.  What this revision did itself, beside its parent, has a record of its own.
    """
    if session.scalars(_recorded(run, verdict).where(RegressionRow.good == verdict.baseline).limit(1)).first():
        return None
    slower = _slower(verdict)
    if pair is not None and pair.outcome == Outcome.REGRESSION:
        left = unexplained(slower.ratio, [pair.ratio or 1.0])
        slower = regressions.Slower(slower.provider, slower.case, left)
    if slower.ratio < 1 + smallest:
        return None
    suspected = session.scalars(
        select(Run)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == run.target_id, Run.device == run.device, WATCHED, Revision.ordinal.is_not(None))
        .where(Run.baseline == verdict.baseline, Run.revision_id != run.revision_id)
        .where(VerdictRow.provider == verdict.provider, VerdictRow.case == verdict.case)
        .where(VerdictRow.against == "parent", VerdictRow.suspected)
        .order_by(Revision.ordinal, Run.id.desc())
        .limit(1)
    ).first()
    head = session.get_one(Revision, run.revision_id).short
    words = f"suspected before, and confirmed by the session of {head}: {verdict.reason}"
    return _open(session, suspected or run, slower, FoundBy.PAIR, verdict.baseline, words)


def _leaked(session: Session, run: Run, verdict: VerdictRow, leak: float) -> RegressionRow | None:
    """Slower than the slow baseline, in sessions of two successive revisions, by more than what has records already."""
    ratio = verdict.ratio or 1.0
    known = _recorded(run, verdict).where(RegressionRow.found_by == FoundBy.SLOW)
    known = known.where(RegressionRow.good == verdict.baseline, RegressionRow.state != RegressionState.FIXED)
    for row in session.scalars(known):
        if row.state not in _ACCEPTED or ratio <= row.ratio * (1 + leak):
            return None
    place = session.get_one(Revision, run.revision_id).ordinal or 0
    if unexplained(ratio, _explaining(session, run, verdict, place)) <= 1 + leak:
        return None
    for neighbour, at, outcome in _neighbours(session, run, verdict, place):
        if outcome == Outcome.REGRESSION:
            first = neighbour if at < place else run
            return _open(session, first, _slower(verdict), FoundBy.SLOW, verdict.baseline, verdict.reason)
    return None


def _neighbours(session: Session, run: Run, verdict: VerdictRow, place: int) -> list[tuple[Run, int, str]]:
    """The runs of the nearest revisions before and after that were compared with the same slow baseline at the case."""
    theirs = (
        select(Run, Revision.ordinal, VerdictRow.outcome)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == run.target_id, Run.device == run.device, WATCHED, Run.state == RunState.DONE)
        .where(VerdictRow.provider == verdict.provider, VerdictRow.case == verdict.case)
        .where(VerdictRow.against == "slow", VerdictRow.baseline == verdict.baseline)
        .limit(1)
    )
    before = theirs.where(Revision.ordinal < place).order_by(Revision.ordinal.desc(), Run.id.desc())
    after = theirs.where(Revision.ordinal > place).order_by(Revision.ordinal, Run.id.desc())
    return [(one, at or 0, outcome) for which in (before, after) for one, at, outcome in session.execute(which)]


def _explaining(session: Session, run: Run, verdict: VerdictRow, place: int) -> Sequence[float]:
    """How large the regressions of the case are that stand and came between the slow baseline and `place`."""
    since = session.scalar(
        select(Revision.ordinal).where(Revision.target_id == run.target_id, Revision.sha == verdict.baseline)
    )
    known = _recorded(run, verdict).where(RegressionRow.found_by != FoundBy.SLOW, RegressionRow.state.in_(STANDING))
    known = known.where(Revision.ordinal > (-1 if since is None else since), Revision.ordinal <= place)
    return [row.ratio for row in session.scalars(known)]


def _recorded(run: Run, verdict: VerdictRow) -> Select[RegressionRow]:
    """The records of the verdict's case, joined with the runs that opened them and their revisions."""
    return (
        select(RegressionRow)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(RegressionRow.target_id == run.target_id, RegressionRow.device == run.device)
        .where(RegressionRow.provider == verdict.provider, RegressionRow.case == verdict.case)
    )


def _slower(verdict: VerdictRow) -> regressions.Slower:
    ratio, name = verdict.ratio or 1.0, (verdict.provider, verdict.case)
    return regressions.Slower(*name, ratio, verdict.low, verdict.high, verdict.cause, verdict.why)


def _open(
    session: Session, run: Run, slower: regressions.Slower, found_by: FoundBy, good: str | None, words: str
) -> RegressionRow:
    revision = session.get_one(Revision, run.revision_id)
    itself = revision.sha if found_by is FoundBy.PAIR and good is not None and good == revision.parent else None
    return regressions.open_one(session, run, slower, found_by=found_by, good=good, culprit=itself, words=words)
