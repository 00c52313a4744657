"""How long a call takes: on a GPU the device's time without the host's, on a CPU the time of several calls together."""

import gc
import math
import random
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial

# Taken before any code of a target is loaded, which might replace it; below likewise.
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from ..arena.sizes import GRAPH_S, calls_in_graph
from ..cases import Case
from ..facts.graph_kernels import ran
from .server import said

Call = Callable[[], Any]
Before = Callable[[int], None]
_Event: Any = torch.cuda.Event
event = partial(_Event, enable_timing=True)
_record, _elapsed_ms = _Event.record, _Event.elapsed_time
_any_of = random.SystemRandom().randrange
_replay_graph: Any = torch.cuda.CUDAGraph.replay

MIN_SAMPLE_S = 2e-3  # a timed sample on a CPU, so that the clock and a stray interrupt stay small in it
MAX_REPLAY_S = 0.1  # of a kernel fifty times slower than a good one: then it is given fewer calls
KEPT = 2  # calls that are looked at after the timing; on a GPU the outputs of every set stay alive for that


class NotCaptured(Exception):
    """The calls can not be captured in a CUDA graph.  The message says why; this process can do nothing more."""


class Clock(Protocol):
    calls: int

    def turn(self, warm: int, timed: int) -> list[float]:
        """Microseconds per call, one figure for each timed sample, after `warm` untimed ones."""
        ...

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        """The same calls once more: outputs to be judged, each with the number of its input set.

        `before` is given each of these numbers first, and may change what the set contains.  Where nothing is captured
        it is one call at a time, so that its outputs can be looked at before the next one is made.
        """
        ...


def one_by_one(calls: Sequence[Call], before: Before | None) -> Iterator[tuple[int, Any]]:
    """The last calls, as `Clock.again` has them."""
    for number in range(len(calls))[-KEPT:]:
        if before is not None:
            before(number)
        yield number, calls[number]()


class CpuClock:
    def __init__(self, calls: Sequence[Call]) -> None:
        self._each = list(calls)
        for call in self._each:
            call()
        self.calls = self._how_many()
        self._alone = False

    def _how_many(self) -> int:
        once = min(self._sample(len(self._each)) for _ in range(3)) / len(self._each)
        rounds = math.ceil(MIN_SAMPLE_S / max(once, 1e-7) / len(self._each))
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

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        return one_by_one(self._each, before)

    def _sample(self, calls: int) -> float:
        each, rounds = self._each, calls // len(self._each)
        began = perf_counter_ns()
        for _ in range(rounds):
            for call in each:
                call()
        return (perf_counter_ns() - began) / 1e9


def _forget(output: Any) -> None:
    """What a replay does not write stays wrong."""
    for tensor in output if isinstance(output, tuple | list) else (output,):
        tensor.data.fill_(math.nan)


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
        fewer = max(1, int(self.calls * MAX_REPLAY_S / self._replay_s()) // len(calls)) * len(calls)
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

    def again(self, before: Before | None = None) -> list[tuple[int, Any]]:
        """Of the last call, and of another that nobody can foresee: none must be missing in the graph."""
        *others, last = self._kept
        seen = [others[_any_of(len(others))], last] if others else [last]
        with torch.cuda.stream(self._stream):
            for number, output in seen:
                if before is not None:
                    before(number)
                _forget(output)
            _replay_graph(self._graph)
        self._stream.synchronize()
        return seen

    def replay(self, number: int) -> Any:
        """The outputs of input set `number` after one more replay; the next one writes over them."""
        output = next(output for each, output in self._kept if each == number)
        with torch.cuda.stream(self._stream):
            _forget(output)
            _replay_graph(self._graph)
        return output

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
        """What a replay takes, the first one aside; the least, since the others are getting ready as well."""
        _replay_graph(self._graph)
        pairs = [self._replay() for _ in range(2)]
        self._stream.synchronize()
        return max(min(float(_elapsed_ms(began, ended)) for began, ended in pairs) / 1e3, 1e-6)

    def _replay(self) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        began, ended = event(), event()
        _record(began, self._stream)
        _replay_graph(self._graph)
        _record(ended, self._stream)
        return began, ended
