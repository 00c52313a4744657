"""Work for different repositories at the same time: those that do not answer delay no other."""

import threading
import time
from collections.abc import Callable, Hashable, Iterable
from concurrent.futures import Future, wait
from functools import partial
from typing import TypeVar

from service.errors import SourceFailed
from service.settings import settings
from service.sources import ended_by

Key = TypeVar("Key", bound=Hashable)
ROUND_S = 60.0  # of one call that waits for its repositories
STARTING_S = 10.0  # of one that does not, while all places are taken
PLACE_S = 3.0  # for which work holds a place: most fetches take less than a second, and what hangs takes minutes
WAITING = 64  # that go on without a place; each is a git process that waits for its repository
LIMIT_S = 3600.0  # of work for one repository; the first fetch of a large one takes minutes


class SideBySide:
    """Threads that end with the process, for each key at most one.

    There are `KERNELWATCH_REPOSITORIES_AT_ONCE` places.  Work that takes long gives up its place.  Where more than
    `WAITING` has done so, what takes longest ends, and fails, as soon as other work needs a place.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._busy = dict[Hashable, float]()  # since when, the longest first
        self._in_the_way = set[Hashable]()  # those of them that have to end
        self._changed = threading.Condition()

    def busy(self) -> frozenset[Hashable]:
        """The keys that have work now."""
        with self._changed:
            return frozenset(self._busy)

    def each(self, keys: Iterable[Key], work: Callable[[Key], int], *, wait: bool) -> int:
        """Work for each of these keys that has none yet.  Returns the sum of what is done, with `wait` after a while.

        What cannot begin in a while waits for the next call.
        """
        ends, begun = time.monotonic() + (ROUND_S if wait else STARTING_S), list[Future[int]]()
        for key in keys:
            if (begins := self.begin(key, partial(work, key), ends)) is not None:
                begun.append(begins)
            elif time.monotonic() > ends:
                break
        return sum_until(ends, begun) if wait else 0

    def begin(self, key: Hashable, work: Callable[[], int], ends: float) -> Future[int] | None:
        """Begin work as soon as there is a place.

        Returns None where there was none until the time `ends` of the monotonic clock, and at once if the key has work.
        """
        with self._changed:
            while key not in self._busy and not self._has_place() and (left_s := ends - time.monotonic()) > 0:
                self._in_the_way.update(self._long()[:-WAITING])
                self._changed.wait(min(left_s, PLACE_S / 10))
            if key in self._busy or not self._has_place():
                return None
            self._busy[key] = time.monotonic()
        future = Future[int]()
        threading.Thread(target=self._do, args=(key, work, future), name=self._name, daemon=True).start()
        return future

    def _has_place(self) -> bool:
        return len(self._busy) - min(len(self._long()), WAITING) < settings().repositories_at_once

    def _long(self) -> list[Hashable]:
        """Those that have given up their place, the longest first."""
        return [key for key, began in self._busy.items() if time.monotonic() - began > PLACE_S]

    def _keep_going(self, key: Hashable, began: float) -> None:
        """Raise SourceFailed where the work for a repository has to end."""
        took_s = time.monotonic() - began
        if took_s > LIMIT_S:
            raise SourceFailed(f"The repository took longer than {LIMIT_S:.0f} s.")
        if key in self._in_the_way:
            raise SourceFailed(
                f"The repository took more than {took_s:.0f} s while {WAITING} others take long, too; it is asked again"
                " later."
            )

    def _do(self, key: Hashable, work: Callable[[], int], future: Future[int]) -> None:
        try:
            with ended_by(partial(self._keep_going, key, time.monotonic())):
                result = work()
        except BaseException as error:
            self._end(key)
            future.set_exception(error)
        else:
            self._end(key)
            future.set_result(result)

    def _end(self, key: Hashable) -> None:
        with self._changed:
            del self._busy[key]
            self._in_the_way.discard(key)
            self._changed.notify_all()


def sum_until(ends: float, begun: Iterable[Future[int]]) -> int:
    """The sum of the results that there are at the time `ends` of the monotonic clock.  Raises what has failed."""
    left_s = min(max(0.0, ends - time.monotonic()), threading.TIMEOUT_MAX)
    return sum(future.result() for future in wait(begun, left_s).done)
