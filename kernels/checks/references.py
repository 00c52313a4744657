"""The definitions of the ops in plain torch.

y = norm(x [+ residual]) [* weight] [+ bias].  The building blocks work in the dtype of their arguments: fp32 in
measurements, float64 in the oracle.  The functions of BY_KEY have the signatures of the adapter protocol and round
once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..cases import OPS, Direction, Op

Given = Mapping[str, Tensor]


def normalised(op: Op, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """The normalised rows of x, their rstd, and for layernorm their mean: [rows, 1]."""
    mean = x.mean(-1, keepdim=True) if op.norm == "layernorm" else None
    centred = x if mean is None else x - mean
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return centred * rstd, rstd, mean


def weighted(op: Op, normal: Tensor, given: Given) -> Tensor:
    if op.weight:
        normal = normal * given["weight"].to(normal.dtype)
    return normal + given["bias"].to(normal.dtype) if op.bias else normal


def sloped(op: Op, dy: Tensor, given: Given) -> Tensor:
    """The gradient of the normalised rows: dy * weight."""
    return dy * given["weight"].to(dy.dtype) if op.weight else dy


def gradient(op: Op, slope: Tensor, normal: Tensor, rstd: Tensor) -> Tensor:
    """The gradient of the input of the norm."""
    through = slope - normal * (normal * slope).mean(-1, keepdim=True)
    if op.norm == "layernorm":
        through = through - slope.mean(-1, keepdim=True)
    return through * rstd


def _forward(op: Op) -> Callable[..., Any]:
    names = op.inputs(Direction.FWD)

    def forward(*arguments: Any) -> Any:
        *tensors, eps = arguments
        given: dict[str, Tensor] = dict(zip(names, tensors, strict=True))
        dtype = given["x"].dtype
        x = given["x"].to(_compute_dtype(dtype))
        if op.residual:  # the norm of the rounded new residual
            x = (x + given["residual"].to(x.dtype)).to(dtype).to(x.dtype)
        y = weighted(op, normalised(op, x, eps)[0], given).to(dtype)
        return (y, x.to(dtype)) if op.residual else y

    return forward


def _backward(op: Op) -> Callable[..., Any]:
    names = op.inputs(Direction.BWD)

    def backward(*arguments: Any) -> Any:
        given: dict[str, Tensor] = dict(zip(names, arguments[:-1], strict=True))
        dtype = given["x"].dtype
        dy = given["dy"].to(_compute_dtype(dtype))
        x = given["x"].to(_compute_dtype(dtype))
        rstd = given["rstd"].to(_compute_dtype(dtype))[:, None]
        normal = (x - given["mean"].to(x.dtype)[:, None] if op.norm == "layernorm" else x) * rstd
        dx = gradient(op, sloped(op, dy, given), normal, rstd)
        if op.residual:
            dx = dx + given["dresidual_out"].to(x.dtype)
        outputs = [dx.to(dtype)]
        if op.weight:
            outputs.append((dy * normal).sum(0).to(given["weight"].dtype))
        if op.bias:  # without a weight the dtype of the bias is unknown; a wider one is also right
            outputs.append(dy.sum(0).to(given["weight"].dtype if op.weight else x.dtype))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return backward


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


# By op.direction.  fwdbwd is the forward function; autograd computes its backward pass.
BY_KEY: dict[str, Callable[..., Any]] = {
    f"{name}.{direction}": _backward(op) if direction is Direction.BWD else _forward(op)
    for name, op in OPS.items()
    for direction in Direction
}
