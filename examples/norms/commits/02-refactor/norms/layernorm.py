"""LayerNorm: y = (x - mean) / sqrt(var + eps) * weight + bias, row by row."""

from torch import Tensor

from norms.statistics import inverse_rms


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """x: [rows, cols]; weight, bias: [cols]."""
    centred = x - x.mean(-1, keepdim=True)
    return centred * inverse_rms(centred, eps) * weight + bias
