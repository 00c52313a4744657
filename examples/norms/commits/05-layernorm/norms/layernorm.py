"""LayerNorm: y = (x - mean) / sqrt(var + eps) * weight + bias, row by row."""

import torch.nn.functional as F
from torch import Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """x: [rows, cols]; weight, bias: [cols]."""
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)
