"""Implementations of the ops: by the kernels, in plain torch, and as a fake that only returns shapes.

Each returns a list: forward y, then residual_out, mean and rstd if there are any; backward dx, dweight and dbias, and
dx once more in the dtype of dy if that is narrower.  Statistics are [rows] in fp32; for fp64, which only the definition
takes, in fp64.
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
from .launching import DTYPES, check_device, sum_dtype

BY_DEFINITION = (*DTYPES, torch.float64)
CAPABILITY = (8, 0)  # the lowest that Triton supports, and the first with bfloat16
# AMD GPUs, which torch calls cuda as well, take the definition: the kernels contain instructions of NVIDIA GPUs.
THROUGH_KERNELS = ("cuda",) * (torch.version.hip is None) + ("cpu",) * (os.environ.get("TRITON_INTERPRET") == "1")


class ForwardArguments(NamedTuple):
    """Of `norm_forward`."""

    x: Tensor  # [..., columns]
    weight: Tensor | None  # [columns]
    bias: Tensor | None  # [columns]
    residual: Tensor | None  # like x, in any dtype
    eps: float
    center: bool  # LayerNorm
    offset: float  # added to the weight
    statistics: bool  # return mean and rstd

    def check(self) -> None:
        _check(self.x, {"residual": self.residual}, {"weight": self.weight, "bias": self.bias}, self.offset)

    @property
    def sum_dtype(self) -> torch.dtype:
        """Of what is normalised."""
        return self.x.dtype if self.residual is None else sum_dtype(self.x.dtype, self.residual.dtype)


class BackwardArguments(NamedTuple):
    """Of `norm_backward`."""

    dy: Tensor  # like x, or in the narrower dtype of y
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
        if sum_dtype(self.dy.dtype, x.dtype) is not x.dtype:
            raise ValueError(f"dy must be like x, {x.dtype}, or narrower, not {self.dy.dtype}")
        if self.dresidual_out is not None and self.dresidual_out.dtype is not x.dtype:
            raise ValueError(f"dresidual_out must be like x, {x.dtype}, not {self.dresidual_out.dtype}")
        for name, tensor in (("rstd", self.rstd), ("mean", self.mean)):
            if tensor is None:
                continue
            check_device(name, tensor, x)
            if tensor.shape != (rows,) or tensor.dtype is not dtype:
                raise ValueError(
                    f"{name} must be {dtype}, one value for each of {rows} rows, not {tuple(tensor.shape)} in "
                    f"{tensor.dtype}"
                )
        if self.bias_dtype is not None and self.bias_dtype not in _accepted(x):
            raise _wrong_dtype("bias", self.bias_dtype, _accepted(x))


def forward_by_kernels(given: ForwardArguments) -> list[Tensor]:
    if not given.x.shape[-1]:
        return forward_by_definition(given)
    forward, _ = _kernels(given.x.device)
    out = forward(
        _rows(given.x), _dense(given.weight), _dense(given.bias), _rows(given.residual),
        eps=given.eps, center=given.center, offset=given.offset, statistics=given.statistics,
    )  # fmt: skip
    return [each for each in out if each is not None]


def backward_by_kernels(given: BackwardArguments) -> list[Tensor]:
    if not given.x.shape[-1]:
        return backward_by_definition(given)
    _, backward = _kernels(given.x.device)
    narrow_dx = None if given.dy.dtype is given.x.dtype else given.dy.new_empty(given.dy.shape)
    out = backward(
        _rows(given.dy), _rows(given.x), _dense(given.weight), _dense(given.rstd), _dense(given.mean),
        _rows(given.dresidual_out),
        bias_dtype=given.bias_dtype, weight_wanted=given.weight_wanted, offset=given.offset, narrow_dx=narrow_dx,
    )  # fmt: skip
    return [each for each in (*out, narrow_dx) if each is not None]


@torch.no_grad()  # as through the kernels: only the op `norm` is differentiable
def forward_by_definition(given: ForwardArguments) -> list[Tensor]:
    x, residual, dtype = given.x, given.residual, _compute_dtype(given.sum_dtype)
    op, weights = _definition(given.center, given.weight, given.bias, given.offset, dtype)
    total = x if residual is None else (x.to(dtype) + residual.to(dtype)).to(given.sum_dtype)
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
    flat, rstd = (given.rstd.shape[0], x.shape[-1]), given.rstd[:, None]
    rows, dy = (each.reshape(flat).to(dtype) for each in (x, given.dy))
    x_hat = (rows if mean is None else rows - mean[:, None]) * rstd
    dx = references.gradient(op, references.sloped(op, dy, weights), x_hat, rstd).view(x.shape)
    if given.dresidual_out is not None:
        dx = dx + given.dresidual_out.to(dtype)
    gradients = [dx.to(x.dtype).contiguous()]
    if weight is not None and given.weight_wanted:
        gradients.append((dy * x_hat).sum(0).to(weight.dtype))
    if given.bias_dtype is not None:
        gradients.append(dy.sum(0).to(given.bias_dtype))
    if given.dy.dtype is not x.dtype:
        gradients.append(dx.to(given.dy.dtype).contiguous())
    return gradients


def forward_fake(given: ForwardArguments) -> list[Tensor]:
    x = given.x
    outputs = [x.new_empty(x.shape)]
    if given.residual is not None:
        outputs.append(x.new_empty(x.shape, dtype=given.sum_dtype))
    statistics, dtype = range((1 + given.center) * given.statistics), _compute_dtype(given.sum_dtype)
    return outputs + [x.new_empty(math.prod(x.shape[:-1]), dtype=dtype) for _ in statistics]


def backward_fake(given: BackwardArguments) -> list[Tensor]:
    gradients = [given.x.new_empty(given.x.shape)]
    if given.weight is not None and given.weight_wanted:
        gradients.append(given.weight.new_empty(given.weight.shape))
    if given.bias_dtype is not None:
        gradients.append(given.x.new_empty(given.x.shape[-1], dtype=given.bias_dtype))
    if given.dy.dtype is not given.x.dtype:
        gradients.append(given.dy.new_empty(given.x.shape))
    return gradients


OPS = {
    "norm_forward": (ForwardArguments, forward_by_kernels, forward_by_definition, forward_fake),
    "norm_backward": (BackwardArguments, backward_by_kernels, backward_by_definition, backward_fake),
}


def _check(x: Tensor, rows: Mapping[str, Tensor | None], columns: Mapping[str, Tensor | None], offset: float) -> None:
    """Check what all devices and leading shapes need; `launching.check` checks the layout of [rows, columns]."""
    shape, accepted = x.shape, _accepted(x)
    if not shape:
        raise ValueError("x must be [..., columns], not a single number")
    for name, tensor in {"x": x, **rows}.items():
        if tensor is None:
            continue
        check_device(name, tensor, x)
        if tensor.dtype not in accepted:
            raise _wrong_dtype(name, tensor.dtype, accepted)
        if tensor.shape != shape:
            raise ValueError(f"{name} must be like x, {tuple(shape)}, not {tuple(tensor.shape)}")
    for name, tensor in columns.items():
        if tensor is None:
            continue
        check_device(name, tensor, x)
        if tensor.dtype not in accepted:
            raise _wrong_dtype(name, tensor.dtype, accepted)
        if tensor.shape != shape[-1:]:
            raise ValueError(
                f"{name} must have one value for each of x's {shape[-1]} columns, not {tuple(tensor.shape)}"
            )
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
