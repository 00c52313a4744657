"""Clocks of the kernel metric: device time in a CUDA graph on a GPU, wall time of several calls on a CPU."""

import gc
import math
import os
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import pairwise

# Imported before any code of a target runs, which might replace it; the references below for the same reason.
from time import perf_counter_ns
from typing import Any, Protocol

import torch

from ..checks.oracle import poison
from ..errors import format_exception
from ..facts.graph_kernels import kernels_of_graph
from ..providers.captured import outputs_of
from ..providers.inplace import restored, restores_of

Call = Callable[[], Any]
Before = Callable[[int], None]
_Event: Any = torch.cuda.Event
event = partial(_Event, enable_timing=True)
_record, _elapsed_ms = _Event.record, _Event.elapsed_time
_urandom = os.urandom
_collect, _disable, _enable = gc.collect, gc.disable, gc.enable
_replay_graph: Any = torch.cuda.CUDAGraph.replay

MIN_SAMPLE_S = 2e-3  # of a timed sample on a CPU, so that the clock's own cost and single interrupts stay negligible
EAGER_SAMPLE_S = 20e-3  # of calls without a graph, of which a sample has several where they are short
MAX_EAGER_CALLS = 16
MAX_REPLAY_S = 0.1  # reached by a kernel fifty times slower than a good one: then the graph gets fewer calls
KEPT = 2  # calls that are checked after the timing; on a GPU the outputs of every set stay alive for that


def random_index(below: int) -> int:
    """A number from 0 to `below` - 1 that code of a target can neither know nor choose."""
    return int.from_bytes(_urandom(8)) % below


class NotCaptured(Exception):
    """The calls cannot be captured in a CUDA graph; the message says why.  The process is unusable afterwards."""


class Clock(Protocol):
    calls: int

    def turn(self, warm: int, timed: int) -> list[float]:
        """Microseconds per call, one value for each timed sample, after `warm` untimed ones."""
        ...

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        """Repeat the same calls: the outputs to check, each with the number of its input set.

        `before` is called with each number first, and may change the numbers in that set.  Without a graph the calls
        are made lazily, so that the outputs of one can be checked before the next call.
        """
        ...


def one_by_one(calls: Sequence[Call], before: Before | None) -> Iterator[tuple[int, Any]]:
    """Repeat the last calls, as `Clock.again` defines it."""
    for number in range(len(calls))[-KEPT:]:
        if before is not None:
            before(number)
        yield number, restored(calls[number])()


class CpuClock:
    """A sample is several passes over a few input sets.  In a single pass there may be `more` sets, each used once."""

    def __init__(self, calls: Sequence[Call]) -> None:
        self._bound = list(calls)
        self.more: list[Call] = []
        self._is_restored = bool(restores_of(calls))
        self.restoring_s = 0.0  # of the last turn, outside of its samples
        self._last: list[Any] = []
        for call in self._bound:
            call()
        self.calls = self._calls_per_sample()
        self._alone = False
        self.kept: list[Any] = []  # what a pass returned in a timed sample of the last turn

    def _calls_per_sample(self) -> int:
        once = min(self._sample(self._bound, 1) for _ in range(3)) / len(self._bound)
        rounds = math.ceil(MIN_SAMPLE_S / max(once, 1e-7) / len(self._bound))
        return max(1, rounds) * len(self._bound)

    def turn(self, warm: int, timed: int, *, once: bool = False) -> list[float]:
        """With `once`, a sample is a single pass over all input sets."""
        if not self._alone:  # until now the other contenders prepared on the same cores
            self._alone = True
            self.calls = self._calls_per_sample()
        bound = [*self._bound, *self.more] if once else self._bound
        rounds = 1 if once else self.calls // len(bound)
        kept_sample = random_index(timed)
        self.kept = []
        self.restoring_s = 0.0
        _collect(0)
        _disable()
        try:
            for _ in range(warm):
                self._sample(bound, rounds)
            taken = []
            for number in range(timed):
                taken.append(self._sample(bound, rounds) / (rounds * len(bound)) * 1e6)
                if number == kept_sample:
                    self.kept = self._last
            return taken
        finally:
            self._last = []
            _enable()

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        return one_by_one(self._bound, before)

    def _sample(self, bound: Sequence[Call], rounds: int) -> float:
        """Seconds of passes over the sets.  The outputs of one pass, drawn before, stay alive."""
        kept_round = random_index(rounds)
        self._last = []
        if self._is_restored:
            return self._restored_sample(bound, rounds, kept_round)
        began = perf_counter_ns()
        for _ in range(kept_round):
            for call in bound:
                call()
        last = [call() for call in bound]
        for _ in range(rounds - kept_round - 1):
            for call in bound:
                call()
        took_ns = perf_counter_ns() - began
        self._last = last
        return took_ns / 1e9

    def _restored_sample(self, bound: Sequence[Call], rounds: int, kept_round: int) -> float:
        """The same where calls overwrite their inputs, which are restored before each pass, outside of the clock."""
        took_ns = 0
        restores = restores_of(bound)
        for number in range(rounds):
            before = perf_counter_ns()
            for restore in restores:
                restore()
            began = perf_counter_ns()
            last = [call() for call in bound]
            took_ns += perf_counter_ns() - began
            self.restoring_s += (began - before) / 1e9
            if number == kept_round:
                self._last = last
        return took_ns / 1e9


