"""Texts of figures in the tables of a study.  Pure."""

from collections.abc import Callable

from .results import Estimate, IntervalOver

NONE = "–"


def times(found: Estimate | None) -> str:
    """A ratio with its interval: `1.068 (1.065 to 1.071)`; one that is not over trials says so."""
    return NONE if found is None else _with_interval(found, "{:.3f}".format)


def change(found: Estimate | None) -> str:
    """A loss of time with its interval: `+3.1% (+1.0% to +5.2%)`."""
    return NONE if found is None else _with_interval(found, lambda ratio: f"{ratio - 1:+.1%}")


def _with_interval(found: Estimate, text: Callable[[float], str]) -> str:
    if found.low is None or found.high is None:
        return text(found.ratio)
    over = "" if found.over is IntervalOver.TRIALS else f" over {found.over}"
    return f"{text(found.ratio)} ({text(found.low)} to {text(found.high)}{over})"


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
