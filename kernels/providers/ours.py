"""Our own Triton kernels."""

import importlib
from collections.abc import Callable
from typing import Any

import torch

from ..words import Case
from .base import Bind, Unsupported, plainly


class Ours:
    name = "triton"
    compiled = False
    pinned: tuple[str, ...] = ()

    def warm(self) -> None:
        if torch.cuda.is_available():
            importlib.import_module("..rmsnorm", __package__)

    def ready(self, case: Case, device: torch.device) -> Bind:
        if device.type != "cuda":
            raise Unsupported("Triton kernels need a GPU")
        if case.op != "rmsnorm":
            raise Unsupported(f"there is no Triton kernel of ours for {case.op}")
        module = importlib.import_module("..rmsnorm", __package__)
        if case.cols > module.WIDEST:
            raise Unsupported(f"our {case.op} takes at most {module.WIDEST} columns")
        return plainly(module.forward if case.key == "rmsnorm.fwd" else module.backward)

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:  # noqa: ARG002
        raise Unsupported(f"{self.name} has no {case.key}")
