"""The definitions of the ops in plain torch.

y = norm(x [+ residual]) [* weight] [+ bias], then what the region of the op does with it.  The building blocks work in
the dtype of their arguments: fp32 in measurements, float64 in the oracle.  The functions of BY_KEY have the signatures
of the adapter protocol and round once; a matrix product takes rounded rows.
"""

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from ..cases import DROPOUT_P, OPS, Direction, Op, Region

Given = Mapping[str, Tensor]

KEPT = 1 / (1 - DROPOUT_P)  # what dropout multiplies the numbers by that it keeps
MAX_CODE = {Region.FP8: 448.0, Region.INT8: 127.0}  # 448 is the largest number of float8_e4m3fn
SMALLEST_MAX = 1e-12  # of a row: its scale is not zero (as in torchao)


def normalised(op: Op, x: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor | None]:
    """The normalised rows of x, their rstd, and for layernorm their mean: [rows, 1]."""
    mean = x.mean(-1, keepdim=True) if op.norm == "layernorm" else None
    centred = x if mean is None else x - mean
    rstd = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return centred * rstd, rstd, mean


def summed(op: Op, x: Tensor, given: Given) -> Tensor:
    """x + residual, and with a mask what dropout keeps of x."""
    if op.region is Region.DROPOUT:
        x = x * given["mask"].to(x.dtype) * KEPT
    return x + given["residual"].to(x.dtype)


def weighted(op: Op, normal: Tensor, given: Given) -> Tensor:
    if op.weight:
        normal = normal * given["weight"].to(normal.dtype)
    return normal + given["bias"].to(normal.dtype) if op.bias else normal


def gated(op: Op, y: Tensor, given: Given) -> Tensor:
    gate = given["gate"].to(y.dtype)
    return y * (functional.silu(gate) if op.region is Region.SILU_GATE else functional.gelu(gate))


def scale_of(op: Op, y: Tensor) -> Tensor:
    """[rows, 1]: the number that a code of 1 stands for; the largest |y| of a row gets the largest code."""
    return y.abs().amax(-1, keepdim=True).clamp_min(SMALLEST_MAX) / MAX_CODE[op.region]


def quantised(op: Op, y: Tensor) -> tuple[Tensor, Tensor]:
    """(q, scale): [rows, columns] in the dtype of the region, and [rows] in fp32.  y is about q * scale."""
    scale = scale_of(op, y)
    most = MAX_CODE[op.region]
    codes = (y / scale).clamp(-most, most)
    q = codes.to(torch.float8_e4m3fn) if op.region is Region.FP8 else codes.round().to(torch.int8)
    return q, scale[..., 0].float()


def sloped(op: Op, dy: Tensor, given: Given) -> Tensor:
    """The gradient of the normalised rows: dy * weight."""
    return dy * given["weight"].to(dy.dtype) if op.weight else dy


def gradient(op: Op, slope: Tensor, normal: Tensor, rstd: Tensor) -> Tensor:
    """The gradient of the input of the norm."""
    through = slope - normal * (normal * slope).mean(-1, keepdim=True)
    if op.norm == "layernorm":
        through = through - slope.mean(-1, keepdim=True)
    return through * rstd


def of_rows(statistic: Tensor, x: Tensor) -> Tensor:
    """A statistic, [rows], in the shape of x, [rows, columns] or [tokens, heads, columns], with one column."""
    return statistic.view(*x.shape[:-1], 1) if x.ndim > 2 else statistic[:, None]


def over_rows(values: Tensor, **options: Any) -> Tensor:
    """[columns]: the sum over all rows."""
    return values.sum(tuple(range(values.ndim - 1)), **options)


def _forward(op: Op) -> Callable[..., Any]:
    names = op.inputs(Direction.FWD)

    def forward(*arguments: Any) -> Any:
        *tensors, eps = arguments
        given: dict[str, Tensor] = dict(zip(names, tensors, strict=True))
        dtype = given["x"].dtype
        x = given["x"].to(_compute_dtype(dtype))
        if op.residual:  # the norm of the rounded new residual
            x = summed(op, x, given).to(dtype).to(x.dtype)
        y = weighted(op, normalised(op, x, eps)[0], given)
        outputs = _through_region(op, y, given, dtype)
        outputs += (x.to(dtype),) if op.residual else ()
        return outputs if len(outputs) > 1 else outputs[0]

    return forward


def _through_region(op: Op, y: Tensor, given: Given, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """The outputs that are computed from y, which is not rounded yet."""
    match op.region:
        case Region.FP8 | Region.INT8:
            return quantised(op, y)
        case Region.SILU_GATE | Region.GELU_GATE:
            return (gated(op, y, given).to(dtype),)
        case Region.LINEAR:
            return (functional.linear(y.to(dtype), given["matrix"]),)
        case _:
            return (y.to(dtype),)


def _backward(op: Op) -> Callable[..., Any]:
    names = op.inputs(Direction.BWD)

    def backward(*arguments: Any) -> Any:
        given: dict[str, Tensor] = dict(zip(names, arguments[:-1], strict=True))
        dtype = given["x"].dtype
        dy = given["dy"].to(_compute_dtype(dtype))
        x = given["x"].to(_compute_dtype(dtype))
        rstd = of_rows(given["rstd"].to(_compute_dtype(dtype)), x)
        normal = (x - of_rows(given["mean"].to(x.dtype), x) if op.norm == "layernorm" else x) * rstd
        dx = gradient(op, sloped(op, dy, given), normal, rstd)
        if op.residual:
            dx = dx + given["dresidual_out"].to(x.dtype)
        outputs = [dx.to(dtype)]
        if op.weight:
            outputs.append(over_rows(dy * normal).to(given["weight"].dtype))
        if op.bias:  # without a weight the dtype of the bias is unknown; a wider one is also right
            outputs.append(over_rows(dy).to(given["weight"].dtype if op.weight else x.dtype))
        return tuple(outputs) if len(outputs) > 1 else outputs[0]

    return backward


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype is torch.float64 else torch.float32


# By op.direction.  fwdbwd is the forward function; autograd computes its backward pass.
BY_KEY: dict[str, Callable[..., Any]] = {
    f"{name}.{direction}": _backward(op) if direction is Direction.BWD else _forward(op)
    for name, op in OPS.items()
    for direction in op.directions
}
