"""The metrics that count: recompilations, graph breaks, and kernels of a call.  Exact, so one sample is enough."""

import sys
from collections.abc import Iterable, Sequence
from typing import Any

import torch

from ..cases import Case
from ..checks.inputs import Inputs
from ..errors import format_exception
from ..facts import gather
from ..facts.graph_kernels import kernels_of_call
from ..facts.trace import Seen, generated_code
from ..providers import Unsupported
from .bench import Bench
from .caches import TritonCaches, empty_caches, forget_compiled
from .clocks import Before, Call, one_by_one
from .compilations import Compilations


class CountClock:
    """A count that is made once, when the case is prepared; every sample is that count."""

    calls = 1

    def __init__(self, calls: Sequence[Call], count: int, facts: dict[str, Any]) -> None:
        self._bound = list(calls)
        self._count = count
        self.facts = facts

    def turn(self, warm: int, timed: int) -> list[float]:  # noqa: ARG002  samples do not vary
        return [float(self._count)] * timed

    def again(self, before: Before | None = None) -> Iterable[tuple[int, Any]]:
        return one_by_one(self._bound, before)


class RecompilesClock(CountClock):
    """Compilations for half the rows and for one row less, after the first call: graphs, and Triton's kernels.

    Raises Unsupported where nothing is compiled, or where the provider does not take other numbers of rows.
    """

    def __init__(self, bench: Bench, case: Case, sets: Sequence[Inputs], calls: Sequence[Call]) -> None:
        if getattr(bench.provider, "tunes", False) and not bench.provider.compiled:
            raise Unsupported(f"{bench.provider.name} times its candidates at the first call, which can take minutes")
        triton = TritonCaches.of(calls[0])
        with empty_caches(triton):  # a kernel for other rows may have been compiled by the checks
            compiled = Compilations(bench, case, sets[0], triton)
            facts = compiled.facts()
            if not (facts["graphs"] or facts["graph_breaks"] or compiled.kernels()):
                raise Unsupported(f"{bench.provider.name} compiles nothing here with torch.compile, Triton or Quack")
        if facts["recompiles"] is None:
            raise Unsupported(f"{bench.provider.name} does not take other numbers of rows: {facts['trouble']}")
        super().__init__(calls, facts["recompiles"], facts)


class BreaksClock(CountClock):
    """Graph breaks of the first call.  Raises Unsupported where torch.compile does not take part."""

    def __init__(self, bench: Bench, case: Case, sets: Sequence[Inputs], calls: Sequence[Call]) -> None:
        facts = Compilations(bench, case, sets[0], TritonCaches()).of_first_call()
        if not (facts["graphs"] or facts["graph_breaks"]):  # a frame that breaks in a loop is left without a graph
            raise Unsupported(f"{bench.provider.name} does not use torch.compile here")
        super().__init__(calls, facts["graph_breaks"], facts)


class KernelsClock(CountClock):
    """Kernels of one call.

    On a GPU: the kernels, copies and fills that the call launches, from a captured and discarded CUDA graph.  On a CPU:
    the kernels that torch.compile generated and their library calls, or the operators that compute.

    Raises Unsupported where a call cannot be captured, e.g. because it waits for the device.
    """

    def __init__(self, bench: Bench, case: Case, sets: Sequence[Inputs], calls: Sequence[Call]) -> None:
        launched = None if bench.stream is None else _on_gpu(bench.provider.name, calls[0])
        count = _on_cpu(bench, case, sets[0]) if launched is None else len(launched)
        named = {"launched": launched[: gather.MAX_NAMES]} if launched else {}
        super().__init__(calls, count, {"kernels": count, **named})


def _on_gpu(provider: str, call: Call) -> list[str]:
    """Names of everything that a call launches, sorted."""
    call()  # whatever the first call does only once
    torch.cuda.synchronize()
    try:
        return sorted(kernels_of_call(call))
    except Exception as error:
        raise Unsupported(
            f"the kernels of {provider} cannot be counted, because its call cannot be captured in a CUDA graph: "
            f"{format_exception(error)}"
        ) from None


def _on_cpu(bench: Bench, case: Case, inputs: Inputs) -> int:
    """The kernels of the generated code, where the call compiles any; else the operators that compute.

    Compiles anew, because only the compilation shows the generated code.  Operators between compiled regions are not
    seen: an observer of operators makes torch.compile run its regions eagerly.
    """
    forget_compiled()
    call = bench.provider_at(case)(inputs)
    seen = Seen()
    if "torch._inductor.graph" in sys.modules:  # it compiled before if it compiles at all; an import takes two seconds
        with generated_code(seen):
            call()
    if not seen.generated:
        gather.gather(call, compiled=False, pinned=(), cuda=False, seen=seen)
    return gather.kernel_count(seen, compiled=bool(seen.generated))
