"""What every launch asks first: do the tensors fit together, how wide may an access be, how many programs."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from . import workspaces
from .plans import Plan

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
RESERVED, SCRATCH = 1024, 4096  # bytes of shared memory: the system's, of each program, and what sums go through
WORDS_EACH = 2 * workspaces.RING  # for each program of a team, which tells at most two values a step
VECTOR_BYTES = 16  # the widest access of a thread
INTERPRETED_SMS = 3  # a handful in the interpreter, so that tests go through loops


def check(
    x: Tensor,
    rows: Mapping[str, Tensor | None],
    columns: Mapping[str, Tensor | None],
    each: Mapping[str, Tensor | None] | None = None,
) -> None:
    """Raises ValueError: `rows` must be like x, `columns` have one value a column and `each` one in fp32 a row."""
    each = each or {}
    if x.ndim != 2 or x.dtype not in DTYPES or x.shape[1] == 0 or (x.shape[1] > 1 and x.stride(1) != 1):
        raise ValueError(
            f"x must be [rows, columns] in {', '.join(str(d).removeprefix('torch.') for d in DTYPES)} with dense rows, "
            f"not {tuple(x.shape)} in {x.dtype} with strides {x.stride()}; call .contiguous() for dense rows"
        )
    for name, tensor in rows.items():
        if tensor is not None and (
            tensor.shape != x.shape or tensor.dtype != x.dtype or tensor.stride(1) != 1 < x.shape[1]
        ):
            raise ValueError(
                f"{name} must be like x, {tuple(x.shape)} in {x.dtype} with dense rows, not {_told(tensor)}"
            )
    for name, tensor in columns.items():
        if tensor is not None and (
            tensor.shape != x.shape[1:] or tensor.dtype not in DTYPES or not tensor.is_contiguous()
        ):
            raise ValueError(f"{name} must be dense, one value for each of {x.shape[1]} columns, not {_told(tensor)}")
    for name, tensor in each.items():
        if tensor is not None and (
            tensor.shape != x.shape[:1] or tensor.dtype is not torch.float32 or not tensor.is_contiguous()
        ):
            raise ValueError(f"{name} must be dense fp32, one value for each of {x.shape[0]} rows, not {_told(tensor)}")
    for name, tensor in {**rows, **columns, **each}.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device} and x on {x.device}")


@functools.cache
def fitting(plan: Plan, device: torch.device, size: int, tensors: int) -> Plan:
    """With fewer stages where there is not the shared memory for them; `tensors` are read of each tile.

    What was chosen on an H200 asks for more than some devices have, and for more of it where x is fp32.
    """
    if device.type != "cuda":
        return plan
    has: Any = torch.cuda.get_device_properties(device)
    limit = has.shared_memory_per_block_optin
    if plan.team > 1:  # all at once
        limit = min(limit, has.shared_memory_per_multiprocessor // max(1, plan.programs) - RESERVED)
    stage = plan.rows * plan.block * size * tensors * (2 if plan.keep == "cached" else 1)
    return replace(plan, stages=max(1, min(plan.stages, 1 + (limit - SCRATCH) // stage)))


def vector(*tensors: Tensor | None) -> int:
    """Elements: rows begin at multiples of so many, and the kernel is told; Triton itself only sees multiples of 16."""
    present = [tensor for tensor in tensors if tensor is not None]
    unit = VECTOR_BYTES // present[0].element_size()
    while any(row_stride(tensor) % unit for tensor in present):
        unit //= 2
    return unit


def row_stride(tensor: Tensor | None) -> int:
    """Elements from row to row; of a lone row, whose stride means nothing, as if it were dense."""
    if tensor is None:
        return 0
    return tensor.stride(0) if tensor.shape[0] > 1 else tensor.shape[1]


def programs_of(x: Tensor, tiles: int, plan: Any) -> tuple[int, bool]:
    """(teams, whether each goes through several tiles)."""
    if plan.team > 1 and (plan.rows > 1 or plan.team > 32 * plan.warps or plan.block * (plan.team - 1) >= x.shape[1]):
        raise ValueError(f"a team has one row at a time, a thread and some columns for each member: not {plan}")
    if not plan.programs:
        return tiles, False
    most = max(1, plan.programs * processors(x.device) // (plan.team * plan.ctas))
    if most * plan.team * WORDS_EACH > workspaces.WORDS - workspaces.SLOTS:
        raise ValueError(f"{plan} is more programs than there are words for them to meet")
    return min(tiles, most), True


def processors(device: torch.device) -> int:
    """SMs of the device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else INTERPRETED_SMS


def starts_early(device: torch.device) -> bool:
    """Can a kernel be launched before the one that it waits for has ended (programmatic dependent launch, Hopper)?"""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _told(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} in {tensor.dtype} with strides {tensor.stride()}"
