"""torch.compile of the definition: what anybody gets without writing a kernel."""

from collections.abc import Callable
from typing import Any

import torch

from .. import references
from ..words import Case
from .base import Bind, Unsupported, compiled, plainly, warm_compiler


class Inductor:
    name = "inductor"
    compiled = True
    pinned: tuple[str, ...] = ()

    def warm(self) -> None:
        warm_compiler()

    def ready(self, case: Case, device: torch.device) -> Bind:  # noqa: ARG002
        if case.key not in references.BY_KEY:
            raise Unsupported(f"no definition of {case.key}")
        return plainly(compiled(references.BY_KEY[case.key]))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:  # noqa: ARG002
        raise Unsupported(f"{self.name} has no {case.key}")
