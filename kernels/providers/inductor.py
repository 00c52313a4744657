"""torch.compile of the definition: what anybody gets without writing a kernel."""

from collections.abc import Callable
from typing import Any

import torch

from ..cases import Case
from ..checks import references
from .base import Bind, Provider, WithNorm, compiled, plainly, warm_compiler


class Inductor(Provider):
    """With torch.compile's own settings, for exactly the shapes of the case."""

    name = "inductor"
    compiled = True

    def warm(self) -> None:
        warm_compiler()

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        return None if case.key in references.BY_KEY else f"no definition of {case.key}"

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        return plainly(self.compile(case, references.BY_KEY[case.key]))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        self.refuse(case, device)
        return self.compile(case, references.BY_KEY[case.key])

    def block(self, case: Case, device: torch.device, with_norm: WithNorm) -> Callable[..., Any]:
        """Compiled as a whole, as a model is."""
        self.refuse(case, device)
        return self.compile(case, with_norm(references.BY_KEY[case.key]))

    def compile(self, case: Case, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        return compiled(function)


class MaxAutotune(Inductor):
    """Candidates of every kernel are timed on the device.  Without CUDA graphs of its own."""

    name = "inductor-max-autotune"
    tunes = True

    def compile(self, case: Case, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        return compiled(function, mode="max-autotune-no-cudagraphs")


class CoordinateDescent(Inductor):
    """From the default configuration of each kernel, one setting after the other, as long as it gets faster."""

    name = "inductor-coordinate-descent"
    tunes = True

    def compile(self, case: Case, function: Callable[..., Any]) -> Callable[..., Any]:  # noqa: ARG002
        return compiled(function, options={"coordinate_descent_tuning": True})
