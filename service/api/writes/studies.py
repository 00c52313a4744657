"""Remove sessions of studies.  They are measured and stored on the machine itself."""

from fastapi import APIRouter

from kernelwatch.documents.studies import StudySessionItem
from service.api.access import Acting, WritingRoute, needs, permit
from service.api.common import Key
from service.api.reading.studies import StudyName
from service.db.engine import transaction
from service.domain.access import Scope
from service.domain.studies.sessions import study_named
from service.ledger.studies import sessions
from service.reports.schema.studies import study_session_item

router = APIRouter(route_class=WritingRoute, prefix="/studies", tags=["studies"])


@router.delete("/{name}/sessions/{session_id}", response_model=StudySessionItem)
@needs(Scope.ADMIN)
def remove_study_session(name: StudyName, session_id: Key, actor: Acting) -> StudySessionItem:
    """Delete a session with all its records, and return what it was."""
    permit(actor, Scope.ADMIN)
    with transaction() as session:
        view = sessions.one(session, session_id, study_named(name).name)
        had = study_session_item(view.row, view.progress)
        sessions.remove(session, view.row)
    return had
