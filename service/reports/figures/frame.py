"""What all figures share: colours, layout, times, and texts of others.  Pure."""

import html
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any

from kernelwatch.documents.figures import FigureDocument
from service.domain.text import one_line

# Of Okabe and Ito, and a brown: with red-green blindness no two of them look alike.
OWN, SOTA, SLOWER, FASTER = "#0072b2", "#e69f00", "#d55e00", "#009e73"
OTHERS = ("#cc79a7", "#56b4e9", "#8c6d31")
INK, QUIET, HAIR, CARD = "#1b2430", "#556273", "#dfe4ea", "#ffffff"
BUTTON = {"bgcolor": "#eceff3", "bordercolor": "#b4bec9", "font": {"color": INK, "size": 11}}  # on any background
MOST_TEXT = 80  # letters of a subject: the box of a hover is as wide as its longest line


Commit = Callable[[str], str]  # the address of a commit at its forge; empty where it has none


def figure(data: Iterable[Mapping[str, Any]], title: str, **layout: Any) -> FigureDocument:
    """A figure of traces; `layout` comes on top of what all figures have."""
    common = {
        "title": {"text": escaped(title), "font": {"size": 14}, "x": 0.01, "xanchor": "left", "y": 0.98},
        "font": {"family": "system-ui, sans-serif", "size": 12, "color": INK},
        "paper_bgcolor": CARD,
        "plot_bgcolor": CARD,
        "hoverlabel": {"align": "left", "bgcolor": CARD, "bordercolor": HAIR, "font": {"color": INK}},
        "margin": {"l": 64, "r": 24, "t": 108, "b": 96},
        "height": 600,
        "dragmode": "zoom",
        "showlegend": True,
        "legend": {"orientation": "h", "yref": "container", "y": 0, "yanchor": "bottom", "x": 0},
    }
    return {"data": [dict(one) for one in data], "layout": common | layout}


def axis(title: str, **more: Any) -> dict[str, Any]:
    """An axis with its unit."""
    return {"title": {"text": escaped(title)}, "gridcolor": HAIR, "zerolinecolor": HAIR, "automargin": True, **more}


def axis_menu(**ways: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Buttons, each of which changes the layout: its label, with _ for a space, and what it sets."""
    buttons = [
        {"label": label.replace("_", " "), "method": "relayout", "args": [dict(sets)]} for label, sets in ways.items()
    ]
    place = {"x": 1, "xanchor": "right", "y": 1.08, "yanchor": "bottom"}
    return [{"type": "buttons", "direction": "right", "showactive": False, "buttons": buttons, **place, **BUTTON}]


def instant(at: float) -> str:
    """A time of an axis, which has no zone: UTC."""
    return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S")


def escaped(text: str) -> str:
    """Text of others, in which Plotly finds no mark-up."""
    return html.escape(one_line(text, MOST_TEXT), quote=False)
