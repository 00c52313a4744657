"""Everything that is stored, as rows of documents, part by part.  Parts follow the cursors of the lists."""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.orm import InstrumentedAttribute, Session, undefer

from kernelwatch.documents.administration import AuditItem, PersonItem
from kernelwatch.documents.base import Document
from kernelwatch.documents.regressions import (
    BisectionItem,
    ChangePointItem,
    IncidentItem,
    PolicyDocument,
    QuarantineItem,
    RegressionItem,
)
from kernelwatch.documents.runs import WorkerItem
from kernelwatch.documents.targets import DriftItem, GapItem, TargetDocument
from service.db.engine import clock
from service.db.models import (
    AuditEntry,
    Bisection,
    Calibration,
    ChangePoint,
    ConfigurationDrift,
    FactsCheck,
    Incident,
    IngestBatch,
    IngestedMeasurement,
    Measurement,
    Quarantine,
    RegressionRow,
    Revision,
    Run,
    Series,
    Stack,
    Target,
    VerdictRow,
)
from service.db.paging import ResultPage, paged, paged_rows
from service.domain.exports import Exportable
from service.errors import BadInput
from service.ledger import audit, phases, policies
from service.ledger.access import accounts
from service.ledger.bisections import bisections
from service.ledger.calibration import quarantines
from service.ledger.changepoints import load
from service.ledger.reading import contents, histories, queries, revisions, runs
from service.ledger.reading.runs import RunFilter, is_revision
from service.ledger.regressions import listing
from service.ledger.targets import by_name, target_named
from service.reports.schema.base import columns, document_of
from service.reports.schema.exports import (
    ExportedCalibration,
    ExportedFactsCheck,
    ExportedIngested,
    ExportedMeasurement,
    ExportedRevision,
    ExportedRun,
    ExportedSample,
    ExportedVerdict,
    SingleFacts,
    run_fields,
)
from service.reports.schema.regressions import (
    bisection_item,
    change_point_item,
    incident_item,
    quarantine_item,
    regression_item,
)
from service.reports.schema.runs import facts_check_item, measurement_items, run_item, verdict_item, worker_item
from service.reports.schema.targets import gap_item, ingested_fields, revision_item, target_document

_ROWS = 1_000  # of a part, at least
_PART_S = 0.25  # a part with fewer rows may end after this time: other exports wait for the thread
_PAGE = 200  # rows that one query reads
_SAMPLED = 5  # measurements of which the samples are read together; each may have thousands


@dataclass(frozen=True)
class ExportFilter:
    """Which rows; None does not limit.  Times are those at which the thing, or its run, began."""

    target: str | None = None
    device: str | None = None
    revision: str | None = None  # a sha or its beginning, or a version
    since: float | None = None
    until: float | None = None


@dataclass(frozen=True)
class ExportPart:
    """Rows, and the place from which the next part goes on; None after the last."""

    rows: Sequence[Document]
    next: Any


@dataclass(frozen=True)
class _Wanted(ExportFilter):
    """The filter, with its target as a row."""

    row: Target | None = None

    def of_target(self, column: InstrumentedAttribute[int]) -> list[ColumnElement[bool]]:
        return [] if self.row is None else [column == self.row.id]

    def on(self, device: InstrumentedAttribute[str]) -> list[ColumnElement[bool]]:
        return [] if self.device is None else [device == self.device]

    def within(self, began: InstrumentedAttribute[float]) -> list[ColumnElement[bool]]:
        after = [] if self.since is None else [began >= self.since]
        return after + ([] if self.until is None else [began < self.until])

    @property
    def runs(self) -> RunFilter:
        return RunFilter(self.row, self.device, revision=self.revision, since=self.since, until=self.until)


Read = Callable[[Session, _Wanted, Any], ExportPart]


@dataclass(frozen=True)
class ExportKind:
    """How one thing is exported: its documents, the filters that it has, and who may export it."""

    document: type[Document]
    read: Read
    filters: Collection[str]
    for_administrators: bool = False
    without: Collection[str] = ()  # fields of the document that only a list with `expand` has


