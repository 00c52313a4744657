"""What was in vain is tried again, but not every few seconds for ever.

Only this process remembers: another one, or the same after a restart, tries at once.
"""

import time
from collections.abc import Hashable

WAITS_S = (0.0, 0.0, 10.0, 30.0, 120.0, 600.0)  # after so many failures in a row


class Backoff:
    """Who failed lately, how often in a row, and until when it is let be."""

    def __init__(self) -> None:
        self._failed: dict[Hashable, tuple[int, float]] = {}

    def should_skip(self, key: Hashable) -> bool:
        """Has this failed so often that it is not to be tried now?"""
        return key in self._failed and time.monotonic() < self._failed[key][1]

    def failed(self, key: Hashable) -> None:
        times = self._failed.get(key, (0, 0.0))[0] + 1
        self._failed[key] = times, time.monotonic() + WAITS_S[min(times, len(WAITS_S)) - 1]

    def succeeded(self, key: Hashable) -> None:
        self._failed.pop(key, None)

    def forget(self) -> None:
        self._failed.clear()


backoff = Backoff()  # of this process; keys begin with what was tried
