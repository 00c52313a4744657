"""Implementations of the ops: by the kernels, in plain torch, and as a fake that only returns shapes.

Each returns a list: forward y, then residual_out, mean and rstd if there are any; backward dx, then dweight and dbias.
Statistics are [rows] in fp32; for fp64, which only the definition takes, in fp64.
"""

# torch's context of a device has no types.
# mypy: allow-untyped-calls

import functools
import math
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..cases import Op
from ..checks import references
from .launching import DTYPES

BY_DEFINITION = (*DTYPES, torch.float64)
CAPABILITY = (8, 0)  # the lowest that Triton supports, and the first with bfloat16
# AMD GPUs, which torch calls cuda as well, take the definition: the kernels contain instructions of NVIDIA GPUs.
THROUGH_KERNELS = ("cuda",) * (torch.version.hip is None) + ("cpu",) * (os.environ.get("TRITON_INTERPRET") == "1")


class ForwardArguments(NamedTuple):
    """Of `norm_forward`."""

    x: Tensor  # [..., columns]
    weight: Tensor | None  # [columns]
    bias: Tensor | None  # [columns]
    residual: Tensor | None  # like x
    eps: float
    center: bool  # LayerNorm
    offset: float  # added to the weight
    statistics: bool  # return mean and rstd

    def check(self) -> None:
        _check(self.x, {"residual": self.residual}, {"weight": self.weight, "bias": self.bias}, self.offset)


class BackwardArguments(NamedTuple):
    """Of `norm_backward`."""

    dy: Tensor  # like x
    x: Tensor  # [..., columns]: what was normalised
    weight: Tensor | None  # [columns]
    rstd: Tensor  # [rows]
    mean: Tensor | None  # [rows]: LayerNorm
    dresidual_out: Tensor | None  # like x
    bias_dtype: torch.dtype | None  # there was a bias
    offset: float  # added to the weight
    weight_wanted: bool = True

    def check(self) -> None:
        x, rows, dtype = self.x, math.prod(self.x.shape[:-1]), _compute_dtype(self.x.dtype)
        _check(x, {"dy": self.dy, "dresidual_out": self.dresidual_out}, {"weight": self.weight}, self.offset)
        for name, tensor in (("rstd", self.rstd), ("mean", self.mean)):
            if tensor is not None and (tensor.shape != (rows,) or tensor.dtype is not dtype):
                raise ValueError(
                    f"{name} must be {dtype}, one value for each of {rows} rows, not {tuple(tensor.shape)} in "
                    f"{tensor.dtype}"
                )
        if self.bias_dtype is not None and self.bias_dtype not in _accepted(x):
            raise _wrong_dtype("bias", self.bias_dtype, _accepted(x))


def forward_by_kernels(given: ForwardArguments) -> list[Tensor]:
    forward, _ = _kernels(given.x.device)
    out = forward(
        _rows(given.x), _dense(given.weight), _dense(given.bias), _rows(given.residual),
        eps=given.eps, center=given.center, offset=given.offset, statistics=given.statistics,
    )  # fmt: skip
    return [each for each in out if each is not None]


def backward_by_kernels(given: BackwardArguments) -> list[Tensor]:
    _, backward = _kernels(given.x.device)
    out = backward(
        _rows(given.dy), _rows(given.x), _dense(given.weight), _dense(given.rstd), _dense(given.mean),
        _rows(given.dresidual_out),
        bias_dtype=given.bias_dtype, weight_wanted=given.weight_wanted, offset=given.offset,
    )  # fmt: skip
    return [each for each in out if each is not None]


@torch.no_grad()  # as through the kernels: only the op `norm` is differentiable
def forward_by_definition(given: ForwardArguments) -> list[Tensor]:
    x, residual, dtype = given.x, given.residual, _compute_dtype(given.x.dtype)
    op, weights = _definition(given.center, given.weight, given.bias, given.offset, dtype)
    total = x if residual is None else (x.to(dtype) + residual.to(dtype)).to(x.dtype)
    x_hat, rstd, mean = references.normalised(op, total.to(dtype), given.eps)
    outputs = [references.weighted(op, x_hat, weights).to(x.dtype)]
    if residual is not None:
        outputs.append(total)
    outputs = [output.contiguous() for output in outputs]
    return outputs + [each.reshape(-1) for each in (mean, rstd) if given.statistics and each is not None]


@torch.no_grad()  # as through the kernels: only the op `norm` is differentiable
def backward_by_definition(given: BackwardArguments) -> list[Tensor]:
    x, weight, mean, dtype = given.x, given.weight, given.mean, _compute_dtype(given.x.dtype)
    op, weights = _definition(mean is not None, weight, None, given.offset, dtype)
    rows, dy, rstd = (*(each.reshape(-1, x.shape[-1]).to(dtype) for each in (x, given.dy)), given.rstd[:, None])
    x_hat = (rows if mean is None else rows - mean[:, None]) * rstd
    dx = references.gradient(op, references.sloped(op, dy, weights), x_hat, rstd).view(x.shape)
    if given.dresidual_out is not None:
        dx = dx + given.dresidual_out.to(dtype)
    gradients = [dx.to(x.dtype).contiguous()]
    if weight is not None and given.weight_wanted:
        gradients.append((dy * x_hat).sum(0).to(weight.dtype))
    if given.bias_dtype is not None:
        gradients.append(dy.sum(0).to(given.bias_dtype))
    return gradients


