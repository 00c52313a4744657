"""Studies."""

from .calls import Call, Listing, delete, get, get_list
from .models import StudyItem, StudySessionDocument, StudySessionItem
from .resources import Mode, Resource, endpoint, listing


class Studies(Resource[Mode]):
    """Published results that are measured again."""

    @listing
    def list(self, *, device: str | None = None) -> Listing[StudyItem]:
        """Studies, how many sessions of each are stored, and how many claims of each source hold."""
        return get_list("/studies", StudyItem, {"device": device}, paged=False)

    @endpoint
    def get(self, name: str, *, device: str | None = None) -> Call[StudyItem]:
        """One study, how many sessions of it are stored, and how many claims of its source hold."""
        return get("/studies/{name}", StudyItem, {"device": device}, name=name)

    @listing
    def sessions(self, name: str, *, device: str | None = None) -> Listing[StudySessionItem]:
        """The stored sessions of a study, those that began last first."""
        return get_list("/studies/{name}/sessions", StudySessionItem, {"device": device}, name=name)

    @endpoint
    def find_session(self, session_id: int) -> Call[StudySessionItem]:
        """A session by its number, of whichever study, without its results."""
        return get("/studies/sessions/{session_id}", StudySessionItem, session_id=session_id)

    @endpoint
    def session(self, name: str, session_id: int) -> Call[StudySessionDocument]:
        """One session: what follows for each claim, tables, figures and every record."""
        return get("/studies/{name}/sessions/{session_id}", StudySessionDocument, name=name, session_id=session_id)

    @endpoint
    def remove(self, name: str, session_id: int) -> Call[StudySessionItem]:
        """Delete a session with all its records, and return what it was."""
        return delete("/studies/{name}/sessions/{session_id}", StudySessionItem, name=name, session_id=session_id)
