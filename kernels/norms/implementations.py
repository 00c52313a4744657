"""What the ops do: through the kernels, by the definition in plain torch, or as a fake that only knows shapes.

The signatures are those of the ops' schemas.  Statistics are fp32, [rows]; of fp64, which only the definition takes,
they are fp64 as well.  All raise ValueError for tensors that do not fit together.
"""

# A fake has the arguments of what it stands for, and torch's context of a device has no types.
# ruff: noqa: ARG001
# mypy: allow-untyped-calls

import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor

from ..cases import Op
from ..checks import references
from .launching import DTYPES

BY_DEFINITION = (*DTYPES, torch.float64)
CAPABILITY = (8, 0)  # the least that Triton supports, and the first with bfloat16
# On AMD's GPUs, which torch calls cuda as well, the definition computes: the kernels have instructions of NVIDIA's.
THROUGH_KERNELS = ("cuda",) * (torch.version.hip is None) + ("cpu",) * (os.environ.get("TRITON_INTERPRET") == "1")


def forward_by_kernels(
    x: Tensor, weight: Any, bias: Any, residual: Any, eps: float, center: bool, offset: float, statistics: bool
) -> list[Tensor]:
    _fit(x, {"residual": residual}, {"weight": weight, "bias": bias}, offset)
    forward, _ = _kernels(x.device)
    done = forward(
        _rows(x), _dense(weight), _dense(bias), _rows(residual),
        eps=eps, center=center, offset=offset, statistics=statistics,
    )  # fmt: skip
    outputs = [done.y.view(x.shape)]
    if residual is not None:
        outputs.append(done.residual_out.view(x.shape))
    return outputs + [each for each in (done.mean, done.rstd) if each is not None]


def backward_by_kernels(
    dy: Tensor,
    x: Tensor,
    weight: Any,
    rstd: Tensor,
    mean: Any,
    dresidual_out: Any,
    bias_dtype: Any,
    offset: float,
    weight_wanted: bool = True,
) -> list[Tensor]:
    _fit_backward(dy, x, weight, rstd, mean, dresidual_out, bias_dtype, offset)
    _, backward = _kernels(x.device)
    done = backward(
        _rows(dy), _rows(x), _dense(weight), rstd, mean, _rows(dresidual_out),
        bias_dtype=bias_dtype, weight_wanted=weight_wanted, offset=offset,
    )  # fmt: skip
    return [done.dx.view(x.shape), *(each for each in (done.dweight, done.dbias) if each is not None)]


@torch.no_grad()  # as through the kernels: differentiable is the op `norm` alone
def forward_by_definition(
    x: Tensor, weight: Any, bias: Any, residual: Any, eps: float, center: bool, offset: float, statistics: bool
) -> list[Tensor]:
    _fit(x, {"residual": residual}, {"weight": weight, "bias": bias}, offset)
    op, given, fine = _op(center, weight, bias), _given(x, weight, bias, offset), _fine(x.dtype)
    summed = x if residual is None else (x.to(fine) + residual.to(fine)).to(x.dtype)
    normal, rstd, mean = references.normalised(op, summed.to(fine), eps)
    outputs = [references.weighted(op, normal, given).to(x.dtype)]
    if residual is not None:
        outputs.append(summed)
    outputs = [output.contiguous() for output in outputs]
    return outputs + [each.reshape(-1) for each in (mean, rstd) if statistics and each is not None]


@torch.no_grad()  # as through the kernels: differentiable is the op `norm` alone
def backward_by_definition(
    dy: Tensor,
    x: Tensor,
    weight: Any,
    rstd: Tensor,
    mean: Any,
    dresidual_out: Any,
    bias_dtype: Any,
    offset: float,
    weight_wanted: bool = True,
) -> list[Tensor]:
    _fit_backward(dy, x, weight, rstd, mean, dresidual_out, bias_dtype, offset)
    op, fine, cols = _op(mean is not None, weight, None), _fine(x.dtype), x.shape[-1]
    rstd = rstd[:, None]
    rows, dy_rows = x.reshape(-1, cols).to(fine), dy.reshape(-1, cols).to(fine)
    normal = (rows if mean is None else rows - mean[:, None]) * rstd
    slope = references.sloped(op, dy_rows, _given(x, weight, None, offset))
    dx = references.gradient(op, slope, normal, rstd).view(x.shape)
    if dresidual_out is not None:
        dx = dx + dresidual_out.to(fine)
    gradients = [dx.to(x.dtype).contiguous()]
    if weight is not None and weight_wanted:
        gradients.append((dy_rows * normal).sum(0).to(weight.dtype))
    if bias_dtype is not None:
        gradients.append(dy_rows.sum(0).to(bias_dtype))
    return gradients


