"""What the ops do: through the kernels, by the definition in plain torch, or as a fake that only knows shapes.

The signatures are those of the ops' schemas.  Statistics are fp32, [rows]; of fp64, which only the definition takes,
they are fp64 as well.
"""

# A fake has the arguments of what it stands for, and torch's context of a device has no types.
# ruff: noqa: ARG001
# mypy: allow-untyped-calls

import functools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .. import references
from ..words import Op
from .launching import DTYPES

CAPABILITY = (8, 0)  # the least that Triton supports, and the first with bfloat16


def forward_by_kernels(
    x: Tensor, weight: Any, bias: Any, residual: Any, eps: float, center: bool, offset: float, statistics: bool
) -> list[Tensor]:
    _fit(x, (residual,), (weight, bias))
    forward, _ = _kernels(x)
    with torch.cuda.device_of(x):  # Triton launches on the current device, wherever the tensors are
        done = forward(
            _rows(x), _dense(weight), _dense(bias), _rows(residual),
            eps=eps, center=center, offset=offset, statistics=statistics,
        )  # fmt: skip
    outputs = [done.y.view(x.shape)]
    if residual is not None:
        outputs.append(done.residual_out.view(x.shape))
    return outputs + [each for each in (done.mean, done.rstd) if each is not None]


def backward_by_kernels(
    dy: Tensor, x: Tensor, weight: Any, rstd: Tensor, mean: Any, dresidual_out: Any, bias_dtype: Any, offset: float
) -> list[Tensor]:
    _fit(x, (dy, dresidual_out), (weight,))
    _, backward = _kernels(x)
    with torch.cuda.device_of(x):
        done = backward(
            _rows(dy), _rows(x), _dense(weight), rstd, mean, _rows(dresidual_out), bias_dtype=bias_dtype, offset=offset
        )
    return [done.dx.view(x.shape), *(each for each in (done.dweight, done.dbias) if each is not None)]


def forward_by_definition(
    x: Tensor, weight: Any, bias: Any, residual: Any, eps: float, center: bool, offset: float, statistics: bool
) -> list[Tensor]:
    _fit(x, (residual,), (weight, bias))
    op, given, fine = _op(center, weight, bias), _given(x, weight, bias, offset), _fine(x.dtype)
    summed = x if residual is None else (x.to(fine) + residual.to(fine)).to(x.dtype)
    normal, rstd, mean = references.normalised(op, summed.to(fine), eps)
    outputs = [references.weighted(op, normal, given).to(x.dtype)]
    if residual is not None:
        outputs.append(summed)
    outputs = [output.contiguous() for output in outputs]
    return outputs + [each.reshape(-1) for each in (mean, rstd) if statistics and each is not None]


def backward_by_definition(
    dy: Tensor, x: Tensor, weight: Any, rstd: Tensor, mean: Any, dresidual_out: Any, bias_dtype: Any, offset: float
) -> list[Tensor]:
    _fit(x, (dy, dresidual_out), (weight,))
    op, fine, cols = _op(mean is not None, weight, None), _fine(x.dtype), x.shape[-1]
    rstd = rstd[:, None]
    rows, dy_rows = x.reshape(-1, cols).to(fine), dy.reshape(-1, cols).to(fine)
    normal = (rows if mean is None else rows - mean[:, None]) * rstd
    slope = references.sloped(op, dy_rows, _given(x, weight, None, offset))
    dx = references.gradient(op, slope, normal, rstd).view(x.shape)
    if dresidual_out is not None:
        dx = dx + dresidual_out.to(fine)
    gradients = [dx.to(x.dtype).contiguous()]
    if weight is not None:
        gradients.append((dy_rows * normal).sum(0).to(weight.dtype))
    if bias_dtype is not None:
        gradients.append(dy_rows.sum(0).to(bias_dtype))
    return gradients


