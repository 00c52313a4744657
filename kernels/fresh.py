"""Is a call as fast on numbers it has never seen?  Whoever keeps results by content is right, and only seems fast.

Every set is given new numbers where it lies, then each is called once and timed; and the same again with ones as
factors, which leave the numbers.  Memory and caches are in the same state both times, so honest calls take the same.
On a GPU the calls are those of a graph in which each set comes once: in one with many rounds over the sets the work of
the first round would hardly show.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median
from time import perf_counter_ns
from typing import Any, Protocol

import torch
from torch import Tensor

from .checks import Outputs, Wrong, snapshot
from .inputs import DTYPES, Inputs, refill
from .words import Case

TIMES = {"cpu": 5, "cuda": 3}
# The fastest on new numbers against the median on known ones: an interrupt makes either slower, and only a whole row of
# them would accuse somebody.
LIMIT = 1.25
LIMIT_US = 5.0
SLEEP_CYCLES = 200_000  # about 100 us before each timed replay, so that the host is ahead both times

_event: Any = partial(torch.cuda.Event, enable_timing=True)
_sleep: Any = torch.cuda._sleep


@dataclass(frozen=True)
class Fresh:
    """Microseconds for each set once, on known numbers and on new ones, and the outputs of the last set at the end."""

    known: tuple[float, ...]
    new: tuple[float, ...]
    last: Outputs

    def check(self) -> None:
        """Raises Wrong where new numbers take so much longer that known ones can not have been computed."""
        usual, fastest = median(self.known), min(self.new)
        if fastest > LIMIT * usual + LIMIT_US:
            raise Wrong(
                f"does less on numbers it has seen before: {usual:.4g} us on those, at least {fastest:.4g} us on others"
            )


def take(case: Case, sets: Sequence[Inputs], calls: Sequence[Callable[[], Any]], stream: Any, seed: int) -> Fresh:
    """Time known and new numbers in turn.  The sets have other numbers afterwards.  `stream` is None on a CPU.

    The last outputs belong to the last numbers: being fast on new ones by doing nothing is no way out.
    """
    x = sets[0]["x"]
    generator = torch.Generator(x.device).manual_seed(seed)
    ones = torch.ones(case.cols, dtype=DTYPES[case.dtype], device=x.device)
    timer: _Timer = _EachCall(case, calls) if stream is None else _OneGraph(case, calls, stream)
    timer.time(partial(_multiply, sets, ones))
    known, new = [], []
    for _ in range(TIMES[x.device.type]):
        factors = torch.rand(case.cols, device=x.device, generator=generator) * 0.45 + 0.8
        known.append(timer.time(partial(_multiply, sets, ones)))
        new.append(timer.time(partial(_multiply, sets, factors.to(ones.dtype))))
    return Fresh(tuple(read() for read in known), tuple(read() for read in new), timer.last())


def _multiply(sets: Sequence[Inputs], factors: Tensor, number: int) -> None:
    inputs = sets[number]
    refill(inputs, inputs[inputs.fresh] * factors)


class _Timer(Protocol):
    def time(self, change: Callable[[int], None], /) -> Callable[[], float]:
        """Change each set by its number and call it; how long the calls took is known when all is done."""
        ...

    def last(self) -> Outputs: ...


class _EachCall:
    def __init__(self, case: Case, calls: Sequence[Callable[[], Any]]) -> None:
        self._case, self._calls = case, calls
        self._last: Outputs = {}

    def time(self, change: Callable[[int], None]) -> Callable[[], float]:
        took = 0
        for number, call in enumerate(self._calls):
            change(number)
            began = perf_counter_ns()
            returned = call()
            took += perf_counter_ns() - began
            if number == len(self._calls) - 1:
                self._last = snapshot(self._case, returned)
        return lambda: took / 1e3

    def last(self) -> Outputs:
        return self._last


class _OneGraph:
    def __init__(self, case: Case, calls: Sequence[Callable[[], Any]], stream: Any) -> None:
        self._case, self._stream = case, stream
        self._graph: Any = torch.cuda.CUDAGraph()
        self._graph.capture_begin()  # torch.cuda.graph would first give all cached memory back
        try:
            self._kept = [call() for call in calls]  # as many outputs as sets
        finally:
            self._graph.capture_end()

    def time(self, change: Callable[[int], None]) -> Callable[[], float]:
        for number in range(len(self._kept)):
            change(number)
        began, ended = _event(), _event()
        _sleep(SLEEP_CYCLES)
        began.record(self._stream)
        self._graph.replay()
        ended.record(self._stream)

        def read() -> float:
            ended.synchronize()
            return float(began.elapsed_time(ended)) * 1e3

        return read

    def last(self) -> Outputs:
        return snapshot(self._case, self._kept[-1])
