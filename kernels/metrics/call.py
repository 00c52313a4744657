"""The call metric: host time of one eager call, i.e. its launches, guards and wrappers."""

import gc
import math
import statistics
from collections.abc import Iterable, Sequence

# Imported before any code of a target runs, which might replace it.
from time import perf_counter_ns
from typing import Any

from .clocks import Before, Call, one_by_one

# A launch queue holds about a thousand entries; when it is full a launch waits for the device.  An eager forward and
# backward pass of a norm makes about twenty launches.
MAX_CALLS = 32
MIN_CALLS = 5  # enough for a median
MAX_DRAIN_S = 2e-3  # device time of the calls of a sample, unless that allows fewer than MIN_CALLS
MIN_SAMPLE_S = 2e-3  # on a CPU
MAX_CALLS_ON_CPU = 512


class CallClock:
    """Times each of several calls in a row; a sample is their median in us.

    The device is drained before each sample and never within one: the host finds an empty queue, launches ahead of the
    device as a program does, and never waits.  The median ignores what affects single calls: cold caches in the first
    call after the device was drained, and interrupts.  On a CPU the call also computes, and all of it is host time.
    """

    def __init__(self, calls: Sequence[Call], stream: Any) -> None:
        self._bound = list(calls)
        self._stream = stream
        for call in self._bound:
            call()
        self._drain()
        self.calls = 1
        once_s = max(min(self._synchronous_s(MIN_CALLS) for _ in range(3)), 1e-7)
        if stream is None:
            self.calls = max(MIN_CALLS, min(MAX_CALLS_ON_CPU, math.ceil(MIN_SAMPLE_S / once_s)))
        else:
            self.calls = max(MIN_CALLS, min(MAX_CALLS, int(MAX_DRAIN_S / once_s)))

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
        return one_by_one(self._bound, before)

    def _sample(self) -> float:
        taken = []
        in_turn = [self._bound[number % len(self._bound)] for number in range(self.calls)]
        self._drain()
        now = perf_counter_ns
        before = now()
        for call in in_turn:
            call()  # the result is freed within the timed span, as in a program
            after = now()
            taken.append(after - before)
            before = after
        self._drain()
        return statistics.median(taken) / 1e3

    def _synchronous_s(self, calls: int) -> float:
        """Seconds of a call, including the device's work."""
        self._drain()
        began = perf_counter_ns()
        for number in range(calls):
            self._bound[number % len(self._bound)]()
        self._drain()
        return (perf_counter_ns() - began) / calls / 1e9

    def _drain(self) -> None:
        if self._stream is not None:
            self._stream.synchronize()
