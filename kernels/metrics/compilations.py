"""What torch.compile, Triton and Quack compile for a provider: at its first call, and for other numbers of rows."""

import sys
from collections.abc import Callable, MutableMapping
from typing import Any

from ..cases import Case
from ..checks.inputs import Inputs, make
from ..errors import format_exception
from ..providers.base import Bind
from .bench import Bench
from .caches import TritonCaches, forget_compiled, quack_caches

MAX_REASONS = 8  # of graph breaks that are kept
MAX_REASON = 160  # characters of each


class Compilations:
    """Counts what a provider compiles at a case.  `triton`: the caches of the Triton functions that it calls."""

    def __init__(self, bench: Bench, case: Case, inputs: Inputs, triton: TritonCaches) -> None:
        self._bench = bench
        self._case = case
        self._inputs = inputs
        self._triton = triton

    def facts(self) -> dict[str, Any]:
        """Graphs, graph breaks with their reasons, and guards of the first call; then recompilations.

        `recompiles` is None, with the `trouble`, where the provider does not take other numbers of rows.
        """
        bind, facts = self._first_call()
        tokens = sorted({self._case.tokens // 2, self._case.tokens - 1} - {0})
        others = [self._case.of_tokens(number) for number in tokens]
        before = self.kernels()
        try:
            graphs = sum(self._recompiled_graphs(bind, other) for other in others)
        except Exception as error:  # a target need not support other numbers of rows
            return {**facts, "recompiles": None, "trouble": format_exception(error)}
        at_rows = [other.rows for other in others]
        return {**facts, "recompiles": graphs + self.kernels() - before, "recompiled_at_rows": at_rows}

    def of_first_call(self) -> dict[str, Any]:
        """Graphs, graph breaks with their reasons, and guards of the first call."""
        return self._first_call()[1]

    def kernels(self) -> int:
        """Kernels that Triton and Quack have compiled."""
        return len(self._triton) + sum(map(len, quack_caches()))

    def _first_call(self) -> tuple[Bind, dict[str, Any]]:
        forget_compiled()  # a target may call torch.compile itself, and has run before
        bind = self._bench.provider_at(self._case)
        return bind, {"graphs": 0, "graph_breaks": 0, "guards": 0} | compilations(bind(self._inputs))

    def _recompiled_graphs(self, bind: Bind, other: Case) -> int:
        """Graphs that a function compiled for the case makes for another number of rows."""
        if not self._bench.provider.compiled:  # a target may have prepared for the rows of the case
            bind = self._bench.provider_at(other)
        call = bind(make(other, self._bench.device, seed=0))
        return int(compilations(call)["graphs"])


def compilations(call: Callable[[], Any]) -> dict[str, Any]:
    """Counters of torch.compile during a call, and the reasons of its graph breaks."""
    utils: Any = sys.modules.get("torch._dynamo.utils")
    if utils is None:
        call()
        return {"graphs": 0}
    graphs, breaks = _graphs(utils), dict(utils.counters["graph_break"])
    utils.clear_compilation_metrics()
    call()
    new = {reason: count - breaks.get(reason, 0) for reason, count in utils.counters["graph_break"].items()}
    reasons = [_first_line(reason) for reason, count in new.items() if count]
    return {
        "graphs": _graphs(utils) - graphs,
        "graph_breaks": sum(new.values()),
        "guards": sum(metric.guard_count or 0 for metric in utils.get_compilation_metrics()),
        **({"break_reasons": reasons[:MAX_REASONS]} if reasons else {}),
    }


def _graphs(utils: Any) -> int:
    counters: MutableMapping[str, Any] = utils.counters
    return int(counters["stats"]["unique_graphs"])


def _first_line(reason: object) -> str:
    return str(reason).strip().partition("\n")[0][:MAX_REASON]
