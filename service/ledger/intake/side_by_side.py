"""Work for different repositories at the same time: one that does not answer delays no other."""

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, wait

from service.settings import settings


class SideBySide:
    """Threads that end with the process, at most `KERNELWATCH_REPOSITORIES_AT_ONCE`, and for each key at most one."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = set[Hashable]()
        self._changed = threading.Condition()

    def busy(self) -> frozenset[Hashable]:
        """The keys that have work now."""
        with self._changed:
            return frozenset(self._busy)

    def begin(self, key: Hashable, work: Callable[[], int], ends: float) -> Future[int] | None:
        """Begin work as soon as a thread is free.

        Returns None where none was until the time `ends` of the monotonic clock, and while the key has work.
        """
        with self._changed:
            while len(self._busy) >= settings().repositories_at_once and (left_s := ends - time.monotonic()) > 0:
                self._changed.wait(min(left_s, threading.TIMEOUT_MAX))
            if key in self._busy or len(self._busy) >= settings().repositories_at_once:
                return None
            self._busy.add(key)
        future = Future[int]()
        threading.Thread(target=self._do, args=(key, work, future), name=self._name, daemon=True).start()
        return future

    def _do(self, key: Hashable, work: Callable[[], int], future: Future[int]) -> None:
        try:
            result = work()
        except BaseException as error:
            self._end(key)
            future.set_exception(error)
        else:
            self._end(key)
            future.set_result(result)

    def _end(self, key: Hashable) -> None:
        with self._changed:
            self._busy.remove(key)
            self._changed.notify_all()


def sum_until(ends: float, begun: Iterable[Future[int]]) -> int:
    """The sum of the results that there are at the time `ends` of the monotonic clock.  Raises what has failed."""
    left_s = min(max(0.0, ends - time.monotonic()), threading.TIMEOUT_MAX)
    return sum(future.result() for future in wait(begun, left_s).done)
