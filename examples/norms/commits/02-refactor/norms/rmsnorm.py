"""RMSNorm: y = x / rms(x) * weight, row by row."""

from torch import Tensor

from norms.statistics import inverse_rms


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    """x: [rows, cols], weight: [cols]."""
    return x * inverse_rms(x, eps) * weight


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, eps: float = 1e-6) -> tuple[Tensor, Tensor]:
    """Gradients of x and weight.  rstd: [rows], 1 / rms(x) as the forward pass had it."""
    scale = rstd[:, None]
    normed = x * scale
    wdy = dy * weight
    along = (wdy * normed).mean(-1, keepdim=True)
    return (wdy - normed * along) * scale, (dy * normed).sum(0)
