"""Studies: published results that are measured again."""

from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from sqlalchemy.orm import Session

from kernels.studies.published.catalogue import STUDIES
from service.api.access import Reading, ReadingRoute
from service.api.common import CACHED, Key, tagged_json
from service.api.lists import DeviceName
from service.domain.studies.sessions import study_named
from service.ledger.studies import sessions
from service.reports.schema.base import Page
from service.reports.studies.schema import StudyItem, StudySessionDocument, StudySessionItem

router = APIRouter(route_class=ReadingRoute, prefix="/studies", tags=["studies"])

StudyName = Annotated[str, Path(max_length=40, examples=["s3"])]


@router.get("", response_model=Page[StudyItem])
def list_studies(session: Reading, device: DeviceName = None) -> Page[StudyItem]:
    """List the studies with their stored sessions, and how many claims of each source hold."""
    return Page(items=[item(session, name, device) for name in STUDIES])


@router.get("/{name}", response_model=StudyItem, responses=CACHED)
def get_study(request: Request, name: StudyName, session: Reading, device: DeviceName = None) -> Response:
    """Get a study with its stored sessions, those that began last first."""
    return tagged_json(request, item(session, name, device))


@router.get("/{name}/sessions/{session_id}", response_model=StudySessionDocument, responses=CACHED)
def get_study_session(request: Request, name: StudyName, session_id: Key, session: Reading) -> Response:
    """Get a session: what follows for each claim, tables, figures and every record."""
    found = sessions.evaluated(session, sessions.one(session, session_id, study_named(name).name))
    view = found.view
    document = StudySessionDocument.whole(view.row, view.progress, found.study, found.results, found.report)
    return tagged_json(request, document)


def item(session: Session, name: str, device: str | None = None) -> StudyItem:
    """The document of a study, with its sessions on one device or on all.  Raises NotFound."""
    study = study_named(name)
    views = sessions.listed(session, name, device)
    shown = sessions.preferred(views)
    items = [StudySessionItem.of(one.row, one.progress) for one in views]
    claims = sessions.claims(session, shown) if shown else None
    return StudyItem.whole(study, items, shown.row.id if shown else None, claims)
