"""Read the series of measurements made elsewhere: those of a target, and the history of one."""

from collections.abc import Sequence
from dataclasses import dataclass

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from service.db.models import IngestBatch, IngestedMeasurement, Target
from service.domain.ingest import unit_of
from service.domain.states import Better, Missing
from service.reports.imported import ImportedPair, ImportedPoint, pairs_of

MAX_SERIES = 200  # of a page
MAX_POINTS = 2_000  # of a history, the newest
MAX_COMPARED = 4_000  # measurements of two revisions, the newest


@dataclass(frozen=True)
class ImportedItem:
    """A series with its newest measurement."""

    device: str
    provider: str
    case: str
    measurements: int
    revision: str
    median: float | None
    unit: str
    better: Better
    missing: Missing | None
    tool: str
    at: float


def any_imported(session: Session, target: Target) -> bool:
    """Whether the target has measurements that were made elsewhere."""
    batch = select(IngestBatch.id).where(IngestBatch.target_id == target.id, IngestBatch.complete).limit(1)
    return session.scalar(batch) is not None


def imported_items(session: Session, target: Target, part: str = "") -> tuple[Sequence[ImportedItem], bool]:
    """The first series in order of their names, of those whose name has `part`; and whether there are more."""
    row = IngestedMeasurement
    newest = (
        select(func.max(row.id).label("id"), func.count().label("measurements"))
        .join(IngestBatch, IngestBatch.id == row.batch_id)
        .where(row.target_id == target.id, IngestBatch.complete)
        .group_by(row.device, row.provider, row.case)
        .order_by(row.device, row.provider, row.case)
        .limit(MAX_SERIES + 1)
    )
    if part:
        newest = newest.where(row.case.icontains(part, autoescape=True))
    of = newest.subquery()
    at = func.coalesce(IngestBatch.measured_at, IngestBatch.received_at)
    query = (
        select(row.device, row.provider, row.case, of.c.measurements, row.revision, row.median)
        .add_columns(row.unit, row.better, row.missing, IngestBatch.tool, at)
        .join(of, of.c.id == row.id)
        .join(IngestBatch, IngestBatch.id == row.batch_id)
        .order_by(row.device, row.provider, row.case)
    )
    items = [
        ImportedItem(
            *(device, provider, case, measurements, revision, median, unit_of(case, unit)),
            *(better or Better.SMALLER, missing, tool, at),
        )
        for device, provider, case, measurements, revision, median, unit, better, missing, tool, at in session.execute(
            query
        )
    ]
    return items[:MAX_SERIES], len(items) > MAX_SERIES


def imported_pairs(session: Session, target: Target, base: str, head: str) -> Sequence[ImportedPair]:
    """The series that were measured of both revisions, those that became worst first."""
    row = IngestedMeasurement
    query = (
        select(row.device, row.provider, row.case, row.revision, row.median, row.unit, row.better, row.missing)
        .join(IngestBatch, IngestBatch.id == row.batch_id)
        .where(row.target_id == target.id, row.revision.in_((base, head)), IngestBatch.complete)
        .order_by(row.id.desc())
        .limit(MAX_COMPARED)
    )
    points = [
        (
            (device, provider, case),
            ImportedPoint(revision, 0.0, median, unit_of(case, unit), better or Better.SMALLER, missing),
        )
        for device, provider, case, revision, median, unit, better, missing in session.execute(query)
    ]
    return pairs_of(points[::-1], base, head)


def imported_points(
    session: Session, target: Target, *, device: str, provider: str, case: str
) -> Sequence[ImportedPoint]:
    """What was sent of one series, the oldest first; of a long one the newest."""
    row = IngestedMeasurement
    at = func.coalesce(IngestBatch.measured_at, IngestBatch.received_at)
    query = (
        select(row.revision, at, row.median, row.unit, row.better, row.missing)
        .add_columns(row.batch_id, IngestBatch.tool, IngestBatch.machine)
        .join(IngestBatch, IngestBatch.id == row.batch_id)
        .where(row.target_id == target.id, row.device == device, row.provider == provider, row.case == case)
        .where(IngestBatch.complete)
        .order_by(at.desc(), row.id.desc())
        .limit(MAX_POINTS)
    )
    rows = session.execute(query).all()[::-1]
    return [
        ImportedPoint(revision, when, median, unit_of(case, unit), better or Better.SMALLER, missing, *batch)
        for revision, when, median, unit, better, missing, *batch in rows
    ]
