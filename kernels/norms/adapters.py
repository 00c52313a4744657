"""The norms as kernelwatch calls a target's functions (docs/adapters.md), for a recipe that watches this project."""

from torch import Tensor

from .backward import backward
from .forward import forward
from .modules import layer_norm, rms_norm


def rmsnorm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return forward(x, weight, eps=eps, center=False).y


def rmsnorm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    rstd: Tensor,
    eps: float,  # noqa: ARG001  part of rstd
) -> tuple[Tensor | None, ...]:
    return backward(dy, x, weight, rstd)[:2]


def rmsnorm_differentiable(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y: Tensor = rms_norm(x, weight, eps=eps)
    return y


def layernorm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return forward(x, weight, bias, eps=eps, center=True).y


def layernorm_backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor,
    mean: Tensor,
    rstd: Tensor,
    eps: float,  # noqa: ARG001
) -> tuple[Tensor | None, ...]:
    return backward(dy, x, weight, rstd, mean, bias_dtype=weight.dtype)


def layernorm_differentiable(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    y: Tensor = layer_norm(x, weight, bias, eps=eps)
    return y
