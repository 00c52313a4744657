"""The call metric: the host's time of one eager call, which is its launches, guards and wrappers."""

import gc
import math
import statistics
from collections.abc import Iterable, Sequence

# Taken before any code of a target is loaded, which might replace it.
from time import perf_counter_ns
from typing import Any

from ..clocks import Before, Call, one_by_one

# A launch queue holds about a thousand entries; once it is full a launch waits for the device.  An eager forward and
# backward pass of a norm makes some twenty launches.
MAX_CALLS = 32
MIN_CALLS = 5  # enough for a median
MAX_DRAIN_S = 2e-3  # the device's time of the calls of a sample, where that does not ask for fewer than the fewest
MIN_SAMPLE_S, MAX_CALLS_ON_CPU = 2e-3, 512


class CallClock:
    """Calls back to back, each timed by itself; a sample is the median of them, in us.

    The device is drained before each sample, never within one: the host meets an empty queue, launches ahead of the
    device as a program does, and waits for nothing.  A median, not a mean, because what hits single calls is not the
    callee's: the first call after waiting for the device finds cold caches, and the system interrupts whom it likes.
    On a CPU the call computes as well: its whole time is the host's.
    """

    def __init__(self, calls: Sequence[Call], stream: Any) -> None:
        self._each, self._stream = list(calls), stream
        for call in self._each:
            call()
        self._drain()
        self.calls = 1
        once = min(self._whole(MIN_CALLS) for _ in range(3))
        if stream is None:
            self.calls = max(MIN_CALLS, min(MAX_CALLS_ON_CPU, math.ceil(MIN_SAMPLE_S / max(once, 1e-7))))
        else:
            self.calls = max(MIN_CALLS, min(MAX_CALLS, int(MAX_DRAIN_S / max(once, 1e-7))))

    def turn(self, warm: int, timed: int) -> list[float]:
        gc.collect(0)
        gc.disable()
        try:
            for _ in range(warm):
                self._sample()
            return [self._sample() for _ in range(timed)]
        finally:
            gc.enable()

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        return one_by_one(self._each, before)

    def _sample(self) -> float:
        taken = []
        in_turn = [self._each[number % len(self._each)] for number in range(self.calls)]
        self._drain()
        now = perf_counter_ns
        before = now()
        for call in in_turn:
            call()  # what it returns is dropped within its time, as a program drops it
            after = now()
            taken.append(after - before)
            before = after
        self._drain()
        return statistics.median(taken) / 1e3

    def _whole(self, calls: int) -> float:
        """Seconds a call takes until the device has done it too."""
        self._drain()
        began = perf_counter_ns()
        for number in range(calls):
            self._each[number % len(self._each)]()
        self._drain()
        return (perf_counter_ns() - began) / calls / 1e9

    def _drain(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