def check_filter(what: Exportable, which: ExportFilter) -> None:
    """Raise BadInput for a filter that these rows do not have."""
    filters = KINDS[what].filters
    for name in ("target", "device", "revision", "since", "until"):
        if getattr(which, name) is not None and name not in filters:
            takes = ", ".join(filters) if filters else "none"
            raise BadInput(f"An export of {what} has no filter {name!r}; it takes {takes}.")


def read_part(session: Session, what: Exportable, which: ExportFilter, place: Any) -> ExportPart:
    """The rows after `place`, a thousand or a few more; the first ones for None.

    Raises:
        NotFound: If the reader may not know of the target.
    """
    kind = KINDS[what]
    by_row = which.target is not None and what is not Exportable.AUDIT  # entries of the log outlive their targets
    target = target_named(session, str(which.target)) if by_row else None
    wanted = _Wanted(**vars(which), row=target)
    rows: list[Document] = []
    began = time.monotonic()
    while True:
        part = kind.read(session, wanted, place)
        rows += part.rows
        place = part.next
        if place is None or len(rows) >= _ROWS or time.monotonic() - began >= _PART_S:
            return ExportPart(rows, place)


def _targets(session: Session, which: _Wanted, place: Any) -> ExportPart:
    found = ResultPage((which.row,), None) if which.row is not None else by_name(session, place, _PAGE)
    counts = queries.open_counts(session, [one.id for one in found.items])
    rows = [
        target_document(one, open_regressions=counts[one.id][0], behind_sota=counts[one.id][1]) for one in found.items
    ]
    return ExportPart(rows, found.next)


def _revisions(session: Session, which: _Wanted, place: Any) -> ExportPart:
    where = which.within(Revision.committed_at)
    if which.revision is not None:
        where.append(is_revision(which.row, which.revision))
    found = queries.revisions(session, which.row, place, _PAGE, where=where)
    rows = [ExportedRevision.model_construct(**dict(revision_item(one)), target=one.target.name) for one in found.items]
    return ExportPart(rows, found.next)


def _runs(session: Session, which: _Wanted, place: Any) -> ExportPart:
    found = runs.listed(session, which.runs, place, _PAGE)
    stacks = _stacks(session, found.items)
    rows = []
    for one in queries.glances(session, found.items):
        item, stack = run_item(one.run, one.counts, one.behind), stacks.get(one.run.stack_id)
        versions, digest = (stack.versions, stack.digest) if stack else (None, None)
        rows.append(ExportedRun.model_construct(**dict(item), stack=versions, stack_digest=digest))
    return ExportPart(rows, found.next)


def _stacks(session: Session, of: Sequence[Run]) -> Mapping[int | None, Stack]:
    ids = {one.stack_id for one in of}
    return {row.id: row for row in session.scalars(select(Stack).where(Stack.id.in_(ids)))}


@dataclass(frozen=True)
class _InRun:
    """A place in a run: the cursor of its rows, or None after the last one."""

    run_id: int
    rows: str | None


def _of_runs(
    read: Callable[[Session, Run, str | None], tuple[Sequence[Document], str | None]],
) -> Read:
    """Rows of runs, one run after the other, the newest first."""

    def part(session: Session, which: _Wanted, place: _InRun | None) -> ExportPart:
        where = []
        if place is not None:
            where.append(Run.id < place.run_id if place.rows is None else Run.id <= place.run_id)
        found = runs.listed(session, which.runs, None, 1, where=where).items
        if not found:
            return ExportPart((), None)
        [run] = found
        goes_on = place is not None and place.run_id == run.id  # unless the run was deleted meanwhile
        rows, following = read(session, run, place.rows if place is not None and goes_on else None)
        return ExportPart(rows, _InRun(run.id, following))

    return part


def _measurements(session: Session, run: Run, place: str | None) -> tuple[Sequence[Document], str | None]:
    statement = select(Measurement).where(Measurement.run_id == run.id)
    found = paged(session, statement, (Measurement.id,), place, _PAGE, ascending=True)
    if not found.items:
        return (), None
    telemetry = session.scalar(select(Run.telemetry).where(Run.id == run.id))
    items = measurement_items(found.items, telemetry)
    of_run = run_fields(run)
    return [
        ExportedMeasurement.model_construct(**of_run, **dict(one), fact=SingleFacts.of(one.facts)) for one in items
    ], found.next


