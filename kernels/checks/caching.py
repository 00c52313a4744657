"""Is a call as fast on numbers it has never seen?  Whoever keeps results by content is right, and only seems fast.

Every set is moved some way towards other numbers where it lies, then each call is timed once; and the same again, moved
by nothing, which leaves the numbers.  Memory and caches are in the same state both times: honest calls take the same.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from time import perf_counter, perf_counter_ns
from typing import Any, Protocol

import torch
from torch import Tensor

from ..cases import Case
from ..contender.clocks import Call, Clock
from .inputs import DTYPES, Inputs
from .outputs import Outputs, Wrong, snapshot

TIMES = {"cpu": 5, "cuda": 2}
FEWEST, MAX_S = 2, 0.3
# The fastest on new numbers against the median on known ones: an interrupt makes either slower, and only a whole row of
# them would accuse somebody.
LIMIT = 1.25
LIMIT_US = 5.0
FAR = 0.25  # of the way
SLEEP_CYCLES = 200_000  # about 100 us before a replay, so that the host is ahead of it both times

_sleep: Any = torch.cuda._sleep


@dataclass(frozen=True)
class Fresh:
    """Microseconds of all calls, on known numbers and on new ones; the number of a set and its outputs at the end."""

    known: tuple[float, ...]
    new: tuple[float, ...]
    number: int
    outputs: Outputs

    def check(self) -> None:
        """Raises Wrong where new numbers take so much longer that known ones can not have been computed."""
        usual, fastest = median(self.known), min(self.new)
        if fastest > LIMIT * usual + LIMIT_US:
            raise Wrong(
                f"does less on numbers it has seen before: {usual:.4g} us on those, at least {fastest:.4g} us on others"
            )


def take(case: Case, sets: Sequence[Inputs], calls: Sequence[Call], clock: Clock, seed: int) -> Fresh:
    """Time known and new numbers in turn.  The sets have other numbers afterwards.

    The outputs are those of the last new numbers as they were left: being fast by doing nothing is no way out.
    """
    x = sets[0]["x"]
    generator = torch.Generator(x.device).manual_seed(seed)
    timer: _Timer = _EachCall(case, calls) if x.device.type == "cpu" else _Replay(case, clock)
    known: list[float] = []
    new: list[float] = []
    ends = perf_counter() + MAX_S
    while len(new) < FEWEST or (len(new) < TIMES[x.device.type] and perf_counter() < ends):
        other = torch.randn(case.rows, case.cols, dtype=DTYPES[case.dtype], device=x.device, generator=generator)
        for far, taken in ((0.0, known), (FAR, new)):
            _move(sets, other, far)
            taken.append(timer.time())
    return Fresh(tuple(known), tuple(new), *timer.last())


def _move(sets: Sequence[Inputs], other: Tensor, far: float) -> None:
    """In place and unseen, as `refill` does it.  With hundreds of sets a launch for each would take longer than all."""
    torch._foreach_lerp_([inputs[inputs.fresh].data for inputs in sets], [other] * len(sets), far)


class _Timer(Protocol):
    def time(self) -> float: ...

    def last(self) -> tuple[int, Outputs]: ...


class _EachCall:
    """On a CPU each call by itself; what it returned is copied before anything else may work on it."""

    def __init__(self, case: Case, calls: Sequence[Callable[[], Any]]) -> None:
        self._case, self._calls = case, calls
        self._last: Outputs = {}

    def time(self) -> float:
        took = 0
        for call in self._calls:
            began = perf_counter_ns()
            returned = call()
            took += perf_counter_ns() - began
            self._last = snapshot(self._case, returned)
        return took / 1e3

    def last(self) -> tuple[int, Outputs]:
        return len(self._calls) - 1, self._last


class _Replay:
    """On a GPU the clock's own graph, in which each set comes once or, of large cases, a few times."""

    def __init__(self, case: Case, clock: Clock) -> None:
        self._case, self._clock = case, clock
        *_, self._last = clock.again()  # the outputs of the graph stay where they are

    def time(self) -> float:
        _sleep(SLEEP_CYCLES)
        return self._clock.turn(0, 1)[0] * self._clock.calls

    def last(self) -> tuple[int, Outputs]:
        number, output = self._last
        return number, snapshot(self._case, output)
