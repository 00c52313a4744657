"""Figures of Plotly."""

from typing import Any

from typing_extensions import TypedDict


class FigureDocument(TypedDict):
    """A figure in the schema of Plotly, as `plotly.graph_objects.Figure` and `Plotly.newPlot` take it.

    `customdata` of a point is the address that a click opens, relative to the server, then that of its commit, if any.
    """

    data: list[dict[str, Any]]
    layout: dict[str, Any]