def _samples(session: Session, run: Run, place: str | None) -> tuple[Sequence[Document], str | None]:
    statement = select(Measurement).where(Measurement.run_id == run.id).options(undefer(Measurement.samples))
    found = paged(session, statement, (Measurement.id,), place, _SAMPLED, ascending=True)
    stack = _stacks(session, [run]).get(run.stack_id)
    rows = [sample for row in found.items for sample in ExportedSample.all_of(row, run, stack)]
    return rows, found.next


def _verdicts(session: Session, run: Run, _: str | None) -> tuple[Sequence[Document], None]:
    """Those of a whole run: their notes come from its report."""
    if session.scalar(select(VerdictRow.id).where(VerdictRow.run_id == run.id).limit(1)) is None:
        return (), None
    whole = queries.whole_run(session, run.id)
    found = contents.read_contents(session, whole)
    report = queries.report_on(session, whole, found)
    items = [verdict_item(one, report) for one in found.verdicts]
    return [ExportedVerdict.model_construct(**run_fields(whole), **dict(one)) for one in items], None


def _regressions(session: Session, which: _Wanted, place: Any) -> ExportPart:
    where = [*which.on(Series.device), *which.within(RegressionRow.opened_at)]
    found = listing.listed(session, which.row, (), place, _PAGE, where=where)
    events = listing.events(session, [one.row.id for one in found.items])
    return ExportPart([regression_item(one, events[one.row.id]) for one in found.items], found.next)


def _incidents(session: Session, which: _Wanted, place: Any) -> ExportPart:
    where = [*which.on(Incident.device), *which.within(Incident.opened_at)]
    found = listing.incidents(session, which.row, open_only=False, where=where, cursor=place, limit=_PAGE)
    return ExportPart([incident_item(one) for one in found.items], found.next)


def _change_points(session: Session, which: _Wanted, place: Any) -> ExportPart:
    where = which.within(ChangePoint.found_at)
    found = load.points(session, which.row, which.device, where=where, cursor=place, limit=_PAGE)
    return ExportPart([change_point_item(one) for one in found.items], found.next)


def _bisections(session: Session, which: _Wanted, place: Any) -> ExportPart:
    where = [*which.on(Bisection.device), *which.within(Bisection.created_at)]
    found = bisections.listed(session, which.row, where=where, cursor=place, limit=_PAGE)
    return ExportPart([bisection_item(one, one.target.name) for one in found.items], found.next)


def _gaps(session: Session, which: _Wanted, place: Any) -> ExportPart:
    found = queries.gaps(session, which.row, place, _PAGE, where=which.on(Series.device))
    return ExportPart([gap_item(one) for one in found.items], found.next)


def _drifts(session: Session, which: _Wanted, place: Any) -> ExportPart:
    where = [*which.of_target(Series.target_id), *which.on(Series.device), *which.within(ConfigurationDrift.at)]
    found = histories.drift_page(session, where, place, _PAGE)
    return ExportPart([DriftItem.model_validate(one) for one in found.items], found.next)


def _facts_checks(session: Session, which: _Wanted, place: Any) -> ExportPart:
    where = which.within(FactsCheck.created_at)
    found = revisions.checks(session, which.row, revision=which.revision, where=where, cursor=place, limit=_PAGE)
    items = ((one.target.name, facts_check_item(one)) for one in found.items)
    rows = [ExportedFactsCheck.model_construct(**dict(item), target=target) for target, item in items]
    return ExportPart(rows, found.next)


def _ingested(session: Session, which: _Wanted, place: Any) -> ExportPart:
    row = IngestedMeasurement
    statement = (
        select(row, IngestBatch, Target.name)
        .join(IngestBatch, IngestBatch.id == row.batch_id)
        .join(Target, Target.id == row.target_id)
        .where(IngestBatch.complete, *which.of_target(row.target_id), *which.on(row.device))
        .where(*which.within(IngestBatch.received_at))
        .where(*([] if which.revision is None else [row.revision == which.revision]))
    )
    found = paged_rows(session, statement, (row.id,), place, _PAGE)
    rows = []
    for one, batch, target, _ in found.items:
        of = columns(batch) | columns(one) | ingested_fields(one)
        rows.append(document_of(ExportedIngested, of | {"target": target}))
    return ExportPart(rows, found.next)


