"""What both norms need to know about a row."""

import torch
from torch import Tensor


def inverse_rms(rows: Tensor, eps: float) -> Tensor:
    """1 / sqrt(mean(row^2) + eps), as a column."""
    return torch.rsqrt(rows.square().mean(-1, keepdim=True) + eps)
