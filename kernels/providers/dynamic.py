"""torch.compile with a dynamic number of rows: explicitly, or automatically after a second shape."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

import torch

from ..cases import OPS, Case, Direction, Metric
from ..checks.inputs import make
from .base import Bind, compiled, forward_backward
from .inductor import Inductor

WITHOUT_ROWS = ("weight", "bias", "matrix")


class Graphs:
    """Inductor as a backend of torch.compile that counts its graphs, and those with dynamic shapes."""

    def __init__(self) -> None:
        self.graphs = self.dynamic = 0

    def __call__(self, module: Any, example_inputs: list[Any]) -> Callable[..., Any]:
        from torch._inductor.compile_fx import compile_fx

        self.graphs += 1
        self.dynamic += any(isinstance(example, torch.SymInt) for example in example_inputs)
        run: Any = compile_fx(module, example_inputs)
        return cast(Callable[..., Any], run)


class Dynamic(Inductor):
    """The rows are marked as dynamic before the first call: one graph for any number of rows."""

    name = "inductor-dynamic"

    def __init__(self) -> None:
        self._graphs = Graphs()

    def supports(self, case: Case, device: torch.device) -> str | None:
        if case.rows == 1:
            return "torch.compile always compiles a single row with a static shape"
        if case.metric is Metric.BLOCK:
            return "a block is compiled for a static number of tokens"
        return super().supports(case, device)

    def compile(self, case: Case, function: Callable[..., Any]) -> Callable[..., Any]:
        for_any_rows = self._compiled(function)
        unmarked = [True]

        def call(*arguments: Any) -> Any:
            if unmarked:  # later arguments use the same graph without a mark
                unmarked.clear()
                _mark_rows(case, arguments)
            return for_any_rows(*arguments)

        return call

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self._graphs = Graphs()
        return compiled(function, dynamic=None, backend=self._graphs)

    def facts(self) -> dict[str, Any]:
        return {"graphs": self._graphs.graphs, "dynamic_graphs": self._graphs.dynamic}


class AutomaticDynamic(Dynamic):
    """Like a program with two shapes: the second one is compiled for any number of rows automatically."""

    name = "inductor-automatic-dynamic"

    def ready(self, case: Case, device: torch.device) -> Bind:
        bind = super().ready(case, device)
        bind(make(_earlier(case), device, seed=0))()
        return bind

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        function = super().differentiable(case, device)
        earlier = _earlier(case)
        forward_backward(earlier, function)(make(earlier, device, seed=0))()
        return function

    def compile(self, case: Case, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        return self._compiled(function)


def _mark_rows(case: Case, arguments: tuple[Any, ...]) -> None:
    names = OPS[case.op].inputs(Direction.BWD if case.direction is Direction.BWD else Direction.FWD)
    for name, argument in zip(names, arguments, strict=False):
        if name not in WITHOUT_ROWS:
            torch._dynamo.mark_dynamic(argument, 0)


def _earlier(case: Case) -> Case:
    """The first shape: another number of rows, but not a single one, which is always static."""
    return replace(case, rows=case.rows // 2 if case.rows > 3 else case.rows + 2, metric=Metric.KERNEL)
