"""The compile metric: how long the first call takes when nothing was compiled before, in a process that is warm."""

import gc
import sys
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import replace

# Taken before any code of a target is loaded, which might replace it.
from time import perf_counter_ns
from typing import TYPE_CHECKING, Any

import torch

from ...cases import Case, Metric
from ...checks.inputs import Inputs, make
from ...providers import Unsupported
from ...providers.base import Bind
from ..clocks import Before, Call, one_by_one
from ..server import said
from .caches import TritonCaches, empty_caches, forget_compiled, quack_caches

if TYPE_CHECKING:
    from ..prepared import Bench


class CompileClock:
    """Each sample gets the provider ready and calls it once, with every compile cache empty; us until it has computed.

    The caches of the process and those on disk are other, empty ones meanwhile.  Imports are over, and so is what a
    compiler does once in a process.  Facts: how many graphs, graph breaks and guards the first call made, and how often
    it was compiled again for two other numbers of rows.
    """

    calls = 1

    def __init__(self, bench: "Bench", case: Case, sets: Sequence[Inputs], calls: Sequence[Call]) -> None:
        provider = bench.provider
        if getattr(provider, "tunes", False) and not provider.compiled:
            raise Unsupported(f"{provider.name} tries out what is fastest at its first call, which can take minutes")
        self._bench, self._case = bench, case
        self._inputs, self._each = sets[0], list(calls)
        self._triton = TritonCaches.of(self._each[0])
        self.facts = self._compiled_how()
        self._made = 0  # kernels that Triton and Quack compiled in the last sample
        # What was compiled until now may have come from a cache, with half of the compiler not even imported: the
        # first sample was 1.2 to 1.4 times the later ones (RMSNorm backward, torch 2.13 on a CPU, November).
        self._sample()
        if not (self.facts["graphs"] or self._made):
            raise Unsupported(f"{provider.name} compiles nothing here that is known: torch.compile, Triton or Quack")

    def turn(self, warm: int, timed: int) -> list[float]:
        for _ in range(warm):
            self._sample()
        return [self._sample() for _ in range(timed)]

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        return one_by_one(self._each, before)

    def _sample(self) -> float:
        with empty_caches(self._triton):
            gc.collect()
            gc.disable()
            try:
                self._finish()
                began = perf_counter_ns()
                self._bench.provider_at(self._case)(self._inputs)()
                self._finish()
                taken_us = (perf_counter_ns() - began) / 1e3
            finally:
                gc.enable()
            self._made = self._kernels()
            return taken_us

    def _finish(self) -> None:
        if self._bench.stream is not None:
            torch.cuda.synchronize()

    def _compiled_how(self) -> dict[str, Any]:
        forget_compiled()  # a target may call torch.compile itself, and has been called
        bind = self._bench.provider_at(self._case)
        facts = {"graphs": 0, "graph_breaks": 0, "guards": 0} | compilations(bind(self._inputs))
        other_rows = sorted({self._case.rows // 2, self._case.rows - 1} - {0})
        before = self._kernels()
        try:
            graphs = sum(self._compiled_again(bind, rows) for rows in other_rows)
        except Exception as trouble:  # it need not do other numbers of rows
            return {**facts, "recompiles": None, "trouble": said(trouble)}
        return {**facts, "recompiles": graphs + self._kernels() - before, "recompiled_at_rows": other_rows}

    def _kernels(self) -> int:
        """Those that Triton and Quack have compiled."""
        return len(self._triton) + sum(map(len, quack_caches()))

    def _compiled_again(self, bind: Bind, rows: int) -> int:
        """Graphs made for another number of rows by what was compiled for the case's own."""
        other = replace(self._case, rows=rows, metric=Metric.KERNEL)
        if not self._bench.provider.compiled:  # a target's may be prepared for the rows of the case
            bind = self._bench.provider_at(other)
        call = bind(make(other, self._bench.device, seed=0))
        return int(compilations(call)["graphs"])


def compilations(call: Callable[[], Any]) -> dict[str, int]:
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
