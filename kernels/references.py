"""The definitions of the ops in plain torch, in the dtype that is asked for: fp32 to measure, fp64 for the oracle."""

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor


def rmsnorm_fwd(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rmsnorm_forward_in(x, weight, eps, torch.float32).to(x.dtype)


def rmsnorm_bwd(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
    dx, dweight = rmsnorm_backward_in(dy, x, weight, rstd, torch.float32)
    return dx.to(x.dtype), dweight.to(weight.dtype)


def layernorm_fwd(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return layernorm_forward_in(x, weight, bias, eps, torch.float32).to(x.dtype)


def layernorm_bwd(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    dx, dweight, dbias = layernorm_backward_in(dy, x, weight, mean, rstd, torch.float32)
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype)


BY_KEY: dict[str, Callable[..., Any]] = {
    "rmsnorm.fwd": rmsnorm_fwd,
    "rmsnorm.bwd": rmsnorm_bwd,
    "layernorm.fwd": layernorm_fwd,
    "layernorm.bwd": layernorm_bwd,
}


def rmsnorm_forward_in(x: Tensor, weight: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    x = x.to(dtype)
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight.to(dtype)


def rmsnorm_backward_in(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor]:
    dy, rstd = dy.to(dtype), rstd.to(dtype)[:, None]
    normal, slope = x.to(dtype) * rstd, dy * weight.to(dtype)
    dx = (slope - normal * (normal * slope).mean(-1, keepdim=True)) * rstd
    return dx, (dy * normal).sum(0)


def layernorm_forward_in(x: Tensor, weight: Tensor, bias: Tensor, eps: float, dtype: torch.dtype) -> Tensor:
    x = x.to(dtype)
    centred = x - x.mean(-1, keepdim=True)
    return centred * torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps) * weight.to(dtype) + bias.to(dtype)


def layernorm_backward_in(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, dtype: torch.dtype
) -> tuple[Tensor, Tensor, Tensor]:
    dy, mean, rstd = dy.to(dtype), mean.to(dtype)[:, None], rstd.to(dtype)[:, None]
    normal, slope = (x.to(dtype) - mean) * rstd, dy * weight.to(dtype)
    dx = (slope - slope.mean(-1, keepdim=True) - normal * (normal * slope).mean(-1, keepdim=True)) * rstd
    return dx, (dy * normal).sum(0), dy.sum(0)
