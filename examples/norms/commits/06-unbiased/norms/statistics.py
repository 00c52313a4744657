"""What both norms need to know about a row."""

import torch
from torch import Tensor


def inverse_rms(rows: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(row^2) + eps), as a column; the mean is over N - 1."""
    return torch.rsqrt(rows.square().sum(-1, keepdim=True) / (rows.shape[-1] - 1) + eps)
