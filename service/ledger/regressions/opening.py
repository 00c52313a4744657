"""Which verdicts of a mainline run open a regression: against its parent, right or wrong, the last good and the pinned.

The caller holds the lock of the target, and settles the incidents.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.db.models import WATCHED, RegressionRow, Revision, Run, Series, VerdictRow
from service.domain.policy.policy import GateAction, GateKind, Policy
from service.domain.regressions.closing import unexplained
from service.domain.states import OPEN_REGRESSIONS, BaselineKind, CellState, FoundBy, RegressionState, RunState
from service.domain.verdicts.judge import Outcome
from service.domain.verdicts.samples import Name
from service.ledger.regressions import transitions
from service.ledger.regressions.transitions import Opening
from service.ledger.series import on_device
from service.reports import words

_ACCEPTED = (RegressionState.ACKNOWLEDGED, RegressionState.DISMISSED)


@dataclass(frozen=True)
class _Recorded:
    """A record of a case, with the revision of the run that opened it."""

    row: RegressionRow
    revision_id: int
    ordinal: int | None


@dataclass(frozen=True)
class _Case:
    """One slower case of the run, and the records that there are of it."""

    run: Run
    verdict: VerdictRow
    pair: VerdictRow | None  # the same case against the parent
    policy: Policy  # as it is at this case
    recorded: Sequence[_Recorded]

    @property
    def ratio(self) -> float:
        return self.verdict.ratio or 1.0

    @property
    def smallest_change(self) -> float:
        known = self.pair.smallest_change if self.pair else None
        return known if known is not None else self.policy.smallest_change


def open_found(
    session: Session, run: Run, verdicts: Sequence[VerdictRow], policy: Policy, now: float
) -> list[RegressionRow]:
    """Open records for the slow-downs among the verdicts of a run that have none yet."""
    slower = [one for one in verdicts if one.outcome == Outcome.REGRESSION and one.ratio is not None]
    pairs = {(one.provider, one.case): one for one in verdicts if one.baseline_kind == BaselineKind.PARENT}
    opened = list[RegressionRow]()
    # In this order, because each kind sees the records of the one before: a leak is what the others do not explain.
    openings = {
        BaselineKind.PARENT: _against_parent,
        BaselineKind.WRONG_PARENT: _against_wrong_parent,
        BaselineKind.LAST_GOOD: _against_last_good,
        BaselineKind.PINNED: _against_pinned,
    }
    for kind, opening_of in openings.items():
        these = [one for one in slower if one.baseline_kind == kind]
        recorded = _recorded(session, run, these) if these else {}
        wanted = list[Opening]()
        for one in these:
            name = (one.provider, one.case)
            case = _Case(run, one, pairs.get(name), policy.at(one.case), recorded.get(name, ()))
            if (opening := opening_of(session, case)) is not None:
                wanted.append(opening)
        opened += transitions.open_all(session, wanted, now)
    return opened


def _against_parent(session: Session, case: _Case) -> Opening | None:
    """Slower than its baseline.  A baseline other than the parent leaves open which revision between them did it."""
    run, baseline = case.run, case.verdict.baseline
    for one in case.recorded:
        if one.row.found_by is FoundBy.PINNED:
            continue
        # A dismissed one is not opened again by the next revision that is compared with the same baseline.
        known = one.ordinal is not None and one.row.state is not RegressionState.FIXED
        same_baseline = known and baseline is not None and one.row.good == baseline
        if one.revision_id == run.revision_id or (
            same_baseline and one.row.ratio * (1 + case.smallest_change) >= case.ratio
        ):
            return None
    return _opening(session, run, _slower(case.verdict), FoundBy.PAIR, baseline, words.of_verdict(case.verdict))


def _against_wrong_parent(session: Session, case: _Case) -> Opening | None:
    """Right now, and slower than its parent, whose results were wrong: else its time is everybody's baseline silently.

    There is no good revision to compare later ones with; a speed-up ends it.
    """
    run, verdict, pair = case.run, case.verdict, case.pair
    parent_was_wrong = pair is not None and (pair.reason_args or {}).get("state") == CellState.INVALID
    limit = (verdict.reason_args or {}).get("limit", case.smallest_change)
    if pair is None or pair.outcome != Outcome.NEW or not parent_was_wrong or case.ratio < 1 + limit:
        return None
    allowed = case.policy.action(GateKind.SLOWER_THAN_WRONG) is GateAction.PASS
    if allowed or any(one.revision_id == run.revision_id for one in case.recorded):
        return None
    revision = session.get_one(Revision, run.revision_id)
    culprit = revision.sha if verdict.baseline == revision.parent else None
    why = f"{words.of_verdict(verdict)}, whose results were wrong"
    return Opening(run, _slower(verdict), FoundBy.PAIR, None, culprit, why)


def _against_last_good(session: Session, case: _Case) -> Opening | None:
    """Slower than the last good revision, without a record: this session confirms the suspicion of an earlier one.

    That comparison had no part in the suspicion, but tests against a share of the smallest change only, so the size
    must be relevant as well.  The slow-down against the parent has a record of its own.
    """
    run, verdict, pair = case.run, case.verdict, case.pair
    if any(one.row.good == verdict.baseline for one in case.recorded):
        return None
    slower = _slower(verdict)
    if pair is not None and pair.outcome == Outcome.REGRESSION:
        left = unexplained(slower.ratio, [pair.ratio or 1.0])
        slower = transitions.Slower(slower.provider, slower.case, left)
    if slower.ratio < 1 + case.smallest_change:
        return None
    suspected = session.scalars(
        select(Run)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == run.target_id, Run.device == run.device, WATCHED, Revision.ordinal.is_not(None))
        .where(VerdictRow.baseline == verdict.baseline, Run.revision_id != run.revision_id)
        .where(VerdictRow.provider == verdict.provider, VerdictRow.case == verdict.case)
        .where(VerdictRow.baseline_kind == BaselineKind.PARENT, VerdictRow.suspected)
        .order_by(Revision.ordinal, Run.id.desc())
        .limit(1)
    ).first()
    head = session.get_one(Revision, run.revision_id).short
    why = f"suspected before, and confirmed by the session of {head}: {words.of_verdict(verdict)}"
    return _opening(session, suspected or run, slower, FoundBy.PAIR, verdict.baseline, why)


def _against_pinned(session: Session, case: _Case) -> Opening | None:
    """Slower than the pinned baseline in sessions of two successive revisions, by more than the known regressions."""
    run, verdict, leak = case.run, case.verdict, case.policy.leak
    for one in case.recorded:
        same = one.row.found_by is FoundBy.PINNED and one.row.good == verdict.baseline
        grew = one.row.state in _ACCEPTED and case.ratio > one.row.ratio * (1 + leak)
        if same and one.row.state is not RegressionState.FIXED and not grew:
            return None
    place = session.get_one(Revision, run.revision_id).ordinal or 0
    if unexplained(case.ratio, _explaining(session, case, place)) <= 1 + leak:
        return None
    for neighbour, at, outcome in _neighbours(session, run, verdict, place):
        if outcome == Outcome.REGRESSION:
            first, why = neighbour if at < place else run, words.of_verdict(verdict)
            return _opening(session, first, _slower(verdict), FoundBy.PINNED, verdict.baseline, why)
    return None


def _neighbours(session: Session, run: Run, verdict: VerdictRow, place: int) -> list[tuple[Run, int, str]]:
    """The runs of the nearest revisions before and after that were compared with the same pinned baseline here."""
    theirs = (
        select(Run, Revision.ordinal, VerdictRow.outcome)
        .join(VerdictRow, VerdictRow.run_id == Run.id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == run.target_id, Run.device == run.device, WATCHED, Run.state == RunState.DONE)
        .where(VerdictRow.provider == verdict.provider, VerdictRow.case == verdict.case)
        .where(VerdictRow.baseline_kind == BaselineKind.PINNED, VerdictRow.baseline == verdict.baseline)
        .limit(1)
    )
    before = theirs.where(Revision.ordinal < place).order_by(Revision.ordinal.desc(), Run.id.desc())
    after = theirs.where(Revision.ordinal > place).order_by(Revision.ordinal, Run.id.desc())
    return [(one, at or 0, outcome) for which in (before, after) for one, at, outcome in session.execute(which)]


def _explaining(session: Session, case: _Case, place: int) -> Sequence[float]:
    """The ratios of the open regressions of the case that came between the pinned baseline and `place`."""
    since = session.scalar(
        select(Revision.ordinal).where(Revision.target_id == case.run.target_id, Revision.sha == case.verdict.baseline)
    )
    first = -1 if since is None else since
    return [
        one.row.ratio
        for one in case.recorded
        if one.row.found_by is not FoundBy.PINNED and one.row.state in OPEN_REGRESSIONS
        if one.ordinal is not None and first < one.ordinal <= place
    ]


def _recorded(session: Session, run: Run, verdicts: Sequence[VerdictRow]) -> Mapping[Name, list[_Recorded]]:
    """The records of the verdicts' cases."""
    rows = session.execute(
        select(RegressionRow, Run.revision_id, Revision.ordinal)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .join(RegressionRow.series)
        .where(on_device(run.target_id, run.device), Series.printed.in_(sorted({one.case for one in verdicts})))
        .order_by(RegressionRow.id)
    )
    found: dict[Name, list[_Recorded]] = defaultdict(list)
    for row, revision_id, ordinal in rows:
        found[row.name].append(_Recorded(row, revision_id, ordinal))
    return found


def _slower(verdict: VerdictRow) -> transitions.Slower:
    ratio, name = verdict.ratio or 1.0, (verdict.provider, verdict.case)
    why = words.cause_text(verdict)
    return transitions.Slower(*name, ratio, verdict.low, verdict.high, verdict.cause_kind, why)


def _opening(
    session: Session, run: Run, slower: transitions.Slower, found_by: FoundBy, good: str | None, why: str
) -> Opening:
    revision = session.get_one(Revision, run.revision_id)
    itself = revision.sha if found_by is FoundBy.PAIR and good is not None and good == revision.parent else None
    return Opening(run, slower, found_by, good, itself, why)
