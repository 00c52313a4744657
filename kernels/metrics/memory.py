"""The memory metric: peak bytes that a call holds in addition to its inputs."""

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ..providers import Unsupported
from .clocks import Before, Call, one_by_one


class MemoryClock:
    """Bytes of one call: its outputs, its temporaries, and what it keeps for later calls, each counted once.

    Every sample binds an input set again, on a GPU on a new stream: buffers that belong to the binding or to the stream
    are allocated again and count.  Buffers that all calls of the process share are not seen; but the result is at least
    the size of the outputs.  Bytes are counted as requested, before the allocator rounds them up, so that every sample
    is the same.
    """

    calls = 1

    def __init__(self, bind: Callable[[Any], Call], sets: Sequence[Any], calls: Sequence[Call], on_gpu: bool) -> None:
        self._bind = bind
        self._inputs = sets[0]
        self._bound = list(calls)
        self._on_gpu = on_gpu
        self._output_bytes = _bytes(self._bound[0]())
        self.facts: dict[str, Any] = {"output_bytes": self._output_bytes}

    def turn(self, warm: int, timed: int) -> list[float]:  # noqa: ARG002  samples do not vary
        return [float(self._sample()) for _ in range(timed)]

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        return one_by_one(self._bound, before)

    def _sample(self) -> int:
        if not self._on_gpu:
            return self._peak()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            return self._peak()

    def _peak(self) -> int:
        bound: list[Call] = []
        kept, _ = memory_of(lambda: bound.append(self._bind(self._inputs)), self._on_gpu)
        _, peak = memory_of(bound[0], self._on_gpu)
        return max(kept + peak, self._output_bytes)


def memory_of(call: Callable[[], Any], on_gpu: bool) -> tuple[int, int]:
    """Bytes that `call` leaves allocated and its peak, both in addition to what was allocated; its result counts."""
    gc.collect()
    gc.disable()  # garbage of earlier calls must not be freed during this one
    try:
        return _on_gpu(call) if on_gpu else _on_cpu(call)
    finally:
        gc.enable()


def _on_gpu(call: Callable[[], Any]) -> tuple[int, int]:
    torch.cuda.synchronize()
    torch.cuda.reset_peak_memory_stats()
    before = torch.cuda.memory_stats()["requested_bytes.all.current"]
    result = call()
    torch.cuda.synchronize()
    after = torch.cuda.memory_stats()
    del result
    return after["requested_bytes.all.current"] - before, after["requested_bytes.all.peak"] - before


def _on_cpu(call: Callable[[], Any]) -> tuple[int, int]:
    """From the profiler, which records each allocation and each release of a tensor with its bytes."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as profiler:
        result = call()
    del result
    try:
        events = [event for event in profiler.profiler.kineto_results.events() if event.name() == "[memory]"]
    except AttributeError as missing:
        raise Unsupported(
            f"the profiler of torch {torch.__version__} does not record memory on a CPU ({missing})"
        ) from None
    held = peak = 0
    for event in sorted(events, key=lambda event: event.start_ns()):  # stable: simultaneous events keep their order
        held += event.nbytes()
        peak = max(peak, held)
    return held, peak


def _bytes(output: Any) -> int:
    outputs = output if isinstance(output, tuple | list) else (output,)
    return sum(tensor.nbytes for tensor in outputs if isinstance(tensor, Tensor))
