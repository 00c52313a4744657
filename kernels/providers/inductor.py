"""torch.compile of the definition."""

from collections.abc import Callable
from typing import Any

import torch

from ..cases import Case
from ..checks import references
from .base import Bind, Provider, WithNorm, by_order, compiled, warm_compiler


class Inductor(Provider):
    """Default settings, static shapes."""

    name = "inductor"
    compiled = True

    def warm(self) -> None:
        warm_compiler()

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        return None if case.key in references.BY_KEY else f"no definition of {case.key}"

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        return by_order(self.compile(case, references.BY_KEY[case.key]))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        self.refuse(case, device)
        return self.compile(case, references.BY_KEY[case.key])

    def block(self, case: Case, device: torch.device, with_norm: WithNorm) -> Callable[..., Any]:
        """The whole block is compiled, as in a model."""
        self.refuse(case, device)
        return self.compile(case, with_norm(references.BY_KEY[case.key]))

    def compile(self, case: Case, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        return compiled(function)


class MaxAutotune(Inductor):
    """Mode max-autotune-no-cudagraphs: candidates of every kernel are timed on the device."""

    name = "inductor-max-autotune"
    tunes = True

    def compile(self, case: Case, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        return compiled(function, mode="max-autotune-no-cudagraphs")


class CoordinateDescent(Inductor):
    """Coordinate descent from the default configuration of each kernel, by times on the device."""

    name = "inductor-coordinate-descent"
    tunes = True

    def compile(self, case: Case, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        return compiled(function, options={"coordinate_descent_tuning": True})
