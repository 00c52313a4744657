"""RMSNorm and LayerNorm for use in a model: functions, and drop-in replacements for the modules of torch.nn.

y = (x - mean) / sqrt(var + eps) * (weight + offset) + bias over the last dimension, computed in fp32 and rounded once;
x includes the residual, if there is one.  RMSNorm has var = mean(x^2) and no mean.
RMSNorm is Zhang and Sennrich (2019), LayerNorm is Ba, Kiros and Hinton (2016).
"""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from .operators import norm

EPS, EPS_OF_FP64 = torch.finfo(torch.float32).eps, torch.finfo(torch.float64).eps


def rms_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float,
    offset: float = 0.0,
) -> Any:
    """y, like x, [..., columns]; with a residual (y, x + residual), and y is the norm of that rounded sum.

    weight, bias: [columns], in bfloat16, float16 or float32, whatever the dtype of x.  offset: added to the weight.
    Raises ValueError if the tensors do not fit together, for an offset without a weight, and on a GPU for a dtype that
    the kernels do not take.
    """
    return _result(norm(x, weight, bias, residual, eps, False, offset), residual)


def layer_norm(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float,
    offset: float = 0.0,
) -> Any:
    """As `rms_norm`, but the mean of each row is subtracted first."""
    return _result(norm(x, weight, bias, residual, eps, True, offset), residual)


class _WithOffset(nn.Module):
    """Shared by both modules: the weight begins at 1 - offset."""

    weight: Any
    offset: float

    def reset_parameters(self) -> None:
        super().reset_parameters()  # type: ignore[misc]  # of torch's module, which follows
        if self.weight is not None and self.offset:
            nn.init.constant_(self.weight, 1 - self.offset)

    def extra_repr(self) -> str:
        return super().extra_repr() + (f", offset={self.offset}" if self.offset else "")


class RMSNorm(_WithOffset, nn.RMSNorm):
    """torch.nn.RMSNorm with an offset (the weight begins at 1 - offset) and, when called, a residual.

    x is [..., *normalized_shape].  eps=None is the machine epsilon of fp32, of fp64 if x is fp64.  Differs from torch
    under autocast, which casts nothing here.
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

    def forward(self, x: Tensor, residual: Tensor | None = None) -> Any:
        """y, or with a residual (y, x + residual)."""
        eps = self.eps
        if eps is None:
            eps = EPS_OF_FP64 if x.dtype is torch.float64 else EPS
        return _apply(self, x, residual, None, eps, False)


class LayerNorm(_WithOffset, nn.LayerNorm):
    """torch.nn.LayerNorm with an offset (the weight begins at 1 - offset) and, when called, a residual.

    The input is [..., *normalized_shape].  Differs from torch under autocast, which casts nothing here.
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

    def forward(self, input: Tensor, residual: Tensor | None = None) -> Any:  # torch's name for it
        """y, or with a residual (y, input + residual)."""
        return _apply(self, input, residual, self.bias, self.eps, True)


def _apply(
    module: RMSNorm | LayerNorm, x: Tensor, residual: Tensor | None, bias: Tensor | None, eps: float, center: bool
) -> Any:
    """Normalise over the last dimensions, flattened into one.  Raises ValueError for another shape."""
    shape = module.normalized_shape
    if x.shape[-len(shape) :] != shape:
        raise ValueError(f"the input must be [..., {', '.join(map(str, shape))}], not {tuple(x.shape)}")
    if len(shape) == 1:
        return _result(norm(x, module.weight, bias, residual, eps, center, module.offset), residual)
    if residual is not None and residual.shape != x.shape:  # flattened, they could be alike
        raise ValueError(f"the residual must be like the input, {tuple(x.shape)}, not {tuple(residual.shape)}")

    def flat(tensor: Any) -> Any:
        return None if tensor is None else tensor.flatten(-len(shape))

    outputs = norm(flat(x), flat(module.weight), flat(bias), flat(residual), eps, center, module.offset)
    return _result(tuple(output.view(x.shape) for output in outputs), residual)


def _result(outputs: tuple[Tensor, ...], residual: Tensor | None) -> Any:
    return outputs[0] if residual is None else (outputs[0], outputs[1])


def _with_weight(offset: float, elementwise_affine: bool) -> float:
    if offset and not elementwise_affine:
        raise ValueError("an offset is added to the weight: with elementwise_affine=False it must be 0")
    return offset