def forward_fake(
    x: Tensor, weight: Any, bias: Any, residual: Any, eps: float, center: bool, offset: float, statistics: bool
) -> list[Tensor]:
    _fit(x, {"residual": residual}, {"weight": weight, "bias": bias}, offset)
    outputs = [x.new_empty(x.shape) for _ in range(1 if residual is None else 2)]
    rows = math.prod(x.shape[:-1])
    return outputs + [x.new_empty(rows, dtype=_fine(x.dtype)) for _ in range((1 + center) * statistics)]


def backward_fake(
    dy: Tensor,
    x: Tensor,
    weight: Any,
    rstd: Tensor,
    mean: Any,
    dresidual_out: Any,
    bias_dtype: Any,
    offset: float,
    weight_wanted: bool = True,
) -> list[Tensor]:
    _fit_backward(dy, x, weight, rstd, mean, dresidual_out, bias_dtype, offset)
    gradients = [x.new_empty(x.shape)]
    if weight is not None and weight_wanted:
        gradients.append(weight.new_empty(weight.shape))
    if bias_dtype is not None:
        gradients.append(x.new_empty(x.shape[-1], dtype=bias_dtype))
    return gradients


def _fit(x: Tensor, rows: Mapping[str, Tensor | None], columns: Mapping[str, Tensor | None], offset: float) -> None:
    """The kernels say more, of rows as they get them; this holds on all devices, and of any leading shape."""
    shape, dtype, taken = x.shape, x.dtype, _taken(x)
    if not shape or shape[-1] == 0:
        raise ValueError(f"x must be [..., columns], not {tuple(shape)}")
    if dtype not in taken:
        raise _strange("x", dtype, taken)
    for name, tensor in rows.items():
        if tensor is not None and (tensor.shape != shape or tensor.dtype != dtype):
            raise ValueError(
                f"{name} must be like x, {tuple(shape)} in {dtype}, not {tuple(tensor.shape)} in {tensor.dtype}"
            )
    for name, tensor in columns.items():
        if tensor is not None and tensor.shape != shape[-1:]:
            raise ValueError(
                f"{name} must have one value for each of x's {shape[-1]} columns, not {tuple(tensor.shape)}"
            )
        if tensor is not None and tensor.dtype not in taken:
            raise _strange(name, tensor.dtype, taken)
    if offset and columns["weight"] is None:
        raise ValueError("an offset is added to the weight: without a weight it must be 0")


def _fit_backward(
    dy: Tensor, x: Tensor, weight: Any, rstd: Tensor, mean: Any, dresidual_out: Any, bias_dtype: Any, offset: float
) -> None:
    _fit(x, {"dy": dy, "dresidual_out": dresidual_out}, {"weight": weight}, offset)
    rows, fine = math.prod(x.shape[:-1]), _fine(x.dtype)
    for name, tensor in (("rstd", rstd), ("mean", mean)):
        if tensor is not None and (tensor.shape != (rows,) or tensor.dtype is not fine):
            raise ValueError(
                f"{name} must be {fine}, one value for each of {rows} rows, not {tuple(tensor.shape)} in {tensor.dtype}"
            )
    if bias_dtype is not None and bias_dtype not in _taken(x):
        raise _strange("bias", bias_dtype, _taken(x))


def _taken(x: Tensor) -> tuple[torch.dtype, ...]:
    return DTYPES if x.device.type in THROUGH_KERNELS else BY_DEFINITION


def _strange(name: str, dtype: torch.dtype, taken: tuple[torch.dtype, ...]) -> ValueError:
    return ValueError(
        f"{name} is {dtype}; the {'kernels take' if taken is DTYPES else 'definition takes'} "
        f"{', '.join(str(each).removeprefix('torch.') for each in taken)}: convert {name}, "
        "or take torch.nn.functional's norms"
    )


def refusal(device: torch.device) -> str | None:
    """Why the kernels can not run on a GPU, in a sentence; None where they can."""
    if torch.version.hip is not None:
        return "the kernels have instructions of NVIDIA's GPUs, and this torch is for AMD's"
    if (capability := torch.cuda.get_device_capability(device)) < CAPABILITY:
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability {'.'.join(map(str, capability))}, and the "
            f"kernels need {'.'.join(map(str, CAPABILITY))}: take torch.nn.functional's norms there, or a newer GPU"
        )
    return None


@functools.cache
def _kernels(device: torch.device) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(forward, backward).  Raises ValueError where they cannot run."""
    if device.type == "cuda" and (why := refusal(device)):
        raise ValueError(why)
    from .backward import backward  # who computes on a CPU may have no Triton
    from .forward import forward

    return _where_it_lies(forward), _where_it_lies(backward)


def _where_it_lies(function: Callable[..., Any]) -> Callable[..., Any]:
    """Triton launches on the current device, wherever the tensors are."""

    def call(first: Tensor, *others: Any, **how: Any) -> Any:
        with torch.cuda.device_of(first):
            return function(first, *others, **how)

    return call


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
