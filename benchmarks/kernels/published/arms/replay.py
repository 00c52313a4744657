"""The step of an arm as a CUDA graph, which is captured once and replayed on the same tensors.

Launched one by one, short kernels wait for the host: the samples of two copies differed by up to 15 %, and single
ones scattered by 45 % (H200, November).
"""

import functools
import gc
import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from kernels.errors import format_exception
from kernels.facts.graph_kernels import kernels_of_call
from kernels.metrics.clocks import captured, event, forget

WARM_STEPS = 3  # before the capture: they compile, tune, load kernels, choose algorithms and allocate workspaces
SAMPLE_S = 20e-3  # the events and the first launch of a sample stay negligible
MAX_REPLAYS = 64

Step = Callable[[], tuple[Tensor, ...]]


class CannotReplay(Exception):
    """The step cannot be timed in a CUDA graph, and the process can go on.  The message says why."""


@functools.cache
def side_stream() -> Any:
    """The stream on which an arm does everything, since the default stream cannot be captured.

    Autograd runs a backward pass on the stream of its forward pass.  The node of a weight's gradient stays on the
    stream on which it was made: a first step on another stream would pull that one into the capture, which fails.
    """
    stream: Any = torch.cuda.Stream()
    return stream


def replays_in_sample(step_s: float) -> int:
    """How many replays of a step of this duration are timed together."""
    return max(1, min(MAX_REPLAYS, math.ceil(SAMPLE_S / max(step_s, 1e-6))))


class StepGraph:
    """A captured step.  Its tensors are those of the capture: change inputs in place, and copy outputs to keep them.

    Call it and all of its methods on `side_stream`.

    Raises CannotReplay, and metrics.clocks.NotCaptured, after which the process is unusable (before torch 2.12 a
    failed capture leaves the allocator in it).  A capture without torch is tried first, because its failure is
    harmless.
    """

    def __init__(self, step: Step) -> None:
        self._stream = side_stream()
        for _ in range(WARM_STEPS):
            step()
        self._stream.synchronize()
        try:
            self.launches = len(kernels_of_call(step))
        except Exception as error:
            raise CannotReplay(f"cannot be captured in a CUDA graph: {format_exception(error)}") from None
        gc.collect()  # so that no older graph is freed during the capture
        found: list[tuple[Tensor, ...]] = []
        self._graph = captured(lambda: found.append(step()), self._stream)
        self._outputs = found[-1]
        self._replays: int | None = None  # in a sample

    def outputs(self) -> tuple[Tensor, ...]:
        """Those of another replay, which the next one overwrites; NaN where it writes nothing."""
        forget(self._outputs)
        self._graph.replay()
        return self._outputs

    def turn(self, warm: int, timed: int) -> list[float]:
        """Microseconds of a step.  The timed samples queue behind the untimed ones, without a gap of the host."""
        if self._replays is None:  # until now the other arms prepared on the same GPU
            self._replays = replays_in_sample(min(self._samples(1, 2, 1)) / 1e6)
        return self._samples(warm, timed, self._replays)

    def _samples(self, warm: int, timed: int, replays: int) -> list[float]:
        for _ in range(warm * replays):
            self._graph.replay()
        marks = [event() for _ in range(timed + 1)]
        marks[0].record(self._stream)
        for mark in marks[1:]:
            for _ in range(replays):
                self._graph.replay()
            mark.record(self._stream)
        self._stream.synchronize()
        return [began.elapsed_time(ended) * 1e3 / replays for began, ended in pairwise(marks)]


def unlike(names: Sequence[str], replayed: Sequence[Tensor], launched: Sequence[Tensor], limit: float) -> str | None:
    """The first output of a replay that differs from that of a launched step by more than sums in another order do.

    `limit` is of the norm of the difference relative to that of the launched output.
    """
    for name, mine, right in zip(names, replayed, launched, strict=True):
        error = relative_error(mine, right.float())
        if not error <= limit:
            return f"a replay differs from a launched step: {name} by {error:.2g}"
    return None


def relative_error(found: Tensor, exact: Tensor) -> float:
    """The norm of the difference relative to that of `exact`, in the dtype of `exact`."""
    size = torch.linalg.vector_norm(exact).clamp(min=torch.finfo(exact.dtype).tiny)
    error: float = (torch.linalg.vector_norm(found.to(exact.dtype) - exact) / size).item()
    return error
