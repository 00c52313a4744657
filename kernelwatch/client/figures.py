"""Charts to explore, as figures of Plotly."""

from collections.abc import Sequence
from datetime import datetime

from . import models
from .resources import Mode, Resource, endpoint


class Figures(Resource[Mode]):
    """What pages draw, to explore: `plotly.graph_objects.Figure(client.figures.trend(…))`."""

    @endpoint("GET /targets/{name}/series/figure", names={"others": "with"})
    def trend(
        self,
        target: str,
        case: str,
        *,
        provider: str,
        device: str,
        unit: str | None = None,
        others: Sequence[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        days: int | None = None,
    ) -> models.FigureDocument:
        """The history of one case on the mainline; `others` are series as `device provider case`."""
