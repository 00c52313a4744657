"""Regional Inductor: only the norm, tagged in the graph, is compiled; the rest stays eager."""

from collections.abc import Callable
from typing import Any

import torch

from ..cases import OPS, Case, CompileMode, Direction
from .base import Bind, Provider, WithNorm, by_name, by_position, warm_compiler
from .modes import Compilation, Mode
from .operators import backward_of, forward_of, in_fp32, rounds_twice, too_coarse


class Regional(Provider):
    """`torch.nn.functional` norms tagged for Inductor, and their backward operators.

    On a GPU the tagged operator is `_fused_rms_norm` if the dtypes are equal; otherwise torch decomposes it before the
    tagging.  The facts list tagged and untagged operators; sums of gradients are never tagged.
    """

    name = "inductor-regional"
    compiled = True
    mode = Mode(CompileMode.REGIONAL)

    def __init__(self) -> None:
        self._last: Compilation | None = None

    def warm(self) -> None:
        warm_compiler()

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        return self.mode.supports(case)

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        if case.direction is Direction.FWD:
            return by_name(self._compiled(case, device, _forward(case, device)))
        backward = backward_of(OPS[case.op])
        # the backward operators return gradients of weights in the dtype of x
        mixed = case.weight_dtype != case.dtype
        return by_name(self._compiled(case, device, _exact(case, device, in_fp32(backward) if mixed else backward)))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        return self.block(case, device, lambda norm: norm)

    def block(self, case: Case, device: torch.device, with_norm: WithNorm) -> Callable[..., Any]:
        """A transformer block in one graph, of which only the norms are compiled."""
        self.refuse(case, device)
        return self._compiled(case, device, by_position(case, _forward(case, device)), with_norm)

    def facts(self) -> dict[str, Any]:
        return self._last.facts() if self._last else {}

    def _compiled(
        self,
        case: Case,
        device: torch.device,
        function: Callable[..., Any],
        with_norm: WithNorm = lambda norm: norm,
    ) -> Callable[..., Any]:
        self._last = self.mode.compile(function, case, device, with_norm)
        return self._last.call


def _forward(case: Case, device: torch.device) -> Callable[..., Any]:
    return _exact(case, device, forward_of(OPS[case.op]))


def _exact(case: Case, device: torch.device, norm: Callable[..., Any]) -> Callable[..., Any]:
    return in_fp32(norm) if rounds_twice(case, OPS[case.op]) or too_coarse(case, device) else norm