def _workers(session: Session, which: _Wanted, place: Any) -> ExportPart:
    now = clock(session)
    found = queries.workers_by_name(session, place, _PAGE, device=which.device)
    seconds = phases.mean_seconds_of_a_day(session, now)
    rows = [worker_item(one, now, seconds) for one in found.items]
    return ExportPart(rows, found.next)


def _calibrations(session: Session, which: _Wanted, place: Any) -> ExportPart:
    statement = (
        select(Calibration, Target.name)
        .join(Calibration.series)
        .join(Target, Target.id == Series.target_id)
        .where(*which.of_target(Series.target_id), *which.on(Series.device), *which.within(Calibration.at))
    )
    found = paged_rows(session, statement, (Calibration.id,), place, _PAGE)
    return ExportPart(
        [document_of(ExportedCalibration, columns(row) | {"target": target}) for row, target, *_ in found.items],
        found.next,
    )


def _quarantines(session: Session, which: _Wanted, place: Any) -> ExportPart:
    where = which.within(Quarantine.since)
    found = quarantines.page(
        session, which.row, device=which.device, released=True, where=where, cursor=place, limit=_PAGE
    )
    return ExportPart([quarantine_item(*one) for one in found.items], found.next)


def _policies(session: Session, _: _Wanted, place: Any) -> ExportPart:
    found = policies.listed(session, place, _PAGE)
    return ExportPart([PolicyDocument.model_validate(one) for one in found.items], found.next)


def _people(session: Session, _: _Wanted, place: Any) -> ExportPart:
    found = accounts.listed(session, place, _PAGE)
    return ExportPart([PersonItem.model_validate(one) for one in found.items], found.next)


def _audit(session: Session, which: _Wanted, place: Any) -> ExportPart:
    found = audit.listed(session, target=which.target, where=which.within(AuditEntry.at), cursor=place, limit=_PAGE)
    return ExportPart([AuditItem.model_validate(one) for one in found.items], found.next)


_TIMES = ("since", "until")
_RUNS = ("target", "device", "revision", *_TIMES)
_CASES = ("target", "device", *_TIMES)
KINDS: Mapping[Exportable, ExportKind] = {
    Exportable.TARGETS: ExportKind(TargetDocument, _targets, ("target",)),
    Exportable.REVISIONS: ExportKind(ExportedRevision, _revisions, ("target", "revision", *_TIMES), without=("runs",)),
    Exportable.RUNS: ExportKind(ExportedRun, _runs, _RUNS),
    Exportable.MEASUREMENTS: ExportKind(ExportedMeasurement, _of_runs(_measurements), _RUNS),
    Exportable.SAMPLES: ExportKind(ExportedSample, _of_runs(_samples), _RUNS),
    Exportable.VERDICTS: ExportKind(ExportedVerdict, _of_runs(_verdicts), _RUNS),
    Exportable.REGRESSIONS: ExportKind(RegressionItem, _regressions, _CASES),
    Exportable.INCIDENTS: ExportKind(IncidentItem, _incidents, _CASES),
    Exportable.CHANGE_POINTS: ExportKind(ChangePointItem, _change_points, _CASES),
    Exportable.BISECTIONS: ExportKind(BisectionItem, _bisections, _CASES),
    Exportable.GAPS: ExportKind(GapItem, _gaps, ("target", "device")),
    Exportable.DRIFTS: ExportKind(DriftItem, _drifts, _CASES),
    Exportable.FACTS_CHECKS: ExportKind(ExportedFactsCheck, _facts_checks, ("target", "revision", *_TIMES)),
    Exportable.INGESTED: ExportKind(ExportedIngested, _ingested, _RUNS),
    Exportable.WORKERS: ExportKind(WorkerItem, _workers, ("device",)),
    Exportable.CALIBRATIONS: ExportKind(ExportedCalibration, _calibrations, _CASES),
    Exportable.QUARANTINES: ExportKind(QuarantineItem, _quarantines, _CASES),
    Exportable.POLICIES: ExportKind(PolicyDocument, _policies, (), for_administrators=True),
    Exportable.PEOPLE: ExportKind(PersonItem, _people, (), for_administrators=True),
    Exportable.AUDIT: ExportKind(AuditItem, _audit, ("target", *_TIMES), for_administrators=True),
}
