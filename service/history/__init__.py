"""Slow leaks and steps that no single comparison sees: the history of a series, its changes, and their incidents.

Pure: numbers in, changes out; no clock, no session, no client.
"""

from service.history.detection import changes, newest
from service.history.incidents import incidents
from service.history.values import Change, HistoryLimits, Level, Marked, Seen

__all__ = ["Change", "HistoryLimits", "Level", "Marked", "Seen", "changes", "incidents", "newest"]
