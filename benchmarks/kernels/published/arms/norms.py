"""Arms of the studies of norms: other ways to compile them, traced graphs, and ways to sum dweight."""

import importlib
import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, cast

import torch
from torch import Tensor
from torch.fx import GraphModule

from benchmarks.kernels.published.arms import fused_norm
from benchmarks.kernels.published.arms.graphs import traced, with_compiled_norms
from kernels.cases import OPS, Case, Direction
from kernels.checks import references
from kernels.checks.inputs import DTYPES, Inputs, make
from kernels.norms.plans import BackwardPlan, Sum
from kernels.norms.tuned_plans import default_of
from kernels.providers.base import Bind, Call, Provider, by_order, warm_compiler
from kernels.providers.inductor import Inductor
from kernels.providers.modes import Mode
from kernels.providers.ours import Ours


class WithoutReset(Inductor):
    """One torch.compile of the function for a sweep over shapes, with torch's defaults and no reset in between.

    The second shape of a sweep makes torch compile for any size (automatic dynamic shapes), with the heuristics for
    that shape.  A contender forgets all graphs before each case, so each case begins with the sweep's first shapes.
    """

    name = "inductor-without-reset"

    def __init__(self, sweep: Sequence[Sequence[int]]) -> None:
        super().__init__()
        self._sweep = [(int(rows), int(cols)) for rows, cols in sweep]  # its first shapes

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        bind = by_order(torch.compile(references.BY_KEY[case.key]))
        for rows, cols in self._before(case):
            bind(make(replace(case, rows=rows, cols=cols), device, seed=0))()
        return bind

    def _before(self, case: Case) -> list[tuple[int, int]]:
        here = (case.rows, case.cols)
        return self._sweep[: self._sweep.index(here)] if here in self._sweep else self._sweep


class Patched(Inductor):
    """torch.compile with other values in Inductor's configuration."""

    name = "inductor-patched"

    def __init__(self, patches: Mapping[str, Any]) -> None:
        self.mode = Mode(options=dict(patches))
        super().__init__()


class AlwaysPersistent(Inductor):
    """torch.compile with a persistent reduction at every width: the row of a program is in its registers."""

    name = "inductor-persistent"

    def warm(self) -> None:
        super().warm()
        # On the class, not as a handler of choices: a handler is known to its thread alone, and another one compiles.
        choices: Any = importlib.import_module("torch._inductor.choices").InductorChoices
        choices.should_use_persistent_reduction = staticmethod(lambda *_, **__: True)


class MakeFx(Provider):
    """The graph of torch's operators that `make_fx` traces for a forward and backward pass; nothing is compiled."""

    name = "make-fx"

    def warm(self) -> None:
        importlib.import_module("torch.fx.experimental.proxy_tensor")

    def supports(self, case: Case, device: torch.device) -> str | None:
        if case.key != "rmsnorm.fwdbwd" or case.weight_dtype != case.dtype:
            return "it traces rmsnorm.fwdbwd with one dtype, for which torch has a fused operator"
        return None

    def joint(self, case: Case, device: torch.device) -> Bind:
        """Trace at the first call; every input set has the same graph."""
        self.refuse(case, device)
        if device.type == "cpu":
            fused_norm.enable_on_cpu()
        graphs: list[GraphModule] = []

        def bind(inputs: Inputs) -> Call:
            tensors = [inputs[name] for name in ("x", "weight", "dy")]

            def call() -> Any:
                if not graphs:
                    graphs.append(self.traced(tensors, inputs.eps))
                return graphs[0](*tensors)

            return call

        return bind

    def traced(self, tensors: Sequence[Tensor], eps: float) -> GraphModule:
        """The graph of (x, weight, dy) to (y, dx, dweight)."""

        def passes(x: Tensor, weight: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
            y = fused_norm.rms_norm(x, weight, eps)
            return (y, *torch.autograd.grad(y, (x, weight), dy))

        x, weight, dy = tensors
        # detached aliases: the inputs must not require gradients
        return traced(passes, (x.detach().requires_grad_(), weight.detach().requires_grad_(), dy))


class TaggedGraph(MakeFx):
    """The same graph with its fused norms tagged and compiled by Inductor, each alone.

    `configs` are Inductor's settings for them; without any, its defaults hold.
    """

    name = "tagged-graph"
    compiled = True
    tunes = True

    def __init__(self, configs: Mapping[str, Any] | None = None) -> None:
        self._configs = dict(configs or {})
        self._norms = 0

    def warm(self) -> None:
        super().warm()
        warm_compiler()

    def supports(self, case: Case, device: torch.device) -> str | None:
        if importlib.util.find_spec("torch.fx.passes.regional_inductor") is None:
            return f"torch {torch.__version__} has no regional Inductor"
        return super().supports(case, device)

    def traced(self, tensors: Sequence[Tensor], eps: float) -> GraphModule:
        graph, self._norms = with_compiled_norms(super().traced(tensors, eps), self._configs)
        return graph

    def facts(self) -> dict[str, Any]:
        return {"tagged": self._norms, "configs": self._configs}


class DweightBy(Ours):
    """Our backward kernel with a given way to sum the parts of dweight; `group` is that of a tree."""

    name = "triton-dweight"

    def __init__(self, sum: str, group: int = 0) -> None:
        self._sum, self._group = Sum(sum), group

    def supports(self, case: Case, device: torch.device) -> str | None:
        if case.direction is not Direction.BWD or not OPS[case.op].weight:
            return "only a backward pass with a weight sums dweight"
        return super().supports(case, device)

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        plan = replace(cast(BackwardPlan, default_of(case)), sum=self._sum, group=self._group)
        backward: Any = importlib.import_module("kernels.norms.backward").backward
        bias_dtype = DTYPES[case.weight_dtype] if OPS[case.op].bias else None

        def bind(inputs: Inputs) -> Call:
            call = partial(backward, **inputs.tensors, bias_dtype=bias_dtype, plan=plan)
            return lambda: tuple(one for one in call() if one is not None)

        return bind
