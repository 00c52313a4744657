"""The compile metric: time of the first call with empty compile caches in a warm process."""

import gc
from collections.abc import Iterable, Sequence

# Imported before any code of a target runs, which might replace it.
from time import perf_counter_ns
from typing import Any

import torch

from ..cases import Case
from ..checks.inputs import Inputs
from ..providers import Unsupported
from .bench import Bench
from .caches import TritonCaches, empty_caches
from .clocks import Before, Call, one_by_one
from .compilations import Compilations


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
        self._compilations = Compilations(bench, case, sets[0], self._triton)
        self.facts = self._compilations.facts()
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
            self._compiled_kernels = self._compilations.kernels()
            return taken_us

    def _synchronize(self) -> None:
        if self._bench.stream is not None:
            torch.cuda.synchronize()
