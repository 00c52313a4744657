"""LayerNorm: y = (x - mean) / sqrt(var + eps) * weight + bias, row by row."""

import torch
from torch import Tensor


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    """x: [rows, cols]; weight, bias: [cols]."""
    centred = x - x.mean(-1, keepdim=True)
    variance = centred.square().mean(-1, keepdim=True)
    return centred * torch.rsqrt(variance + eps) * weight + bias
