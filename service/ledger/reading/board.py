"""What one run measured of a target and of the other providers: the rows of the board."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from sqlalchemy import ColumnElement, Row, func, select
from sqlalchemy.orm import Session, aliased

from kernels.cases import Metric, Role
from service.db.models import WATCHED, Gap, Measurement, Revision, Run, RunTotals, Series, Target, VerdictRow
from service.db.walks import distinct
from service.domain import roofline
from service.domain.metrics import split_metric
from service.domain.states import BaselineKind, Purpose, RunState
from service.errors import NotFound
from service.ledger import queries
from service.ledger.reading.revisions import named

_OTHERS = (Role.SOTA.value, Role.RIVAL.value)
_LATEST = 20  # runs of a device, one of which compared with SOTA if any does
_CANDIDATES = 8  # revisions that are read for each of the past ones that are shown: not all were measured


@dataclass(frozen=True)
class Timed:
    """A provider at a case: the median in µs, and GB/s."""

    median: float
    gb_s: float | None


@dataclass(frozen=True)
class BoardCase:
    """A case of a provider of the target, and what others needed for it in the same session."""

    provider: str
    case: str
    own: Timed
    others: Mapping[str, Timed] = field(default_factory=dict)
    in_cache: bool = False  # its data fit the L2 cache, so that the ceiling of memory says nothing
    ratio: float | None = None  # to SOTA, as it was judged
    behind: bool = False
    behind_since: str | None = None  # the revision


@dataclass(frozen=True)
class BoardRun:
    """The run that a board shows."""

    run_id: int
    revision: str
    subject: str
    committed_at: float
    copy_gb_s: float | None  # the ceiling of its session
    cases: Sequence[BoardCase]


def measured_devices(session: Session, target: Target) -> Sequence[str]:
    """The devices on which a run of the mainline ended."""
    done = aliased(Run)
    of_mainline = (done.target_id == target.id, done.state == RunState.DONE)
    watched = (done.purpose == Purpose.WATCH, done.pull.is_(None))

    def ended(device: ColumnElement[str]) -> ColumnElement[bool]:
        return select(done.id).where(*of_mainline, *watched, done.device == device).limit(1).exists()

    return distinct(session, Run.device, Run.target_id == target.id, only=ended)


def newest_compared(session: Session, target_ids: Sequence[int]) -> Sequence[RunTotals]:
    """The totals of the newest mainline run of each target and device that compared with SOTA, by device."""
    on = func.min(RunTotals.device)
    first = select(on).where(RunTotals.target_id == Target.id).correlate(Target).scalar_subquery()
    places = select(Target.id.label("target_id"), first.label("device")).where(Target.id.in_(target_ids))
    pairs = places.cte("pairs", recursive=True)
    later = select(on).where(RunTotals.target_id == pairs.c.target_id, RunTotals.device > pairs.c.device)
    following = select(pairs.c.target_id, later.correlate(pairs).scalar_subquery()).where(pairs.c.device.is_not(None))
    pairs = pairs.union_all(following)
    done = (Run.target_id == pairs.c.target_id, Run.device == pairs.c.device, Run.state == RunState.DONE, WATCHED)
    latest = select(Run.id).where(*done).order_by(Run.id.desc()).limit(_LATEST).correlate(pairs)
    newest = select(func.max(RunTotals.run_id)).where(RunTotals.run_id.in_(latest), RunTotals.sota_cases > 0)
    found = select(newest.correlate(pairs).scalar_subquery()).where(pairs.c.device.is_not(None))
    ids = [run_id for run_id in session.scalars(found) if run_id is not None]
    return session.scalars(select(RunTotals).where(RunTotals.run_id.in_(ids)).order_by(RunTotals.device)).all()


@dataclass(frozen=True)
class PastRun:
    """A revision of the mainline with its geometric mean against SOTA."""

    revision: str
    committed_at: float
    geomean: float


def past(session: Session, target: Target, device: str, count: int) -> list[PastRun]:
    """About so many measured revisions at even distances, the oldest first, and the newest included.

    They are of the whole mainline, or of its newest part where the device is new to it.
    """
    candidates = _CANDIDATES * count
    every = _compared(session, target, device, queries.spread_places(session, target, candidates))
    if len(every) < count:
        recent = _compared(session, target, device, queries.newest_places(session, target, candidates))
        every = max(every, recent, key=len)
    step = max(1, -(-len(every) // count))
    return every[::step][::-1]


def _compared(session: Session, target: Target, device: str, places: queries.MainlinePlaces) -> list[PastRun]:
    """The runs of revisions at these places that compared with SOTA, the newest first."""
    rows = session.execute(
        select(Revision.sha, Revision.committed_at, RunTotals.sota_log, RunTotals.sota_cases)
        .select_from(Revision)
        .join(Run, (Run.revision_id == Revision.id) & (Run.device == device) & WATCHED)
        .join(RunTotals, RunTotals.run_id == Run.id)
        .where(Revision.target_id == target.id, places.where, RunTotals.sota_cases > 0)
        .order_by(Revision.ordinal.desc(), Run.id.desc())
    )
    return [PastRun(sha, at, math.exp(log / cases)) for sha, at, log, cases in rows]


def board(session: Session, target: Target, device: str, revision: str = "") -> BoardRun:
    """The kernel times of the newest run of the mainline, or of a revision.  Raises NotFound."""
    run = _run(session, target, device, revision)
    columns = (Measurement.case, Measurement.role, Measurement.provider, Measurement.median, Measurement.gb_s)
    in_cache = Measurement.facts["l2_resident"].as_boolean()
    wanted = (Measurement.run_id == run.id, Measurement.median.is_not(None))
    roles = Measurement.role.in_((Role.HEAD.value, *_OTHERS))
    rows = session.execute(select(*columns, in_cache).where(*wanted, roles)).all()
    kernel = [row for row in rows if split_metric(row.case)[1] is Metric.KERNEL]
    others = dict[str, dict[str, Timed]]()
    for row in kernel:
        if row.role in _OTHERS:
            others.setdefault(row.case, {})[row.provider] = Timed(row.median, row.gb_s)
    verdicts = _verdicts(session, run.id)
    since = _behind_since(session, target, device)
    cases = [
        BoardCase(
            row.provider,
            row.case,
            Timed(row.median, row.gb_s),
            others.get(row.case, {}),
            bool(row[5]),
            *verdicts.get((row.provider, row.case), (None, False)),
            since.get((row.provider, row.case)),
        )
        for row in kernel
        if row.role == Role.HEAD.value
    ]
    best = roofline.ceilings(run.telemetry).get("copy_gb_s")
    return BoardRun(run.id, run.sha, run.subject, run.committed_at, best, cases)


def _run(session: Session, target: Target, device: str, revision: str) -> Row[tuple[int, str, str, float, object]]:
    columns = (Run.id, Revision.sha, Revision.subject, Revision.committed_at, Run.telemetry)
    of_device = (Revision.target_id == target.id, Run.device == device, Run.state == RunState.DONE, WATCHED)
    statement = select(*columns).join(Revision, Revision.id == Run.revision_id).where(*of_device)
    if revision:
        statement = statement.where(Revision.id == named(session, target, revision).id)
    else:
        statement = statement.where(Revision.ordinal.is_not(None))
    found = session.execute(statement.order_by(Revision.ordinal.desc(), Run.id.desc()).limit(1)).first()
    if found is None:
        what = f"of {revision} " if revision else ""
        raise NotFound("finished run", f"{what}on {device} at {target.name}", "Choose another device or revision.")
    return found


def _verdicts(session: Session, run_id: int) -> dict[tuple[str, str], tuple[float | None, bool]]:
    table = VerdictRow
    asked = select(table.provider, table.case, table.ratio, table.behind_sota)
    asked = asked.where(table.run_id == run_id, table.baseline_kind == BaselineKind.SOTA)
    return {(row.provider, row.case): (row.ratio, row.behind_sota) for row in session.execute(asked)}


def _behind_since(session: Session, target: Target, device: str) -> dict[tuple[str, str], str]:
    """The revision since which each series is behind."""
    asked = (
        select(Series.provider, Series.case, Series.metric, Revision.sha)
        .join(Gap, Gap.series_id == Series.id)
        .join(Run, Run.id == Gap.since_run_id)
        .join(Revision, Revision.id == Run.revision_id)
        .where(Series.target_id == target.id, Series.device == device, Gap.behind_sota)
    )
    return {(row.provider, row.case): row.sha for row in session.execute(asked) if row.metric is Metric.KERNEL}