def forget(output: Any) -> None:
    """Fill outputs with NaN, or what `poison` says: what a replay does not write stays wrong."""
    for tensor in outputs_of(output):
        tensor.data.fill_(poison(tensor.dtype))


def captured(work: Callable[[], object], stream: torch.cuda.Stream) -> torch.cuda.CUDAGraph:
    """A CUDA graph of what `work` launches on `stream`; it keeps none of the tensors that it reads.

    Raises NotCaptured.
    """
    graph = torch.cuda.CUDAGraph(keep_graph=True)
    first: BaseException | None = None
    try:
        with torch.cuda.graph(graph, stream=stream):
            try:
                work()
            except BaseException as error:
                first = error  # ending the capture fails as well, and hides this error
                raise
        graph.instantiate()
    except BaseException as error:
        reason = format_exception(first or error)
        raise NotCaptured(f"cannot be captured in a CUDA graph: {reason}") from error
    return graph


class CudaClock:
    """One CUDA graph of many calls over rotating input sets, timed by events.

    Run everything on `stream`: autograd runs a backward pass on the stream of its forward pass, and the graph contains
    only the work of the captured stream.  Before each replay, outside of the events, another graph restores inputs that
    calls overwrite; then each set is called once, so that its numbers are those of the set.
    """

    def __init__(self, calls: Sequence[Call], stream: torch.cuda.Stream, in_graph: int) -> None:
        """`in_graph`: how many calls a graph has, a multiple of the number of `calls`."""
        self._stream = stream
        self._bound = list(calls)  # keeps alive what the graph reads, such as tensors that autograd saved
        for call in calls:  # compiles, tunes and loads everything before the capture
            call()
        stream.synchronize()
        restores = restores_of(calls)
        self.restoring_s = 0.0  # of the last turn, outside of its samples
        self._restoring = captured(lambda: [restore() for restore in restores], stream) if restores else None
        self.calls = len(calls) if restores else in_graph
        self._graph, self._kept = self._captured()
        fewer = max(1, int(self.calls * MAX_REPLAY_S / self._replay_s()) // len(calls)) * len(calls)
        if fewer < self.calls:  # so slow that the fixed cost of a replay is negligible for any number of calls
            del self._graph, self._kept
            self.calls = fewer
            self._graph, self._kept = self._captured()
            self._replay_s()
        self.facts = {"ran": kernels_of_graph(self._graph)}

    def turn(self, warm: int, timed: int) -> list[float]:
        # The timed replays queue behind the untimed ones, so that they contain no gap of the host.
        with torch.cuda.stream(self._stream):
            restores = [self._replay_untimed() for _ in range(warm)]
            pairs = []
            for _ in range(timed):
                restores.append(self._restore())
                pairs.append(self._replay())
        self._stream.synchronize()
        self.restoring_s = sum(_elapsed_ms(*each) for each in restores if each) / 1e3
        return [_elapsed_ms(began, ended) * 1e3 / self.calls for began, ended in pairs]

    def forget_one(self) -> tuple[int, Any]:
        """Fill the outputs of a random set with NaN: those outputs, with the number of the set."""
        number, output = self._kept[random_index(len(self._kept))]
        with torch.cuda.stream(self._stream):
            forget(output)
        return number, output

    def again(self, before: Before | None = None) -> list[tuple[int, Any]]:
        """The last call and a random other one, so that the target cannot know which call may be left out."""
        *others, last = self._kept
        checked = [others[random_index(len(others))], last] if others else [last]
        with torch.cuda.stream(self._stream):
            for number, output in checked:
                if before is not None:
                    before(number)
                forget(output)
            self._replay_untimed()
        self._stream.synchronize()
        return checked

    def replay(self, number: int) -> Any:
        """The outputs of input set `number` after one more replay; the next replay overwrites them."""
        output = dict(self._kept)[number]
        with torch.cuda.stream(self._stream):
            forget(output)
            self._replay_untimed()
        return output

    def _captured(self) -> tuple[torch.cuda.CUDAGraph, list[tuple[int, Any]]]:
        """A graph of `self.calls` calls, and the last outputs of each set, whose addresses do not change."""
        # While capturing, keep as many outputs alive as there are sets.  Otherwise a few buffers would be used in turn
        # and stay in the L2, except for a contender that has a buffer for each set.
        outputs: deque[tuple[int, Any]] = deque(maxlen=len(self._bound))

        def calls() -> None:
            for number in range(self.calls):
                which = number % len(self._bound)
                outputs.append((which, self._bound[which]()))

        return captured(calls, self._stream), list(outputs)

    def _replay_s(self) -> float:
        """Seconds of a replay after the first one; the minimum, because other contenders prepare at the same time."""
        self._replay_untimed()
        pairs = []
        for _ in range(2):
            self._restore()
            pairs.append(self._replay())
        self._stream.synchronize()
        return max(min(float(_elapsed_ms(began, ended)) for began, ended in pairs) / 1e3, 1e-6)

    def _replay_untimed(self) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        """A replay after restoring the inputs; the events around that."""
        events = self._restore()
        _replay_graph(self._graph)
        return events

    def _restore(self) -> tuple[torch.cuda.Event, torch.cuda.Event] | None:
        return self._replay(self._restoring) if self._restoring is not None else None

    def _replay(self, graph: torch.cuda.CUDAGraph | None = None) -> tuple[torch.cuda.Event, torch.cuda.Event]:
        began, ended = event(), event()
        _record(began, self._stream)
        _replay_graph(graph or self._graph)
        _record(ended, self._stream)
        return began, ended


class EagerClock:
    """Times several calls in a row, on a GPU by events; us per call.

    They run eagerly, without a CUDA graph, as in a program: if launches take longer than kernels, the launches decide.
    The timed calls queue behind untimed ones, so that they contain only their own gaps.
    """

    def __init__(self, calls: Sequence[Call], stream: Any) -> None:
        self._bound = list(calls)
        self._stream = stream
        self.calls = 1
        for call in calls:
            call()
        once_us = min(self.turn(1, 2))
        self.calls = max(1, min(MAX_EAGER_CALLS, math.ceil(EAGER_SAMPLE_S * 1e6 / once_us)))

    def turn(self, warm: int, timed: int) -> list[float]:
        gc.collect(0)
        gc.disable()
        try:
            for _ in range(warm):
                self._sample()
            return self._by_events(timed) if self._stream is not None else self._on_cpu(timed)
        finally:
            gc.enable()

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        return one_by_one(self._bound, before)

    def _by_events(self, timed: int) -> list[float]:
        marks = [event() for _ in range(timed + 1)]
        marks[0].record(self._stream)
        for mark in marks[1:]:
            self._sample()
            mark.record(self._stream)
        self._stream.synchronize()
        return [began.elapsed_time(ended) * 1e3 / self.calls for began, ended in pairwise(marks)]

    def _on_cpu(self, timed: int) -> list[float]:
        taken = []
        for _ in range(timed):
            began = perf_counter_ns()
            self._sample()
            taken.append((perf_counter_ns() - began) / 1e3 / self.calls)
        return taken

    def _sample(self) -> None:
        for number in range(self.calls):
            self._bound[number % len(self._bound)]()
