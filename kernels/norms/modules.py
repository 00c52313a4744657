"""RMSNorm and LayerNorm for use in a model: functions, and modules that drop in for torch.nn's.

y = (x [+ residual] [- mean]) / sqrt(mean of squares + eps) * (weight + offset) + bias over the last dimension, in fp32
and rounded once.  RMSNorm is Zhang and Sennrich's (2019), LayerNorm that of Ba, Kiros and Hinton (2016).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .operators import norm


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float,
    offset: float = 0.0,
) -> Any:
    """y like x, [..., columns]; with a residual (y, x + residual), where the norm is of that sum as it is rounded.

    weight and bias are [columns], in bfloat16, float16 or float32 whatever x is in; the offset is added to the weight.
    Raises ValueError for tensors that do not fit together, for an offset without a weight, and on a GPU for tensors
    that its kernels do not take.
    """
    outputs = norm(x, weight, bias, residual, eps, False, offset)
    return outputs[0] if residual is None else (outputs[0], outputs[1])


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float,
    offset: float = 0.0,
) -> Any:
    """As `rms_norm`, after each row's mean is taken away."""
    outputs = norm(x, weight, bias, residual, eps, True, offset)
    return outputs[0] if residual is None else (outputs[0], outputs[1])


class RMSNorm(nn.RMSNorm):
    """torch.nn.RMSNorm with an offset (the weight begins at 1 - offset) and, when called, a residual.

    x is [..., *normalized_shape].  eps=None is the smallest step of fp32 near 1, of fp64 where x is in it.  Differs
    from torch's under autocast, which casts nothing here.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float | None = None,
        elementwise_affine: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        offset: float = 0.0,
    ) -> None:
        self.offset = _with_weight(offset, elementwise_affine)  # before the parameters are set
        super().__init__(normalized_shape, eps, elementwise_affine, device, dtype)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        _less(self.weight, self.offset)

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """y, or with a residual (y, x + residual)."""
        eps = self.eps
        if eps is None:
            eps = torch.finfo(torch.float64 if x.dtype is torch.float64 else torch.float32).eps
        return _over(self, x, residual, None, eps, False)

    def extra_repr(self) -> str:
        return super().extra_repr() + _told(self.offset)


class LayerNorm(nn.LayerNorm):
    """torch.nn.LayerNorm with an offset (the weight begins at 1 - offset) and, when called, a residual.

    The input is [..., *normalized_shape].  Differs from torch's under autocast, which casts nothing here.
    """

    def __init__(
        self,
        normalized_shape: int | Sequence[int],
        eps: float = 1e-5,
        elementwise_affine: bool = True,
        bias: bool = True,
        device: Any = None,
        dtype: torch.dtype | None = None,
        *,
        offset: float = 0.0,
    ) -> None:
        self.offset = _with_weight(offset, elementwise_affine)  # before the parameters are set
        super().__init__(normalized_shape, eps, elementwise_affine, bias, device, dtype)

    def reset_parameters(self) -> None:
        super().reset_parameters()
        _less(self.weight, self.offset)

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:  # torch's name for it
        """y, or with a residual (y, input + residual)."""
        return _over(self, input, residual, self.bias, self.eps, True)

    def extra_repr(self) -> str:
        return super().extra_repr() + _told(self.offset)


def _over(
    module: RMSNorm | LayerNorm, x: Tensor, residual: Tensor | None, bias: Tensor | None, eps: float, center: bool
) -> Any:
    """The last dimensions as one."""
    shape = module.normalized_shape
    if x.shape[-len(shape) :] != shape:
        raise ValueError(f"the input must be [..., {', '.join(map(str, shape))}], not {tuple(x.shape)}")
    tensors: list[Any] = [x, module.weight, bias, residual]
    if len(shape) > 1:
        tensors = [None if each is None else each.flatten(-len(shape)) for each in tensors]
    flat, weight, bias, residual = tensors
    outputs = norm(flat, weight, bias, residual, eps, center, module.offset)
    if len(shape) > 1:
        outputs = tuple(output.view(x.shape) for output in outputs)
    return outputs[0] if residual is None else (outputs[0], outputs[1])


def _with_weight(offset: float, elementwise_affine: bool) -> float:
    if offset and not elementwise_affine:
        raise ValueError("an offset is added to the weight: with elementwise_affine=False it must be 0")
    return offset


def _less(weight: Tensor | None, offset: float) -> None:
    if weight is not None and offset:
        nn.init.constant_(weight, 1 - offset)


def _told(offset: float) -> str:
    return f", offset={offset}" if offset else ""
