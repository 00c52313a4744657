"""How long a call takes: on a GPU the device's time without the host's, on a CPU the time of several calls together."""

import gc
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial

# Taken before any code of a target is loaded, which might replace it; below likewise.
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from .ran import ran
from .serving import said
from .words import Case, Direction

Call = Callable[[], Any]
_Event: Any = torch.cuda.Event
_event = partial(_Event, enable_timing=True)
_record, _elapsed_ms = _Event.record, _Event.elapsed_time
_any_of = random.SystemRandom().randrange
_replay_graph: Any = torch.cuda.CUDAGraph.replay

SHORTEST_SAMPLE_S = 2e-3  # a timed sample on a CPU, so that the clock and a stray interrupt stay small in it
GRAPH_S = 2e-3  # what one replay of a CUDA graph should take, for the same reason; the arena may ask for less
NOMINAL_BYTES_S = 4e12  # of a good kernel on a GPU of today
# What it takes beside moving its bytes; backwards there is a second kernel for the gradients of the weights.
NOMINAL_LAUNCH_S = {Direction.FWD: 2e-6, Direction.BWD: 6e-6, Direction.FWDBWD: 8e-6}
LONGEST_REPLAY_S = 20e-3  # of a slow kernel
# Input sets, one for each call of the graph.  Where memory lies decides what varies from process to process: with 54
# sets instead of 3 the ratio at 32768x1024 spread by 0.07 % instead of 0.16, with 28 instead of 2 at 8192x8192 by 0.04
# instead of 0.12.  And three times the L2 are not enough to be cold: a kernel that asks for its inputs to be evicted
# first keeps its outputs there, and took 5.6 us at 4096x1024 with 3 times the L2 and 6.3 from 12 times on, beside
# another that took 6.67 with both (H200, November).
MOST_SETS = 768
MOST_SET_BYTES = 5 << 30
OF_MEMORY = 1 / 16  # of the device's, for inputs; as much again for outputs, and several contenders hold theirs at once
COLD = 12  # times the L2
KEPT = 2  # calls that are looked at after the timing; on a GPU the outputs of every set stay alive for that


class NotCaptured(Exception):
    """The calls can not be captured in a CUDA graph.  The message says why; this process can do nothing more."""


class Clock(Protocol):
    calls: int

    def turn(self, warm: int, timed: int) -> list[float]:
        """Microseconds per call, one figure for each timed sample, after `warm` untimed ones."""
        ...

    def again(self) -> Iterable[tuple[int, Any]]:
        """The same calls once more: the last outputs, each with the number of its input set.

        On a CPU one call at a time, so that its outputs can be looked at before the next one is made.
        """
        ...


class CpuClock:
    def __init__(self, calls: Sequence[Call]) -> None:
        self._each = list(calls)
        for call in self._each:
            call()
        self.calls = self._how_many()
        self._alone = False

    def _how_many(self) -> int:
        once = min(self._sample(len(self._each)) for _ in range(3)) / len(self._each)
        rounds = math.ceil(SHORTEST_SAMPLE_S / max(once, 1e-7) / len(self._each))
        return max(1, rounds) * len(self._each)

    def turn(self, warm: int, timed: int) -> list[float]:
        if not self._alone:  # until now the others were getting ready on the same cores
            self._alone, self.calls = True, self._how_many()
        gc.collect(0)
        gc.disable()
        try:
            for _ in range(warm):
                self._sample(self.calls)
            return [self._sample(self.calls) / self.calls * 1e6 for _ in range(timed)]
        finally:
            gc.enable()

    def again(self) -> Iterable[tuple[int, Any]]:
        numbers = range(len(self._each))[-KEPT:]
        return ((number, self._each[number]()) for number in numbers)

    def _sample(self, calls: int) -> float:
        each, rounds = self._each, calls // len(self._each)
        began = perf_counter_ns()
        for _ in range(rounds):
            for call in each:
                call()
        return (perf_counter_ns() - began) / 1e9


