"""Weekly reports."""

from .models import WeeklyDocument
from .resources import Mode, Resource, endpoint


class Weekly(Resource[Mode]):
    """What happened in a week.  `week` is an ISO week such as 2026-W47, and the current one by default."""

    @endpoint("GET /weekly")
    def get(self, *, week: str | None = None, target: str | None = None, device: str | None = None) -> WeeklyDocument:
        """Movers by time at stake, regressions and gaps to SOTA opened and closed, and what was measured."""

    @endpoint("GET /weekly/markdown", accept="text/markdown")
    def markdown(self, *, week: str | None = None, target: str | None = None, device: str | None = None) -> str:
        """The same as Markdown."""
