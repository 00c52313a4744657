"""The histories of many series of a target on a device, in a few queries for all; `queries.series` reads one."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from sqlalchemy import ColumnElement, func, select
from sqlalchemy.orm import Session

from kernels.cases import Role
from service.db.models import WATCHED, Measurement, Revision, Run, Target, VerdictRow
from service.domain.states import BaselineKind, RunState
from service.domain.verdicts.samples import Name
from service.ledger.queries import versions_of, with_changes_of_stack
from service.reports.views import Point

_Measured = tuple[str, float | None, float | None]
_Judged = tuple[str | None, float | None, float | None, float | None]
_NOT_JUDGED: _Judged = (None, None, None, None)


@dataclass(frozen=True)
class MainlineRun:
    """A finished run of a revision of the mainline."""

    id: int
    revision: str
    subject: str
    ordinal: int
    committed_at: float
    stack_id: int | None
    finished_at: float | None


def mainline_runs(session: Session, target: Target, device: str, revisions: int) -> Sequence[MainlineRun]:
    """The runs of so many of the newest revisions of the mainline, measured or not, in the order of the mainline."""
    newest = session.scalar(select(func.max(Revision.ordinal)).where(Revision.target_id == target.id))
    columns = (Revision.sha, Revision.subject, Revision.ordinal, Revision.committed_at, Run.stack_id, Run.finished_at)
    rows = session.execute(
        select(Run.id, *columns)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Run.target_id == target.id, Run.device == device, Run.state == RunState.DONE, WATCHED)
        .where(Revision.ordinal.is_not(None), Revision.ordinal > (newest or 0) - revisions)
        .order_by(Revision.ordinal, Run.id)
    )
    return [
        MainlineRun(run, sha, subject, place or 0, committed_at, stack_id, finished_at)
        for run, sha, subject, place, committed_at, stack_id, finished_at in rows
    ]


def measured_names(session: Session, runs: Iterable[MainlineRun]) -> list[Name]:
    """Each provider and case that one of the runs measured of its own revision."""
    of_head = (Measurement.run_id.in_([run.id for run in runs]), Measurement.role == Role.HEAD.value)
    rows = session.execute(select(Measurement.provider, Measurement.case).where(*of_head).distinct())
    return sorted((provider, case) for provider, case in rows)


def histories(session: Session, runs: Sequence[MainlineRun], names: Sequence[Name]) -> Mapping[Name, list[Point]]:
    """Each of these series, oldest first, from the newest run of each revision that measured the case."""
    ids = [run.id for run in runs]
    heads, sota = _heads(session, ids, names), _sota(session, ids, names)
    verdicts = _verdicts(session, ids, names)
    versions = versions_of(session, {run.stack_id for run in runs})
    found = dict[Name, list[Point]]()
    for name in names:
        of_case = heads.get(name, {})
        points = dict[int, Point]()  # by place on the mainline; the run that came later replaces the one before
        for run in runs:
            if (measured := of_case.get(run.id)) is not None:
                outcome, ratio, low, high = verdicts.get((run.id, name), _NOT_JUDGED)
                points[run.ordinal] = Point(
                    run.id,
                    run.revision,
                    run.subject,
                    run.ordinal,
                    run.committed_at,
                    *measured,
                    sota.get((run.id, name[1])),
                    outcome,
                    ratio,
                    low,
                    high,
                    run.stack_id,
                )
        found[name] = with_changes_of_stack(points.values(), versions)
    return found


def _heads(session: Session, ids: Sequence[int], names: Sequence[Name]) -> Mapping[Name, Mapping[int, _Measured]]:
    """State, median and GB/s by series and run."""
    table = Measurement
    columns = (table.provider, table.case, table.run_id, table.state, table.median, table.gb_s)
    found = defaultdict[Name, dict[int, _Measured]](dict)
    for provider, case, run, state, median, gb_s in session.execute(
        select(*columns).where(table.run_id.in_(ids), table.role == Role.HEAD.value, *_among(table, names))
    ):
        found[provider, case][run] = (state.value, median, gb_s)
    return found


def _sota(session: Session, ids: Sequence[int], names: Sequence[Name]) -> Mapping[tuple[int, str], float | None]:
    """The median of SOTA by run and case."""
    cases = {case for _, case in names}
    of_sota = (Measurement.run_id.in_(ids), Measurement.role == Role.SOTA.value, Measurement.case.in_(cases))
    rows = session.execute(select(Measurement.run_id, Measurement.case, Measurement.median).where(*of_sota))
    return {(run, case): median for run, case, median in rows}


def _verdicts(session: Session, ids: Sequence[int], names: Sequence[Name]) -> Mapping[tuple[int, Name], _Judged]:
    """Outcome, ratio to the parent and its interval, by run and series."""
    table = VerdictRow
    columns = (table.run_id, table.provider, table.case, table.outcome, table.ratio, table.low, table.high)
    to_parent = (table.run_id.in_(ids), table.baseline_kind == BaselineKind.PARENT, *_among(table, names))
    rows = session.execute(select(*columns).where(*to_parent))
    return {
        (run, (provider, case)): (outcome, ratio, low, high) for run, provider, case, outcome, ratio, low, high in rows
    }


def _among(table: type[Measurement] | type[VerdictRow], names: Sequence[Name]) -> tuple[ColumnElement[bool], ...]:
    """Conditions that at least these series meet."""
    return table.provider.in_({name[0] for name in names}), table.case.in_({name[1] for name in names})
