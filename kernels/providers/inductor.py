"""torch.compile of the definition, in each mode."""

from collections.abc import Callable
from typing import Any

import torch

from ..cases import Case, CompileMode
from ..checks import references
from .base import Bind, Provider, WithNorm, by_order, warm_compiler
from .modes import Compilation, Mode


class Inductor(Provider):
    """Default settings, static shapes."""

    name = "inductor"
    compiled = True
    mode = Mode()

    def __init__(self) -> None:
        self.tunes = self.mode.tunes
        self._last: Compilation | None = None

    def warm(self) -> None:
        warm_compiler()

    def supports(self, case: Case, device: torch.device) -> str | None:  # noqa: ARG002
        return self.mode.supports(case) or (None if case.key in references.BY_KEY else f"no definition of {case.key}")

    def ready(self, case: Case, device: torch.device) -> Bind:
        return by_order(self.differentiable(case, device))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        return self.block(case, device, lambda norm: norm)

    def block(self, case: Case, device: torch.device, with_norm: WithNorm) -> Callable[..., Any]:
        """The whole block is compiled, as in a model."""
        self.refuse(case, device)
        self._last = self.mode.compile(references.BY_KEY[case.key], case, device, with_norm)
        return self._last.call

    def facts(self) -> dict[str, Any]:
        return self._last.facts() if self._last else {}


class MaxAutotune(Inductor):
    """Candidates of every kernel are timed on the device."""

    name = "inductor-max-autotune"
    mode = Mode(CompileMode.MAX_AUTOTUNE)


class CoordinateDescent(Inductor):
    """Coordinate descent from the default configuration of each kernel, by times on the device."""

    name = "inductor-coordinate-descent"
    mode = Mode(CompileMode.COORDINATE_DESCENT)


class Dynamic(Inductor):
    """The rows are marked as dynamic before the first call: one graph for any number of rows."""

    name = "inductor-dynamic"
    mode = Mode(CompileMode.DYNAMIC)


class AutomaticDynamic(Inductor):
    """Like a program with two shapes: the second one is compiled for any number of rows automatically."""

    name = "inductor-automatic-dynamic"
    mode = Mode(CompileMode.AUTOMATIC_DYNAMIC)
