"""Texts of figures in the tables of a study.  Pure."""

from .results import Estimate

NONE = "–"


def times(found: Estimate | None) -> str:
    """A ratio with its interval: `1.068 (1.065 to 1.071)`."""
    if found is None:
        return NONE
    if found.low is None or found.high is None:
        return f"{found.ratio:.3f}"
    return f"{found.ratio:.3f} ({found.low:.3f} to {found.high:.3f})"


def whole(value: float | None) -> str:
    return NONE if value is None else f"{value:,.0f}"


def microseconds(value: float | None) -> str:
    if value is None:
        return NONE
    return f"{value:.2f}" if value < 10 else f"{value:.1f}" if value < 1000 else f"{value:,.0f}"


def percent(share: float | None) -> str:
    return NONE if share is None else f"{share:.1%}"


def because(why: str | None) -> str:
    """Why a cell of a table is empty, in one short line."""
    return NONE if why is None else " ".join(why.split())[:120]