def forward_fake(
    x: Tensor, weight: Any, bias: Any, residual: Any, eps: float, center: bool, offset: float, statistics: bool
) -> list[Tensor]:
    _fit(x, (residual,), (weight, bias))
    outputs = [x.new_empty(x.shape) for _ in range(1 if residual is None else 2)]
    rows = math.prod(x.shape[:-1])
    return outputs + [x.new_empty(rows, dtype=_fine(x.dtype)) for _ in range((1 + center) * statistics)]


def backward_fake(
    dy: Tensor, x: Tensor, weight: Any, rstd: Tensor, mean: Any, dresidual_out: Any, bias_dtype: Any, offset: float
) -> list[Tensor]:
    _fit(x, (dy, dresidual_out), (weight,))
    gradients = [x.new_empty(x.shape)]
    if weight is not None:
        gradients.append(weight.new_empty(weight.shape))
    if bias_dtype is not None:
        gradients.append(x.new_empty(x.shape[-1], dtype=bias_dtype))
    return gradients


def _fit(x: Tensor, like_x: tuple[Tensor | None, ...], columns: tuple[Tensor | None, ...]) -> None:
    """Raises ValueError.  The kernels say more, of rows as they get them; this holds on all devices and of shapes."""
    if x.ndim == 0 or x.shape[-1] == 0 or not x.dtype.is_floating_point:
        raise ValueError(f"x must be [..., columns] of floating-point numbers, not {tuple(x.shape)} in {x.dtype}")
    for tensor in like_x:
        if tensor is not None and (tensor.shape != x.shape or tensor.dtype != x.dtype):
            raise ValueError(
                f"residual and gradients must be like x, {tuple(x.shape)} in {x.dtype}, "
                f"not {tuple(tensor.shape)} in {tensor.dtype}"
            )
    for tensor in columns:
        if tensor is not None and tensor.shape != x.shape[-1:]:
            raise ValueError(f"weight and bias must have x's {x.shape[-1]} columns, not {tuple(tensor.shape)}")


def _kernels(x: Tensor) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(forward, backward).  Raises ValueError where they cannot run."""
    if x.dtype not in DTYPES:
        raise ValueError(
            f"x is {x.dtype}; the kernels take {', '.join(str(dtype).removeprefix('torch.') for dtype in DTYPES)}: "
            "convert x, or take torch.nn.functional's norms"
        )
    return _loaded(x.device)


@functools.cache
def _loaded(device: torch.device) -> tuple[Callable[..., Any], Callable[..., Any]]:
    if device.type == "cuda" and (capability := torch.cuda.get_device_capability(device)) < CAPABILITY:
        raise ValueError(
            f"{torch.cuda.get_device_name(device)} has compute capability {'.'.join(map(str, capability))}, and the "
            f"kernels need {'.'.join(map(str, CAPABILITY))}: take torch.nn.functional's norms there, or a newer GPU"
        )
    from .backward import backward  # who computes on a CPU may have no Triton
    from .forward import forward

    return forward, backward


def _rows(tensor: Tensor | None) -> Tensor | None:
    """[rows, columns] with dense rows; a copy only of what does not lie so."""
    if tensor is None:
        return None
    rows = tensor if tensor.ndim == 2 else tensor.reshape(-1, tensor.shape[-1])
    return rows if rows.stride(1) == 1 else rows.clone(memory_format=torch.contiguous_format)  # also of no rows


def _dense(columns: Tensor | None) -> Tensor | None:
    return None if columns is None else columns.contiguous()


def _op(center: bool, weight: Tensor | None, bias: Tensor | None) -> Op:
    return Op("", "layernorm" if center else "rmsnorm", weight is not None, bias is not None, residual=False)


def _given(x: Tensor, weight: Tensor | None, bias: Tensor | None, offset: float) -> dict[str, Tensor]:
    given = {} if weight is None else {"weight": weight.to(_fine(x.dtype)) + offset}
    return given if bias is None else given | {"bias": bias}


def _fine(dtype: torch.dtype) -> torch.dtype:
    """In which rows are computed."""
    return torch.float64 if dtype is torch.float64 else torch.float32
