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

    @endpoint("GET /targets/{name}/compare/figure")
    def comparison(
        self,
        target: str,
        base: str,
        head: str,
        *,
        device: str,
        provider: str | None = None,
        op: str | None = None,
        metric: str | None = None,
        case: str | None = None,
    ) -> models.FigureDocument:
        """The ratios of two revisions, releases or pull requests (`pull/7`), case by case."""

    @endpoint("GET /targets/{name}/board/figure")
    def board(
        self,
        target: str,
        *,
        device: str,
        dtype: str | None = None,
        against: str | None = None,
        at: str | None = None,
    ) -> models.FigureDocument:
        """The times of a board over those of SOTA, or `against` another provider; `at` a revision."""

    @endpoint("GET /targets/{name}/roofline/figure")
    def roofline(
        self,
        target: str,
        *,
        device: str,
        dtype: str | None = None,
        against: str | None = None,
        at: str | None = None,
    ) -> models.FigureDocument:
        """GB/s and TFLOP/s of the cases of a board, below the ceilings of their session."""
