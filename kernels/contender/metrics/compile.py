"""The compile metric: time of the first call with empty compile caches in a warm process."""

import gc
import sys
from collections.abc import Callable, Iterable, MutableMapping, Sequence
from dataclasses import replace

# Imported before any code of a target runs, which might replace it.
from time import perf_counter_ns
from typing import Any

import torch

from ...cases import Case, Metric
from ...checks.inputs import Inputs, make
from ...errors import format_exception
from ...providers import Unsupported
from ...providers.base import Bind
from ..bench import Bench
from ..clocks import Before, Call, one_by_one
from .caches import TritonCaches, empty_caches, forget_compiled, quack_caches


class CompileClock:
    """Each sample prepares the provider and calls it once with empty compile caches; us until the result is computed.

    Meanwhile the caches of the process and those on disk are replaced by empty ones.  Imports, and what a compiler does
    once per process, happened before.  Facts: graphs, graph breaks and guards of the first call, and recompilations for
    two other numbers of rows.
    """

    calls = 1

    def __init__(self, bench: Bench, case: Case, sets: Sequence[Inputs], calls: Sequence[Call]) -> None:
        provider = bench.provider
        if getattr(provider, "tunes", False) and not provider.compiled:
            raise Unsupported(f"{provider.name} times its candidates at the first call, which can take minutes")
        self._bench = bench
        self._case = case
        self._inputs = sets[0]
        self._bound = list(calls)
        self._triton = TritonCaches.of(self._bound[0])
        self.facts = self._compilation_facts()
        self._compiled_kernels = 0  # by Triton and Quack in the last sample
        # Compilations until now may have been read from a cache, with half of the compiler not imported: the first
        # sample took 1.2 to 1.4 times as long as later ones (RMSNorm backward, torch 2.13 on a CPU, November).
        self._sample()
        if not (self.facts["graphs"] or self._compiled_kernels):
            raise Unsupported(f"{provider.name} compiles nothing here with torch.compile, Triton or Quack")

    def turn(self, warm: int, timed: int) -> list[float]:
        for _ in range(warm):
            self._sample()
        return [self._sample() for _ in range(timed)]

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        return one_by_one(self._bound, before)

    def _sample(self) -> float:
        with empty_caches(self._triton):
            gc.collect()
            gc.disable()
            try:
                self._synchronize()
                began = perf_counter_ns()
                self._bench.provider_at(self._case)(self._inputs)()
                self._synchronize()
                taken_us = (perf_counter_ns() - began) / 1e3
            finally:
                gc.enable()
            self._compiled_kernels = self._count_kernels()
            return taken_us

    def _synchronize(self) -> None:
        if self._bench.stream is not None:
            torch.cuda.synchronize()

    def _compilation_facts(self) -> dict[str, Any]:
        forget_compiled()  # a target may call torch.compile itself, and has run before
        bind = self._bench.provider_at(self._case)
        facts = {"graphs": 0, "graph_breaks": 0, "guards": 0} | compilations(bind(self._inputs))
        other_rows = sorted({self._case.rows // 2, self._case.rows - 1} - {0})
        before = self._count_kernels()
        try:
            graphs = sum(self._recompiled_graphs(bind, rows) for rows in other_rows)
        except Exception as error:  # a target need not support other numbers of rows
            return {**facts, "recompiles": None, "trouble": format_exception(error)}
        return {**facts, "recompiles": graphs + self._count_kernels() - before, "recompiled_at_rows": other_rows}

    def _count_kernels(self) -> int:
        """Kernels that Triton and Quack have compiled."""
        return len(self._triton) + sum(map(len, quack_caches()))

    def _recompiled_graphs(self, bind: Bind, rows: int) -> int:
        """Graphs that a function compiled for the case makes for another number of rows."""
        other = replace(self._case, rows=rows, metric=Metric.KERNEL)
        if not self._bench.provider.compiled:  # a target may have prepared for the rows of the case
            bind = self._bench.provider_at(other)
        call = bind(make(other, self._bench.device, seed=0))
        return int(compilations(call)["graphs"])


def compilations(call: Callable[[], Any]) -> dict[str, int]:
    """Counters of torch.compile during a call."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        call()
        return {"graphs": 0}
    before = _counters(utils)
    utils.clear_compilation_metrics()
    call()
    after = _counters(utils)
    guards = [metric.guard_count or 0 for metric in utils.get_compilation_metrics()]
    return {**{name: after[name] - before[name] for name in after}, "guards": sum(guards)}


def _counters(utils: Any) -> dict[str, int]:
    counters: MutableMapping[str, Any] = utils.counters
    return {"graphs": counters["stats"]["unique_graphs"], "graph_breaks": sum(counters["graph_break"].values())}
