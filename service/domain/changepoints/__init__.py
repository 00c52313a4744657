"""Detect steps and slow leaks in the history of a series, which no single comparison shows.  Pure."""

from service.domain.changepoints.detector import changes
from service.domain.changepoints.segmentation import Change, HistoryLimits, Level, Part, Seen

__all__ = ["Change", "HistoryLimits", "Level", "Part", "Seen", "changes"]
