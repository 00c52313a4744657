"""Detect results cached by content: is a call as fast on new numbers as on known ones?

Every input set is interpolated in place towards other numbers, and each call is timed once.  Then the same with a
weight of zero, which leaves the numbers as they are.  Memory and caches are in the same state both times, so that
honest calls take the same time.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, thread_time_ns
from typing import Any, Protocol

import torch
from torch import Tensor

from ..cases import Case
from ..checks.inputs import DTYPES, Inputs
from ..checks.outputs import Outputs, Wrong, snapshot
from ..providers.inplace import restored
from .clocks import Call, Clock

TIMES = {"cpu": 5, "cuda": 2}
MIN_TIMES = 2
MAX_S = 0.3
# Limit on the fastest time with new numbers, relative to the median with known ones: single interrupts cannot exceed
# it.
LIMIT = 1.25
LIMIT_US = 5.0
WEIGHT = 0.25  # of the other numbers
SLEEP_CYCLES = 200_000  # about 100 us before a replay, so that the host is ahead of the device both times

_sleep: Any = torch.cuda._sleep


@dataclass(frozen=True)
class CachingTimes:
    """Microseconds of all calls with known and with new numbers; then the number of a set and its outputs."""

    known: tuple[float, ...]
    new: tuple[float, ...]
    number: int
    outputs: Outputs

    def check(self) -> None:
        """Raises Wrong if new numbers take so much longer that the results of known ones must be cached."""
        usual = median(self.known)
        fastest = min(self.new)
        if fastest > LIMIT * usual + LIMIT_US:
            raise Wrong(
                f"does less on numbers it has seen before: {usual:.4g} us on those, at least {fastest:.4g} us on others"
            )


def measure(case: Case, sets: Sequence[Inputs], calls: Sequence[Call], clock: Clock, seed: int) -> CachingTimes:
    """Time known and new numbers in turn, and leave other numbers in the sets.

    The result contains the last outputs, to be checked: a call that skips new numbers is fast and wrong.
    """
    x = sets[0]["x"]
    generator = torch.Generator(x.device).manual_seed(seed)
    timer: _Timer = _EachCall(case, calls) if x.device.type == "cpu" else _Replay(case, clock)
    known: list[float] = []
    new: list[float] = []
    deadline = perf_counter() + MAX_S
    while len(new) < MIN_TIMES or (len(new) < TIMES[x.device.type] and perf_counter() < deadline):
        other = torch.randn(x.shape, dtype=DTYPES[case.dtype], device=x.device, generator=generator)
        for weight, times in ((0.0, known), (WEIGHT, new)):
            _interpolate(sets, other, weight)
            times.append(timer.time())
    return CachingTimes(tuple(known), tuple(new), *timer.last())


def _interpolate(sets: Sequence[Inputs], other: Tensor, weight: float) -> None:
    """In place and without a new version, as `refill`; in one launch, because there may be hundreds of sets."""
    torch._foreach_lerp_([inputs[inputs.fresh].data for inputs in sets], [other] * len(sets), weight)


class _Timer(Protocol):
    def time(self) -> float: ...

    def last(self) -> tuple[int, Outputs]: ...


class _EachCall:
    """Measures the CPU time of each call, and copies its outputs before other work can change them.

    By wall time honest calls failed on a busy host, where all those with new numbers were interrupted (November).
    """

    def __init__(self, case: Case, calls: Sequence[Callable[[], Any]]) -> None:
        self._case = case
        self._calls = calls
        self._last: Outputs = {}

    def time(self) -> float:
        elapsed_ns = 0
        for call in map(restored, self._calls):
            began = thread_time_ns()
            returned = call()
            elapsed_ns += thread_time_ns() - began
            self._last = snapshot(self._case, returned)
        return elapsed_ns / 1e3

    def last(self) -> tuple[int, Outputs]:
        return len(self._calls) - 1, self._last


class _Replay:
    """Times the clock's own graph on a GPU, which contains each set once or, for large cases, a few times."""

    def __init__(self, case: Case, clock: Clock) -> None:
        self._case = case
        self._clock = clock
        *_, self._last = clock.again()  # the addresses of a graph's outputs do not change

    def time(self) -> float:
        _sleep(SLEEP_CYCLES)
        return self._clock.turn(0, 1)[0] * self._clock.calls

    def last(self) -> tuple[int, Outputs]:
        number, output = self._last
        return number, snapshot(self._case, output)
