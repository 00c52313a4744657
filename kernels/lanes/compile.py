"""The compile lane: how long the first call takes when nothing was compiled before, in a process that is warm."""

import gc
import sys
from collections.abc import Callable, MutableMapping, Sequence
from dataclasses import replace

# Taken before any code of a target is loaded, which might replace it.
from time import perf_counter_ns
from typing import Any

import torch

from ..clocks import KEPT, Call
from ..inputs import Inputs, make
from ..providers import Provider, Unsupported, forward_backward
from ..providers.base import Bind
from ..words import Case, Direction, Lane
from .caches import TritonCaches, empty_caches, quack_caches


class CompileClock:
    """Each sample gets the provider ready and calls it once, with every compile cache empty; us until it has computed.

    The caches of the process and those on disk are other, empty ones meanwhile.  Imports are over, and so is what a
    compiler does once in a process.  Facts: how many graphs, graph breaks and guards the first call made, and how often
    it was compiled again for two other numbers of rows.
    """

    calls = 1

    def __init__(
        self, provider: Provider, case: Case, device: torch.device, sets: Sequence[Inputs], calls: Sequence[Call]
    ) -> None:
        if getattr(provider, "tunes", False) and not provider.compiled:
            raise Unsupported(f"{provider.name} tries out what is fastest at its first call, which can take minutes")
        self._provider, self._case, self._device = provider, case, device
        self._inputs, self._each = sets[0], list(calls)
        self._triton = TritonCaches.of(self._each[0])
        self.facts = self._compiled_how()
        if not (self.facts["graphs"] or self._kernels()):
            raise Unsupported(f"{provider.name} compiles nothing here that is known: torch.compile, Triton or Quack")

    def turn(self, warm: int, timed: int) -> list[float]:
        for _ in range(warm):
            self._sample()
        return [self._sample() for _ in range(timed)]

    def again(self) -> list[tuple[int, Any]]:
        numbers = range(len(self._each))[-KEPT:]
        return [(number, self._each[number]()) for number in numbers]

    def _sample(self) -> float:
        with empty_caches(self._triton):
            gc.collect()
            gc.disable()
            try:
                self._finish()
                began = perf_counter_ns()
                ready(self._provider, self._case, self._device)(self._inputs)()
                self._finish()
                return (perf_counter_ns() - began) / 1e3
            finally:
                gc.enable()

    def _finish(self) -> None:
        if self._device.type == "cuda":
            torch.cuda.synchronize()

    def _compiled_how(self) -> dict[str, Any]:
        bind = ready(self._provider, self._case, self._device)
        facts = {"graphs": 0, "graph_breaks": 0, "guards": 0} | _compilations(bind(self._inputs))
        other_rows = sorted({self._case.rows // 2, self._case.rows - 1} - {0})
        kernels = self._kernels()
        again = [self._compiled_again(bind, rows) for rows in other_rows]
        new_kernels = self._kernels() - kernels
        return {**facts, "recompiles": sum(again) + new_kernels, "recompiled_at_rows": other_rows}

    def _kernels(self) -> int:
        """Those that Triton and Quack have compiled."""
        return len(self._triton) + sum(map(len, quack_caches()))

    def _compiled_again(self, bind: Bind, rows: int) -> int:
        """Graphs made for another number of rows by what was compiled for the case's own."""
        other = replace(self._case, rows=rows, lane=Lane.KERNEL)
        if not self._provider.compiled:  # a target may prepare for the rows of the case, and must be told of others
            bind = ready(self._provider, other, self._device)
        call = bind(make(other, self._device, seed=0))
        return int(_compilations(call)["graphs"])


def ready(provider: Provider, case: Case, device: torch.device) -> Bind:
    """How a provider binds inputs at a case.  Raises Unsupported, or whatever the provider raises."""
    if case.direction is Direction.FWDBWD:
        return forward_backward(case, provider.differentiable(case, device))
    return provider.ready(case, device)


def _compilations(call: Callable[[], Any]) -> dict[str, int]:
    """What torch.compile did during a call."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        call()
        return {"graphs": 0}
    before = _counted(utils)
    utils.clear_compilation_metrics()
    call()
    after = _counted(utils)
    guards = [metric.guard_count or 0 for metric in utils.get_compilation_metrics()]
    return {**{name: after[name] - before[name] for name in after}, "guards": sum(guards)}


def _counted(utils: Any) -> dict[str, int]:
    counters: MutableMapping[str, Any] = utils.counters
    return {"graphs": counters["stats"]["unique_graphs"], "graph_breaks": sum(counters["graph_break"].values())}
