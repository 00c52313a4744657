"""The memory metric: the most bytes a call holds at one moment beside its inputs."""

import gc
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from ...checks.inputs import Inputs
from ...providers import Unsupported
from ...providers.base import Bind
from ..clocks import Before, Call, one_by_one


class MemoryClock:
    """Bytes of one call: its outputs, what it works on meanwhile, and what it keeps for later calls, each counted once.

    An input set is bound anew, and on a GPU on a stream of its own: buffers that belong to the binding or to the stream
    are made again and count.  What lies ready for every call of the process, whichever its stream, is not seen; but no
    call is said to hold less than its outputs.  Bytes are those asked for, before the allocator rounds them up, so that
    every sample is the same.
    """

    calls = 1

    def __init__(self, bind: Bind, sets: Sequence[Inputs], calls: Sequence[Call], on_gpu: bool) -> None:
        self._bind, self._inputs, self._each = bind, sets[0], list(calls)
        self._on_gpu = on_gpu
        self._output_bytes = _bytes(self._each[0]())
        self.facts: dict[str, Any] = {"output_bytes": self._output_bytes}

    def turn(self, warm: int, timed: int) -> list[float]:  # noqa: ARG002  the first sample is as good as any other
        return [float(self._sample()) for _ in range(timed)]

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        return one_by_one(self._each, before)

    def _sample(self) -> int:
        if not self._on_gpu:
            return self._held()
        stream: Any = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        torch.cuda.synchronize()
        with torch.cuda.stream(stream):
            return self._held()

    def _held(self) -> int:
        bound: list[Call] = []
        kept, _ = watched(lambda: bound.append(self._bind(self._inputs)), self._on_gpu)
        _, most = watched(bound[0], self._on_gpu)
        return max(kept + most, self._output_bytes)


def watched(call: Callable[[], Any], on_gpu: bool) -> tuple[int, int]:
    """Bytes that `call` leaves behind and the most that it holds, both beyond what was there; its result counts."""
    gc.collect()
    gc.disable()  # what an earlier call left must not be given back during this one
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
    """The profiler is told of each allocation and each release of a tensor, with its bytes: exact, in milliseconds."""
    with profile(activities=[ProfilerActivity.CPU], profile_memory=True) as watch:
        result = call()
    del result
    try:
        events = [event for event in watch.profiler.kineto_results.events() if event.name() == "[memory]"]
    except AttributeError as missing:
        raise Unsupported(f"this torch does not tell the memory of a call on a CPU ({missing})") from None
    held = most = 0
    for event in sorted(events, key=lambda event: event.start_ns()):  # of two at one time, as they were told
        held += event.nbytes()
        most = max(most, held)
    return held, most


def _bytes(output: Any) -> int:
    outputs = output if isinstance(output, tuple | list) else (output,)
    return sum(tensor.nbytes for tensor in outputs if isinstance(tensor, Tensor))
