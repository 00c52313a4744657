"""How kernels are launched: warps by the width of a row, programs by the device."""

from functools import lru_cache

import torch


def forward_warps(block):
    if block <= 4096:
        return 4
    if block <= 8192:
        return 8
    return 16


def backward_warps(block):
    return 4 if block <= 1024 else 8


@lru_cache(None)
def multiprocessors(index):
    return torch.cuda.get_device_properties(index).multi_processor_count


def backward_programs(x):
    """Programs of a backward pass: each walks over many rows and keeps one partial sum of the weight's gradient."""
    return min(x.shape[0], 2 * multiprocessors(x.device.index))
