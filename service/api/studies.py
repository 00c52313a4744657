"""Studies: published results that are measured again."""

from collections import Counter
from collections.abc import Mapping
from datetime import datetime
from statistics import median
from typing import Annotated, Any

from fastapi import Path, Request, Response
from sqlalchemy.orm import Session

from kernels.studies.catalogue import STUDIES
from kernels.studies.records import Record
from kernels.studies.results import Results
from kernels.studies.study import Study, StudyReport
from kernelwatch.documents.base import Page
from kernelwatch.documents.studies import (
    StudyConclusionItem,
    StudyFigureItem,
    StudyItem,
    StudyLimitItem,
    StudyRecordItem,
    StudySessionDocument,
    StudySessionItem,
    StudyStackItem,
    StudyTableItem,
)
from service.api.access import Acting, Reading, api_router, needs, permit
from service.api.common import CACHED, Cursor, DeviceName, Key, Limit, page_of, tagged_json
from service.db.engine import transaction
from service.db.models import StudySession
from service.domain.access import Scope
from service.domain.studies.sessions import Claims, StudyProgress, control, stacks, study_named
from service.ledger.studies import sessions
from service.reports.schema.base import document_of


def study_session_item(row: StudySession, progress: StudyProgress) -> StudySessionItem:
    return StudySessionItem(**session_fields(row, progress))


def session_fields(row: StudySession, progress: StudyProgress) -> dict[str, Any]:
    """The fields of a session without its results."""
    return {
        **{name: getattr(row, name) for name in ("id", "study", "device", "quick", "updated_at")},
        "began_at": datetime.fromisoformat(row.began),
        "revision": row.code.get("revision"),
        "kernels": row.code.get("kernels"),
        "done": progress.done,
        "total": progress.total,
    }


def study_item(study: Study, sessions: Mapping[str, int], shown: int | None, claims: Claims | None) -> StudyItem:
    return document_of(StudyItem, vars(study) | {"sessions": sessions, "shown": shown, "claims": claims})


def study_record_item(one: Record) -> StudyRecordItem:
    kept = [value for value in one.samples if value]
    return document_of(StudyRecordItem, vars(one) | {"median": median(kept) if kept else None})


def study_session_document(
    row: StudySession, progress: StudyProgress, study: Study, results: Results, report: StudyReport
) -> StudySessionDocument:
    return StudySessionDocument(
        **session_fields(row, progress),
        title=study.title,
        machine=row.machine,
        stacks=[StudyStackItem.model_validate(one) for one in stacks(results)],
        control=control(results),
        findings=[StudyConclusionItem.model_validate(one) for one in report.findings],
        tables=[StudyTableItem.model_validate(one) for one in report.tables],
        figures=[_figure(one) for one in report.figures],
        records=[study_record_item(one) for one in results.records],
    )


def _figure(one: Any) -> StudyFigureItem:
    limit = StudyLimitItem(name=one.limit[0], value=one.limit[1]) if one.limit else None
    return document_of(StudyFigureItem, vars(one) | {"limit": limit})


router = api_router("studies")

StudyName = Annotated[str, Path(max_length=40, description="The name of the study.", examples=["s3"])]


@router.get("/studies", response_model=Page[StudyItem])
def list_studies(session: Reading, device: DeviceName = None) -> Page[StudyItem]:
    """List the studies, how many sessions of each are stored, and how many claims of each source hold."""
    return Page(items=[item(session, name, device) for name in STUDIES])


@router.get("/studies/{name}", response_model=StudyItem, responses=CACHED)
def get_study(request: Request, name: StudyName, session: Reading, device: DeviceName = None) -> Response:
    """Get a study, how many sessions of it are stored, and how many claims of its source hold."""
    return tagged_json(request, item(session, name, device))


@router.get("/studies/{name}/sessions", response_model=Page[StudySessionItem])
def list_study_sessions(
    name: StudyName, session: Reading, device: DeviceName = None, cursor: Cursor = None, limit: Limit = 50
) -> Page[StudySessionItem]:
    """List the stored sessions of a study, those that began last first."""
    found = sessions.page(session, study_named(name).name, device, cursor, limit)
    return page_of(found, lambda one: study_session_item(one.row, one.progress))


@router.get("/studies/sessions/{session_id}", response_model=StudySessionItem, responses=CACHED)
def find_study_session(request: Request, session_id: Key, session: Reading) -> Response:
    """Find a session by its number, of whichever study, without its results."""
    found = sessions.one(session, session_id)
    return tagged_json(request, study_session_item(found.row, found.progress))


@router.get("/studies/{name}/sessions/{session_id}", response_model=StudySessionDocument, responses=CACHED)
def get_study_session(request: Request, name: StudyName, session_id: Key, session: Reading) -> Response:
    """Get a session: what follows for each claim, tables, figures and every record."""
    found = sessions.evaluated(session, sessions.one(session, session_id, study_named(name).name))
    view = found.view
    document = study_session_document(view.row, view.progress, found.study, found.results, found.report)
    return tagged_json(request, document)


@router.delete("/studies/{name}/sessions/{session_id}", response_model=StudySessionItem)
@needs(Scope.ADMIN)
def remove_study_session(name: StudyName, session_id: Key, actor: Acting) -> StudySessionItem:
    """Delete a session with all its records, and return what it was."""
    permit(actor, Scope.ADMIN)
    with transaction() as session:
        view = sessions.one(session, session_id, study_named(name).name)
        had = study_session_item(view.row, view.progress)
        sessions.remove(session, view.row)
    return had


def item(session: Session, name: str, device: str | None = None) -> StudyItem:
    """The document of a study and its sessions on one device or on all.  Raises NotFound."""
    study = study_named(name)
    views = sessions.listed(session, name, device)
    shown = sessions.preferred(views)
    claims = sessions.claims(session, shown) if shown else None
    by_device = Counter(one.row.device for one in views)
    return study_item(study, by_device, shown.row.id if shown else None, claims)
