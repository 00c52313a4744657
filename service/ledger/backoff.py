"""Retry failed work with exponential back-off.

Failures are kept in memory: another process, or this one after a restart, retries at once.
"""

import time
from collections.abc import Hashable

WAITS_S = (0.0, 0.0, 10.0, 30.0, 120.0, 600.0)  # by the number of failures in a row


class Backoff:
    """Which keys failed lately, how often in a row, and until when to skip them."""

    def __init__(self) -> None:
        self._failed: dict[Hashable, tuple[int, float]] = {}

    def should_skip(self, key: Hashable) -> bool:
        """Did this fail so often that it must wait?"""
        return key in self._failed and time.monotonic() < self._failed[key][1]

    def failed(self, key: Hashable, longest_s: float = WAITS_S[-1]) -> None:
        times = self._failed.get(key, (0, 0.0))[0] + 1
        wait_s = min(WAITS_S[min(times, len(WAITS_S)) - 1], longest_s)
        self._failed[key] = times, time.monotonic() + wait_s

    def succeeded(self, key: Hashable) -> None:
        self._failed.pop(key, None)

    def forget(self) -> None:
        self._failed.clear()


backoff = Backoff()  # of this process; each key begins with the kind of work
