"""Weekly reports."""

from .calls import Call, get, get_text
from .models import WeeklyDocument
from .resources import Mode, Resource, endpoint


class Weekly(Resource[Mode]):
    """What happened in a week.  `week` is an ISO week such as 2026-W47, and the current one by default."""

    @endpoint
    def get(
        self, *, week: str | None = None, target: str | None = None, device: str | None = None
    ) -> Call[WeeklyDocument]:
        """Movers by time at stake, regressions and gaps to SOTA opened and closed, and what was measured."""
        return get("/weekly", WeeklyDocument, {"week": week, "target": target, "device": device})

    @endpoint
    def markdown(self, *, week: str | None = None, target: str | None = None, device: str | None = None) -> Call[str]:
        """The same as Markdown."""
        params = {"week": week, "target": target, "device": device}
        return get_text("/weekly/markdown", "text/markdown", params)
