"""What badges say: the state of a target's mainline, and how it compares with SOTA."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from service.db.engine import clock
from service.db.models import RegressionRow, Revision, Run, Series, Target, VerdictRow
from service.domain.states import OPEN_REGRESSIONS, BaselineKind, Purpose, RunState
from service.domain.verdicts.samples import Outcome
from service.ledger.reading.filters import CaseFilter
from service.reports.feeds.badges import SotaFacts, StatusFacts

MAX_REVISIONS = 100  # of the mainline: the newest run is one of theirs


@dataclass(frozen=True)
class _NewestRun:
    id: int
    device: str
    state: RunState
    pull: int | None
    finished_at: float | None
    has_log: bool  # of a build that failed


def status(session: Session, target: Target, device: str | None) -> StatusFacts:
    """The open regressions of the mainline, and what became of the newest revision that was tried."""
    runs = _runs(session, target, device)
    last = _newest(runs, RunState.DONE)
    if last is None:
        return StatusFacts(target.name, device, clock(session), None)
    newest = _newest(runs, RunState.DONE, RunState.FAILED) or last
    counted = (
        select(RegressionRow.state, func.count())
        .join(RegressionRow.series)
        .where(Series.target_id == target.id, RegressionRow.state.in_(OPEN_REGRESSIONS))
        .where(*([] if device is None else [Series.device == device]))
        .group_by(RegressionRow.state)
    )
    invalid = (VerdictRow.baseline_kind == BaselineKind.PARENT, VerdictRow.outcome == Outcome.INVALID.value)
    wrong = session.scalar(select(func.count()).where(VerdictRow.run_id == last.id, *invalid))
    return StatusFacts(
        target=target.name,
        device=device,
        now=clock(session),
        measured_at=last.finished_at,
        by_state=dict(session.execute(counted).all()),
        build_failed=newest.state is RunState.FAILED and newest.has_log,
        wrong=wrong or 0,
    )


def sota(
    session: Session,
    target: Target,
    device: str | None,
    which: CaseFilter,
    *,
    dtype: str | None = None,
    direction: str | None = None,
) -> SotaFacts:
    """The ratios of the newest measured revision; of several devices, of the one that was measured last."""
    last = _newest(_runs(session, target, device), RunState.DONE)
    now = clock(session)
    asked: dict[str, Any] = {"dtype": dtype, "op": which.op, "direction": direction, "metric": which.metric}
    if last is None:
        return SotaFacts(target.name, device, now, **asked)
    rows = session.execute(
        select(VerdictRow.case, VerdictRow.ratio, VerdictRow.baseline)
        .where(VerdictRow.run_id == last.id, VerdictRow.baseline_kind == BaselineKind.SOTA)
        .where(*which.on(VerdictRow))
    ).all()
    chosen = [(ratio, baseline) for case, ratio, baseline in rows if ratio and _is_chosen(case, dtype, direction)]
    return SotaFacts(
        target=target.name,
        device=last.device,
        now=now,
        measured_at=last.finished_at,
        sota=chosen[0][1] if chosen else None,
        ratios=[ratio for ratio, _ in chosen],
        **asked,
    )


def _is_chosen(case: str, dtype: str | None, direction: str | None) -> bool:
    """Whether a case has this dtype of x and this direction; what another version stored may have neither."""
    parts = [*case.split("."), "", "", "", ""]
    return direction in (None, parts[1]) and (dtype is None or parts[3].partition("-")[0] == dtype)


def _runs(session: Session, target: Target, device: str | None) -> list[_NewestRun]:
    """The runs of the last mainline revisions, those of the newest revision first.

    Their state is no condition of the query: SQLite would read all finished runs of the database instead.
    """
    last = (
        select(Revision.id)
        .where(Revision.target_id == target.id, Revision.ordinal.is_not(None))
        .order_by(Revision.ordinal.desc())
        .limit(MAX_REVISIONS)
    )
    on: list[ColumnElement[bool]] = [] if device is None else [Run.device == device]
    rows = session.execute(
        select(Run.id, Run.device, Run.state, Run.pull, Run.finished_at, Run.log.is_not(None))
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.revision_id.in_(last), Run.purpose == Purpose.WATCH, *on)
        .order_by(Revision.ordinal.desc(), Run.id.desc())
    )
    return [_NewestRun(*row) for row in rows]


def _newest(runs: Sequence[_NewestRun], *states: RunState) -> _NewestRun | None:
    return next((run for run in runs if run.state in states and run.pull is None), None)
