"""Quack, the state of the art on Hopper and Blackwell (seen with 0.6.5)."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..words import Case
from .base import Bind, Broken, Unsupported, plainly


class Quack:
    name = "quack"
    compiled = False
    pinned: tuple[str, ...] = ("quack-kernels", "nvidia-cutlass-dsl")

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}
        self._trouble: Exception | None = None

    def warm(self) -> None:
        if not torch.cuda.is_available() or self._functions:
            return
        try:
            # `quack.rmsnorm` as an attribute is the function, not the module
            from quack.rmsnorm import layernorm_bwd, layernorm_fwd, rmsnorm_bwd, rmsnorm_fwd
        except ModuleNotFoundError as missing:
            self._trouble = Unsupported(f"Quack is not installed in this environment ({missing})")
        except Exception as trouble:
            self._trouble = Broken(f"cannot import quack: {type(trouble).__name__}: {trouble}")
        else:
            self._functions = {
                "rmsnorm.fwd": _rms_forward(rmsnorm_fwd),
                "rmsnorm.bwd": _rms_backward(rmsnorm_bwd),
                "layernorm.fwd": _layer_forward(layernorm_fwd),
                "layernorm.bwd": _layer_backward(layernorm_bwd),
            }

    def ready(self, case: Case, device: torch.device) -> Bind:
        if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 9:
            raise Unsupported("Quack needs a Hopper or Blackwell GPU")
        self.warm()
        if self._trouble is not None:
            raise self._trouble
        if case.op == "layernorm" and case.weight_dtype != "fp32":
            raise Unsupported("Quack's LayerNorm takes fp32 weights only")
        if case.direction == "bwd" and case.dtype == "fp32" and case.cols > 131072:
            raise Unsupported("Quack's backward takes at most 131072 columns in fp32")
        if case.key not in self._functions:
            raise Unsupported(f"Quack has no {case.key}")
        return plainly(self._functions[case.key])

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:  # noqa: ARG002
        raise Unsupported(f"{self.name} has no {case.key}")


def _rms_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y: Tensor = function(x, weight, eps=eps)[0]
        return y

    return forward


def _rms_backward(function: Callable[..., Any]) -> Callable[..., Any]:
    def backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
        dx, dweight, *_ = function(x, weight, dy, rstd)
        return dx, dweight

    return backward


def _layer_forward(function: Callable[..., Any]) -> Callable[..., Any]:
    def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        y: Tensor = function(x, weight, bias=bias, eps=eps)  # statistics only when asked for
        return y

    return forward


def _layer_backward(function: Callable[..., Any]) -> Callable[..., Any]:
    def backward(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, _eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dx, dweight, dbias, *_ = function(x, weight, dy, rstd, mean, has_bias=True)
        return dx, dweight, dbias

    return backward
