"""Who may be a baseline, and what a case is held against where its baseline is slow already.

A revision that does not build, or that became wrong, is passed over.  Nothing slow becomes a reference by itself.
A regression that stands, or a suspicion that nobody could confirm, leaves its revision a baseline for the question
"did this commit do it?" alone.  Whether the case is as it should be is asked of the last revision before it, until a
measurement shows that it is, or a person accepts it.
"""

from collections.abc import Sequence

from sqlalchemy import Row, and_, or_, select
from sqlalchemy.orm import Session, aliased, selectinload

from service.causes import Kind
from service.cells import Name, Outcome
from service.models import (
    WATCHED,
    Purpose,
    RegressionRow,
    RegressionState,
    Revision,
    Run,
    RunState,
    Target,
    VerdictRow,
)
from service.verdicts import KNOWN_BEFORE, QUARANTINED

DOES_NOT_BUILD = "it does not build"
_UNSETTLED = (Outcome.REGRESSION, Outcome.INCONCLUSIVE)
UNACCEPTED = (RegressionState.OPEN, RegressionState.BISECTING, RegressionState.BLAMED)


def unfit(session: Session, target: Target, sha: str, device: str) -> str | None:
    """Why this revision must not be a baseline on this device, when the recipe of today has shown that already.

    Wrong results count only when they came with this revision: what was wrong before it stays wrong beside any other
    baseline, and must not hide what the other cases do.
    """
    newest = session.execute(
        select(Run)
        .join(Revision)
        .where(Revision.target_id == target.id, Revision.sha == sha, Run.device == device)
        .where(Run.recipe_id == target.recipe_id, Run.purpose == Purpose.WATCH)
        # A run that failed without a log was given up because of the machine.
        .where(or_(Run.state == RunState.DONE, and_(Run.state == RunState.FAILED, Run.log.is_not(None))))
        .order_by(Run.id.desc())
        .limit(1)
        .options(selectinload(Run.verdicts))
    ).scalar_one_or_none()
    if newest is None:
        return None
    if newest.state is RunState.FAILED:
        return DOES_NOT_BUILD
    if newest.baseline is not None and any(not row.reason.startswith(KNOWN_BEFORE) for row in _wrong(newest)):
        return "it computes wrong results"
    return None


def wrong_before(session: Session, run: Run, wanted: str | None) -> set[Name]:
    """Where the newest measured revision up to `wanted`, which was passed over as baseline, was wrong."""
    place = select(Revision.ordinal).where(Revision.target_id == run.target_id, Revision.sha == wanted)
    newest = session.execute(
        select(Run)
        .join(Revision)
        .where(Run.target_id == run.target_id, Run.device == run.device, Run.state == RunState.DONE)
        .where(Run.purpose == Purpose.WATCH)
        .where(Revision.ordinal <= place.scalar_subquery())
        .order_by(Revision.ordinal.desc(), Run.id.desc())
        .limit(1)
        .options(selectinload(Run.verdicts))
    ).scalar_one_or_none()
    return {(row.provider, row.case) for row in _wrong(newest)} if newest else set()


def _wrong(run: Run) -> list[VerdictRow]:
    return [row for row in run.verdicts if row.outcome == Outcome.INVALID.value]


def last_good(session: Session, target_id: int, device: str, sha: str) -> dict[Name, str]:
    """The cases at which the mainline revision `sha` is slow, each with the last revision at which it was not."""
    place = session.execute(
        select(Revision.ordinal).where(Revision.target_id == target_id, Revision.sha == sha)
    ).scalar_one_or_none()
    if place is None:
        return {}
    decided, found = set[Name](), dict[Name, str]()
    for row in _recorded(session, target_id, device, place):
        name = (row.provider, row.case)
        decided.add(name)
        if row.state in UNACCEPTED and row.good is not None:
            found.setdefault(name, row.good)  # the earliest that stands: what came after it is no better
    return {**_suspected(session, target_id, device, sha, decided), **found}


def _recorded(
    session: Session, target_id: int, device: str, place: int
) -> Sequence[Row[str, str, RegressionState, str | None]]:
    """The regressions up to a place on the mainline, the earliest first, each with the revision before it."""
    rows = (
        select(RegressionRow.provider, RegressionRow.case, RegressionRow.state, RegressionRow.good)
        .join(Run, Run.id == RegressionRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(RegressionRow.target_id == target_id, RegressionRow.device == device, Revision.ordinal <= place)
        .where(RegressionRow.state != RegressionState.FIXED)
        .order_by(Revision.ordinal, RegressionRow.id)
    )
    return session.execute(rows).all()


def _suspected(session: Session, target_id: int, device: str, sha: str, decided: set[Name]) -> dict[Name, str]:
    """What looked slower at `sha` and could be neither confirmed nor cleared, where no record decides.

    Until it is seen to be as fast as that last good revision, it is asked about again.
    """
    good = aliased(VerdictRow)
    same = (good.run_id == VerdictRow.run_id, good.provider == VerdictRow.provider, good.case == VerdictRow.case)
    rows = session.execute(
        select(VerdictRow, good)
        .join(Run, Run.id == VerdictRow.run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .outerjoin(good, and_(*same, good.against == "good"))
        .where(Run.target_id == target_id, Run.device == device, Revision.sha == sha, Revision.target_id == target_id)
        .where(WATCHED, Run.state == RunState.DONE, VerdictRow.against == "parent")
        .order_by(Run.id)
    )
    newest = {(row.provider, row.case): (row, beside) for row, beside in rows}  # not every run has every case
    found = dict[Name, str]()
    for name, (against_parent, against_good) in newest.items():
        carried = against_good is not None and against_good.outcome in _UNSETTLED
        row = against_good if carried else against_parent if _slower_perhaps(against_parent) else None
        if row is not None and row.baseline is not None and name not in decided:
            found[name] = row.baseline
    return found


def _slower_perhaps(row: VerdictRow) -> bool:
    """A suspicion that is still one: what the machine explains, or what alarms nobody anyway, is none."""
    slower = row.suspected and row.outcome == Outcome.INCONCLUSIVE and row.ratio is not None and row.ratio > 1
    return slower and row.cause not in (Kind.MACHINE, Kind.NOISE) and not row.reason.startswith(QUARANTINED)
