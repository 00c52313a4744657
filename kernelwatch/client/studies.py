"""Studies."""

from .calls import Listing
from .models import StudyItem, StudySessionDocument, StudySessionItem
from .resources import Mode, Resource, endpoint, listing


class Studies(Resource[Mode]):
    """Published results that are measured again."""

    @listing("/studies", paged=False)
    def list(self, *, device: str | None = None) -> Listing[StudyItem]:
        """Studies, how many sessions of each are stored, and how many claims of each source hold."""

    @endpoint("GET /studies/{name}")
    def get(self, name: str, *, device: str | None = None) -> StudyItem:
        """One study, how many sessions of it are stored, and how many claims of its source hold."""

    @listing("/studies/{name}/sessions")
    def sessions(self, name: str, *, device: str | None = None) -> Listing[StudySessionItem]:
        """The stored sessions of a study, those that began last first."""

    @endpoint("GET /studies/sessions/{session_id}")
    def find_session(self, session_id: int) -> StudySessionItem:
        """A session by its number, of whichever study, without its results."""

    @endpoint("GET /studies/{name}/sessions/{session_id}")
    def session(self, name: str, session_id: int) -> StudySessionDocument:
        """One session: what follows for each claim, tables, figures and every record."""

    @endpoint("DELETE /studies/{name}/sessions/{session_id}")
    def remove(self, name: str, session_id: int) -> StudySessionItem:
        """Delete a session with all its records, and return what it was."""