class CudaClock:
    """One CUDA graph of many calls over rotating input sets, timed by events.

    Everything must happen on `stream`: autograd runs a backward pass on the stream of its forward pass, and work on
    another stream than the captured one would not be in the graph.
    """

    def __init__(self, calls: Sequence[Call], stream: torch.cuda.Stream, case: Case, graph_s: float = GRAPH_S) -> None:
        self._stream = stream
        self._each = list(calls)  # the graph reads what they hold on to, such as a forward pass that autograd kept
        for call in calls:  # every set once: compiled, tuned and loaded before the capture
            call()
        stream.synchronize()
        self.calls = calls_in_graph(case, len(calls), graph_s)
        self._graph, self._kept = self._captured()
        fewer = max(1, int(self.calls * LONGEST_REPLAY_S / self._replay_s()) // len(calls)) * len(calls)
        if fewer < self.calls:  # so slow that the fixed cost of a replay is nothing, whatever the count
            del self._graph, self._kept
            self.calls = fewer
            self._graph, self._kept = self._captured()
            self._replay_s()
        self.facts = {"ran": ran(self._graph)}

    def turn(self, warm: int, timed: int) -> list[float]:
        # The untimed replays are also the backlog behind which the timed ones queue: no gap of the host is in them.
        with torch.cuda.stream(self._stream):
            for _ in range(warm):
                _replay_graph(self._graph)
            pairs = [self._replay() for _ in range(timed)]
        self._stream.synchronize()
        return [_elapsed_ms(began, ended) * 1e3 / self.calls for began, ended in pairs]

    def again(self) -> list[tuple[int, Any]]:
        """Of the last call, and of another that nobody can foresee: none must be missing in the graph."""
        *others, last = self._kept
        seen = [others[_any_of(len(others))], last] if others else [last]
        with torch.cuda.stream(self._stream):
            for _, output in seen:
                for tensor in output if isinstance(output, tuple | list) else (output,):
                    tensor.data.fill_(math.nan)  # what a replay does not write stays wrong
            _replay_graph(self._graph)
        self._stream.synchronize()
        return seen

    def _captured(self) -> tuple[torch.cuda.CUDAGraph, list[tuple[int, Any]]]:
        """A graph of `self.calls` calls, and the last outputs of each set, which stay where they are."""
        graph = torch.cuda.CUDAGraph(keep_graph=True)
        first: BaseException | None = None
        # While capturing as many outputs are alive as there are sets, or a few buffers would be used in turn and stay
        # in the L2, for everybody but those that bring a buffer for each set.
        outputs: deque[tuple[int, Any]] = deque(maxlen=len(self._each))
        try:
            with torch.cuda.graph(graph, stream=self._stream):
                try:
                    for number in range(self.calls):
                        which = number % len(self._each)
                        outputs.append((which, self._each[which]()))
                except BaseException as trouble:
                    first = trouble  # ending the capture fails as well, and says only that
                    raise
            graph.instantiate()
        except BaseException as trouble:
            raise NotCaptured(f"cannot be captured in a CUDA graph: {said(first or trouble)}") from trouble
        return graph, list(outputs)

    def _replay_s(self) -> float:
        """What a replay takes, the first ones aside."""
        _replay_graph(self._graph)
        _replay_graph(self._graph)
        began, ended = self._replay()
        self._stream.synchronize()
        return max(float(_elapsed_ms(began, ended)) / 1e3, 1e-6)

    def _replay(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        began, ended = _event(), _event()
        _record(began, self._stream)
        _replay_graph(self._graph)
        _record(ended, self._stream)
        return began, ended


def nominal_s(case: Case) -> float:
    """What a call of a good kernel takes."""
    return NOMINAL_LAUNCH_S[case.direction] + case.least_bytes / NOMINAL_BYTES_S


def calls_in_graph(case: Case, sets: int, graph_s: float = GRAPH_S) -> int:
    """A multiple of the sets: about `graph_s` long for a good kernel, or once through all sets where that is longer.

    The case decides and nobody's own time: each replay has a fixed cost of 1.3 to 2.9 us, and equal code that was given
    23 calls here and 46 there differed by up to 1.8 % (H200, November).
    """
    return max(1, min(MOST_SETS, int(graph_s / nominal_s(case))) // sets) * sets


def sets_needed(
    case: Case, set_bytes: int, l2_bytes: int | None, memory_bytes: int | None = None, graph_s: float = GRAPH_S
) -> int:
    """How many input sets to rotate: as many as there are calls in a graph, where there is memory for them.

    Two on a CPU, where caches are part of the work.
    """
    if l2_bytes is None:
        return 2
    allowed = min(MOST_SET_BYTES, int(OF_MEMORY * (memory_bytes or 16 * MOST_SET_BYTES))) // set_bytes
    return max(2, min(MOST_SETS, int(graph_s / nominal_s(case)), allowed))


def stays_in_l2(set_bytes: int, sets: int, l2_bytes: int) -> bool:
    """Is what a call reads likely to be in the L2 still from the time before?"""
    return sets * set_bytes < COLD * l2_bytes
