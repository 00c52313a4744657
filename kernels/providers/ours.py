"""Our own Triton kernels."""

import importlib
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..words import OPS, Case
from .base import Bind, Provider, by_name
from .pair import Pair, differentiable

DTYPES = ("bf16", "fp16", "fp32")


class Ours(Provider):
    name = "triton"

    def warm(self) -> None:
        if torch.cuda.is_available():
            _kernels()

    def supports(self, case: Case, device: torch.device) -> str | None:
        if device.type != "cuda":
            return "Triton kernels need a GPU"
        if case.op != "rmsnorm":
            return f"there is no Triton kernel of ours for {case.op}"
        if not {case.dtype, case.weight_dtype} <= {*DTYPES}:
            return f"our {case.op} takes {', '.join(DTYPES)}"
        widest = _kernels().WIDEST
        return f"our {case.op} takes at most {widest} columns" if case.cols > widest else None

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        kernels = _kernels()
        return by_name(kernels.forward if case.key == "rmsnorm.fwd" else kernels.backward)

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        self.refuse(case, device)
        return differentiable(pair(case))


def pair(case: Case) -> Pair:
    kernels = _kernels()

    def forward(*, x: Tensor, weight: Tensor, eps: float) -> tuple[tuple[Tensor, ...], tuple[Tensor, ...]]:
        y, rstd = kernels.forward_with_rstd(x, weight, eps)
        return (y,), (rstd,)

    return Pair(OPS[case.op], forward, kernels.backward)


def _kernels() -> Any:
    return importlib.import_module("..rmsnorm", __package__)
