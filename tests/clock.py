"""A clock for what waits: its time passes only while somebody sleeps."""

import heapq
from collections.abc import Callable
from itertools import count


class Clock:
    """Seconds since it was made.  What is planned for a time happens when somebody sleeps until then."""

    def __init__(self) -> None:
        self._now_s = 0.0
        self._planned: list[tuple[float, int, Callable[[], object]]] = []
        self._order = count()

    def now(self) -> float:
        return self._now_s

    def sleep(self, seconds: float) -> None:
        until = self._now_s + seconds
        while self._planned and self._planned[0][0] <= until:
            self._now_s, _, happens = heapq.heappop(self._planned)
            happens()
        self._now_s = until

    def at(self, seconds: float, happens: Callable[[], object]) -> None:
        """Plan something."""
        heapq.heappush(self._planned, (seconds, next(self._order), happens))