def forward_fake(given: ForwardArguments) -> list[Tensor]:
    x = given.x
    outputs = [x.new_empty(x.shape) for _ in range(1 if given.residual is None else 2)]
    statistics = range((1 + given.center) * given.statistics)
    return outputs + [x.new_empty(math.prod(x.shape[:-1]), dtype=_compute_dtype(x.dtype)) for _ in statistics]


def backward_fake(given: BackwardArguments) -> list[Tensor]:
    gradients = [given.x.new_empty(given.x.shape)]
    if given.weight is not None and given.weight_wanted:
        gradients.append(given.weight.new_empty(given.weight.shape))
    if given.bias_dtype is not None:
        gradients.append(given.x.new_empty(given.x.shape[-1], dtype=given.bias_dtype))
    return gradients


OPS = {
    "norm_forward": (ForwardArguments, forward_by_kernels, forward_by_definition, forward_fake),
    "norm_backward": (BackwardArguments, backward_by_kernels, backward_by_definition, backward_fake),
}


def _check(x: Tensor, rows: Mapping[str, Tensor | None], columns: Mapping[str, Tensor | None], offset: float) -> None:
    """Check what all devices and leading shapes need; `launching.check` checks the layout of [rows, columns]."""
    shape, dtype, accepted = x.shape, x.dtype, _accepted(x)
    if not shape or shape[-1] == 0:
        raise ValueError(f"x must be [..., columns] with at least one column, not {tuple(shape)}")
    if dtype not in accepted:
        raise _wrong_dtype("x", dtype, accepted)
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
        if tensor is not None and tensor.dtype not in accepted:
            raise _wrong_dtype(name, tensor.dtype, accepted)
    if offset and columns["weight"] is None:
        raise ValueError("an offset is added to the weight: without a weight it must be 0")


def _accepted(x: Tensor) -> tuple[torch.dtype, ...]:
    return DTYPES if x.device.type in THROUGH_KERNELS else BY_DEFINITION


def _wrong_dtype(name: str, dtype: torch.dtype, accepted: tuple[torch.dtype, ...]) -> ValueError:
    return ValueError(
        f"{name} is {dtype}; the {'kernels take' if accepted is DTYPES else 'definition takes'} "
        f"{', '.join(str(each).removeprefix('torch.') for each in accepted)}: convert {name}, "
        "or use torch.nn.functional's norms"
    )


def refusal(device: torch.device) -> str | None:
    """Why the kernels cannot run on this GPU, in a sentence; None if they can."""
    if torch.version.hip is not None:
        return "the kernels contain instructions of NVIDIA GPUs, and this torch is for AMD GPUs"
    if (capability := torch.cuda.get_device_capability(device)) < CAPABILITY:
        return (
            f"{torch.cuda.get_device_name(device)} has compute capability {'.'.join(map(str, capability))}, and the "
            f"kernels need {'.'.join(map(str, CAPABILITY))}: use torch.nn.functional's norms, or a newer GPU"
        )
    return None


@functools.cache
def _kernels(device: torch.device) -> tuple[Callable[..., Any], Callable[..., Any]]:
    """(forward, backward).  Raises ValueError if they cannot run on the device."""
    if device.type == "cuda" and (reason := refusal(device)):
        raise ValueError(reason)
    from .backward import backward  # a CPU may have no Triton
    from .forward import forward

    return _on_device(forward), _on_device(backward)


def _on_device(function: Callable[..., Any]) -> Callable[..., Any]:
    """On the device of its first tensor: Triton launches on the current one."""

    def call(first: Tensor, *others: Any, **options: Any) -> Any:
        with torch.cuda.device_of(first):
            return function(first, *others, **options)

    return call


def _rows(tensor: Tensor | None) -> Tensor | None:
    """With contiguous rows; copied only if they are not."""
    if tensor is None or tensor.stride(-1) == 1:
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def _dense(values: Tensor | None) -> Tensor | None:
    return None if values is None else values.contiguous()


def _definition(
    center: bool, weight: Tensor | None, bias: Tensor | None, offset: float, dtype: torch.dtype
) -> tuple[Op, dict[str, Tensor]]:
    """The op and the weights for `references`."""
    weights = {} if weight is None else {"weight": weight.to(dtype) + offset}
    weights |= {} if bias is None else {"bias": bias}
    return Op("", "layernorm" if center else "rmsnorm", weight is not None, bias is not None, residual=False), weights


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    """In which rows are computed, and their statistics are."""
    return torch.float64 if dtype is torch.float64 else torch.float32
