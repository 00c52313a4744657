"""Regional Inductor: only the norm, tagged in the graph, is compiled; the rest stays eager."""

import importlib
from collections.abc import Callable
from importlib.util import find_spec
from typing import Any

import torch

from ..cases import OPS, Case, Direction
from .base import Bind, Provider, WithNorm, by_name, by_position, compiled, warm_compiler
from .operators import backward_of, forward_of, in_fp32, rounds_twice, too_coarse

TAG = "compile_with_inductor"


class Regional(Provider):
    """`torch.nn.functional` norms tagged for Inductor, and their backward operators.

    On a GPU the tagged operator is `_fused_rms_norm` if the dtypes are equal; otherwise torch decomposes it before the
    tagging.  The facts list tagged and untagged operators; sums of gradients are never tagged.
    """

    name = "inductor-regional"
    compiled = True

    def __init__(self) -> None:
        self._tagged: list[str] = []
        self._untagged: list[str] = []

    def warm(self) -> None:
        warm_compiler()

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        if find_spec("torch.fx.passes.regional_inductor") is None:
            return f"torch {torch.__version__} has no regional Inductor"
        return None

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        if case.direction is Direction.FWD:
            return by_name(self._compiled(_region(case, device, forward_of(OPS[case.op]))))
        backward = backward_of(OPS[case.op])
        # the backward operators return gradients of weights in the dtype of x
        mixed = case.weight_dtype != case.dtype
        return by_name(self._compiled(_region(case, device, in_fp32(backward) if mixed else backward)))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        self.refuse(case, device)
        return by_position(case, self._compiled(_region(case, device, forward_of(OPS[case.op]))))

    def block(self, case: Case, device: torch.device, with_norm: WithNorm) -> Callable[..., Any]:
        """A transformer block in one graph, of which only the norms are compiled."""
        self.refuse(case, device)
        return self._compiled(with_norm(by_position(case, _region(case, device, forward_of(OPS[case.op])))))

    def facts(self) -> dict[str, Any]:
        return {"tagged": [*dict.fromkeys(self._tagged)], "untagged": [*dict.fromkeys(self._untagged)]}

    def _compiled(self, function: Callable[..., Any]) -> Callable[..., Any]:
        self._tagged = []
        self._untagged = []
        return compiled(function, backend=self._backend(), fullgraph=True)

    def _backend(self) -> Any:
        from torch._dynamo.backends.common import aot_autograd
        from torch.fx.passes.regional_inductor import regional_inductor

        def compile_regions(module: Any, *example_inputs: Any) -> Any:
            for node in module.graph.nodes:
                if node.op == "call_function" and not str(node.target).startswith("<built-in"):
                    names = self._tagged if TAG in (node.meta.get("custom") or {}) else self._untagged
                    names.append(str(node.target))
            return regional_inductor(module, *example_inputs)

        return aot_autograd(fw_compiler=compile_regions, bw_compiler=compile_regions)


def _region(case: Case, device: torch.device, norm: Callable[..., Any]) -> Callable[..., Any]:
    """The function, with all its operators tagged for Inductor."""
    function = in_fp32(norm) if rounds_twice(case, OPS[case.op]) or too_coarse(case, device) else norm
    annotate: Any = importlib.import_module("torch.fx.traceback").annotate

    def region(**arguments: Any) -> Any:
        with annotate({TAG: {"inductor_configs": {}}}):
            return function(**arguments)

    return region
