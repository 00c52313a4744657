"""Studies."""

from ..calls import Call, Listing, get, get_list
from ..models import StudyItem, StudySessionDocument
from ..resources import Mode, Resource, endpoint, listing


class Studies(Resource[Mode]):
    """Published results that are measured again."""

    @listing
    def list(self, *, device: str | None = None) -> Listing[StudyItem]:
        """Studies with their stored sessions, and how many claims of each source hold."""
        return get_list("/studies", StudyItem, {"device": device}, paged=False)

    @endpoint
    def get(self, name: str, *, device: str | None = None) -> Call[StudyItem]:
        """One study with its stored sessions, those that began last first."""
        return get("/studies/{name}", StudyItem, {"device": device}, name=name)

    @endpoint
    def session(self, name: str, session_id: int) -> Call[StudySessionDocument]:
        """One session: what follows for each claim, tables, figures and every record."""
        return get("/studies/{name}/sessions/{session_id}", StudySessionDocument, name=name, session_id=session_id)
