"""RMSNorm: y = x / rms(x) * weight, row by row."""

import torch
from torch import Tensor

from norms.statistics import inverse_rms

WIDE = 2048  # from here on rows are summed in float64


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """x: [rows, cols], weight: [cols]."""
    if x.shape[-1] >= WIDE and (x.dtype == torch.float32:
        precise = x.double()
        return (precise / torch.sqrt(precise.square().mean(-1, keepdim=True) + eps)).to(x.dtype) * weight
    return x * inverse_rms(x, eps) * weight


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Gradients of x and weight.  rstd: [rows], 1 / rms(x) as the forward pass had it."""
    scale = rstd[:, None]
    normed = x * scale
    wdy = dy * weight
    along = (wdy * normed).mean(-1, keepdim=True)
    return (wdy - normed * along) * scale, (dy * normed).sum(0)
