"""Studies: published results that are measured again."""

from collections import Counter
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy.orm import Session

from kernels.studies.catalogue import STUDIES
from kernelwatch.documents.base import Page
from kernelwatch.documents.studies import StudyItem, StudySessionDocument, StudySessionItem
from service.api.access import Acting, Reading, ReadingRoute, WritingRoute, needs, permit
from service.api.common import CACHED, Cursor, DeviceName, Key, Limit, page_of, tagged_json
from service.db.engine import transaction
from service.domain.access import Scope
from service.domain.studies.sessions import study_named
from service.ledger.studies import sessions
from service.reports.schema.studies import study_item, study_session_document, study_session_item

router = APIRouter()
_reads = APIRouter(route_class=ReadingRoute, prefix="/studies", tags=["studies"])
_writes = APIRouter(route_class=WritingRoute, prefix="/studies", tags=["studies"])

StudyName = Annotated[str, Path(max_length=40, examples=["s3"])]


@_reads.get("", response_model=Page[StudyItem])
def list_studies(session: Reading, device: DeviceName = None) -> Page[StudyItem]:
    """List the studies, how many sessions of each are stored, and how many claims of each source hold."""
    return Page(items=[item(session, name, device) for name in STUDIES])


@_reads.get("/{name}", response_model=StudyItem, responses=CACHED)
def get_study(request: Request, name: StudyName, session: Reading, device: DeviceName = None) -> Response:
    """Get a study, how many sessions of it are stored, and how many claims of its source hold."""
    return tagged_json(request, item(session, name, device))


@_reads.get("/{name}/sessions", response_model=Page[StudySessionItem])
def list_study_sessions(
    name: StudyName, session: Reading, device: DeviceName = None, cursor: Cursor = None, limit: Limit = 50
) -> Page[StudySessionItem]:
    """List the stored sessions of a study, those that began last first."""
    found = sessions.page(session, study_named(name).name, device, cursor, limit)
    return page_of(found, lambda one: study_session_item(one.row, one.progress))


@_reads.get("/sessions/{session_id}", response_model=StudySessionItem, responses=CACHED)
def find_study_session(request: Request, session_id: Key, session: Reading) -> Response:
    """Find a session by its number, of whichever study, without its results."""
    found = sessions.one(session, session_id)
    return tagged_json(request, study_session_item(found.row, found.progress))


@_reads.get("/{name}/sessions/{session_id}", response_model=StudySessionDocument, responses=CACHED)
def get_study_session(request: Request, name: StudyName, session_id: Key, session: Reading) -> Response:
    """Get a session: what follows for each claim, tables, figures and every record."""
    found = sessions.evaluated(session, sessions.one(session, session_id, study_named(name).name))
    view = found.view
    document = study_session_document(view.row, view.progress, found.study, found.results, found.report)
    return tagged_json(request, document)


@_writes.delete("/{name}/sessions/{session_id}", response_model=StudySessionItem)
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


router.include_router(_reads)
router.include_router(_writes)
