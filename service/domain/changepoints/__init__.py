"""Slow leaks and steps that no single comparison sees: the history of a series, its changes, and their incidents.

Pure: numbers in, changes out; no clock, no session, no client.
"""

from service.domain.changepoints.detector import changes, newest
from service.domain.changepoints.grouping import incidents
from service.domain.changepoints.types import Change, HistoryLimits, Level, Marked, Seen

__all__ = ["Change", "HistoryLimits", "Level", "Marked", "Seen", "changes", "incidents", "newest"]
