"""The definitions of the ops in plain torch.

y = norm(x [+ residual]) [* weight] [+ bias].  The parts work in whatever dtype they are given, fp32 to measure and
float64 for the oracle; the functions of BY_KEY have the signatures of the adapter protocol and round once.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..cases import OPS, Direction, Op

Given = Mapping[str, Tensor]


def normalised(op: Op, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """The normalised rows of x, with their rstd and, where one is taken away, their mean: [rows, 1]."""
    mean = x.mean(-1, keepdim=True) if op.norm == "layernorm" else None
    centred = x if mean is None else x - mean
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return centred * rstd, rstd, mean


def weighted(op: Op, normal: Tensor, given: Given) -> Tensor:
    if op.weight:
        normal = normal * given["weight"].to(normal.dtype)
    return normal + given["bias"].to(normal.dtype) if op.bias else normal


def sloped(op: Op, dy: Tensor, given: Given) -> Tensor:
    """The gradient of the normalised rows."""
    return dy * given["weight"].to(dy.dtype) if op.weight else dy


def gradient(op: Op, slope: Tensor, normal: Tensor, rstd: Tensor) -> Tensor:
    """The gradient of what was normalised."""
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
        x = given["x"].to(_fine(dtype))
        if op.residual:  # the norm is taken of the new residual as it is handed on
            x = (x + given["residual"].to(x.dtype)).to(dtype).to(x.dtype)
        y = weighted(op, normalised(op, x, eps)[0], given).to(dtype)
        return (y, x.to(dtype)) if op.residual else y

    return forward


def _backward(op: Op) -> Callable[..., Any]:
    names = op.inputs(Direction.BWD)

    def backward(*arguments: Any) -> Any:
        given: dict[str, Tensor] = dict(zip(names, arguments[:-1], strict=True))
        dtype = given["x"].dtype
        dy, x, rstd = given["dy"].to(_fine(dtype)), given["x"].to(_fine(dtype)), given["rstd"].to(_fine(dtype))[:, None]
        normal = (x - given["mean"].to(x.dtype)[:, None] if op.norm == "layernorm" else x) * rstd
        dx = gradient(op, sloped(op, dy, given), normal, rstd)
        if op.residual:
            dx = dx + given["dresidual_out"].to(x.dtype)
        outputs = [dx.to(dtype)]
        if op.weight:
            outputs.append((dy * normal).sum(0).to(given["weight"].dtype))
        if op.bias:  # without a weight nothing says the dtype of the bias: more exact is right as well
            outputs.append(dy.sum(0).to(given["weight"].dtype if op.weight else x.dtype))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return backward


def _fine(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


# By op.direction.  Forward and backward together are the forward function, which autograd goes back through.
BY_KEY: dict[str, Callable[..., Any]] = {
    f"{name}.{direction}": _backward(op) if direction is Direction.BWD else _forward(op)
    for name, op in OPS.items()
    for direction in Direction
}
