"""Shared by both launches: checks of the tensors, and the constants and number of programs of the kernel."""

import functools
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from . import plans, workspaces
from .plans import Plan

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# The kernels compute numbers of rows and the distance of two rows, in elements, in 32 bits.
MAX_STRIDE, MAX_ROWS = 1 << 31, (1 << 31) - plans.REGISTERS  # a tile has at most REGISTERS rows
RESERVED, SCRATCH = 1024, 4096  # bytes of shared memory of each program: for the system, and for reductions
WORDS_EACH = 2 * workspaces.RING  # of a workspace, for each program of a team: at most two values a step
NAMES = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
INTERPRETED_SMS = 3  # a few in the interpreter, so that tests go through loops


class Config(NamedTuple):
    """The compile-time constants of a kernel.  The last four are for the backward pass."""

    COLS: int  # of a row
    CENTER: bool  # LayerNorm
    OFFSET: float  # added to the weight
    ROWS: int  # of a tile
    BLOCK: int  # columns of a tile
    TEAM: int  # programs that share a row
    UNIT: int  # elements: the widest access; strides are passed divided by it, so that the compiler knows it
    MASKED: bool  # some tiles go beyond the rows or columns
    WEIGHTS: plans.Weights
    KEEP: plans.Keep
    PERSISTENT: bool  # each program goes through several tiles
    STAGES: int  # of the software pipeline
    THREADS: int  # of a program
    BLOCKS: int  # that a program reads one after the other for each row
    ACC_ROWS: int | None = None  # rows of the accumulators of dw and db, reduced to one at the end
    FUSED: bool | None = None  # the last program to arrive adds up the partial sums
    GROUP: int | None = None  # teams of a group of the tree; 0: no tree
    LAUNCH_DEPENDENTS: bool | None = None  # the summing kernel may start


def configure(x: Tensor, plan: plans.ForwardPlan, *, center: bool, offset: float, **others: Any) -> tuple[int, Config]:
    """(teams, constants of the kernel) of a launch over the rows of x.  Raises ValueError as `programs_of`."""
    rows, cols = x.shape
    teams, persistent = programs_of(x.device, -(-rows // plan.rows), plan)
    return teams, Config(
        COLS=cols,
        CENTER=center,
        OFFSET=offset,
        ROWS=plan.rows,
        BLOCK=plan.block,
        TEAM=plan.team,
        UNIT=plans.access(cols, x.element_size()),
        MASKED=plan.span * plan.team != cols or rows % plan.rows != 0,
        WEIGHTS=plan.weights,
        KEEP=plan.keep_of(x.element_size(), x.is_cuda),
        PERSISTENT=persistent,
        STAGES=plan.stages,
        THREADS=32 * plan.warps,
        BLOCKS=plan.blocks,
        **others,
    )


def check(
    x: Tensor,
    rows: Mapping[str, Tensor | None],
    columns: Mapping[str, Tensor | None],
    each: Mapping[str, Tensor | None] | None = None,
    offset: float = 0.0,
) -> None:
    """Raises ValueError unless `rows` are like x, `columns` have one value a column and `each` one in fp32 a row.

    offset: added to the weight of `columns`.
    """
    each = each or {}
    if x.ndim != 2 or x.dtype not in DTYPES or x.shape[1] == 0:
        raise ValueError(f"x must be [rows, columns] in {NAMES}, with at least one column, not {_layout(x)}")
    if x.shape[1] > 1 and x.stride(1) != 1:
        raise ValueError(f"the elements of a row of x must be contiguous, not {_layout(x)}: call .contiguous()")
    if x.shape[0] > MAX_ROWS:
        raise ValueError(f"x has {x.shape[0]} rows; the kernels take at most {MAX_ROWS}")
    for name, tensor in rows.items():
        if tensor is not None and (
            tensor.shape != x.shape or tensor.dtype != x.dtype or tensor.stride(1) != 1 < x.shape[1]
        ):
            raise ValueError(
                f"{name} must be like x, {tuple(x.shape)} in {x.dtype} with contiguous rows, not {_layout(tensor)}"
            )
    for name, tensor in columns.items():
        if tensor is not None and (
            tensor.shape != x.shape[1:] or tensor.dtype not in DTYPES or not tensor.is_contiguous()
        ):
            raise ValueError(
                f"{name} must be contiguous in {NAMES}, one value for each of {x.shape[1]} columns, not "
                f"{_layout(tensor)}"
            )
    for name, tensor in each.items():
        if tensor is not None and (
            tensor.shape != x.shape[:1] or tensor.dtype is not torch.float32 or not tensor.is_contiguous()
        ):
            raise ValueError(
                f"{name} must be contiguous in float32, one value for each of {x.shape[0]} rows, not {_layout(tensor)}"
            )
    for name, tensor in {**rows, **columns, **each}.items():
        if tensor is not None and tensor.device != x.device:
            raise ValueError(f"{name} is on {tensor.device} and x on {x.device}")
    for name, tensor in {"x": x, **rows}.items():
        if row_stride(tensor) >= MAX_STRIDE:
            raise ValueError(f"the stride of {name}'s rows must be less than 2^31 elements, not {row_stride(tensor)}")
    if offset and columns.get("weight") is None:
        raise ValueError("an offset is added to the weight: without a weight it must be 0")
    if x.is_cuda and x.device.index != (current := torch.cuda.current_device()):
        raise ValueError(
            f"x is on {x.device} and the current device is cuda:{current}: call this within `torch.cuda.device_of(x)`"
        )


@functools.cache
def fitting(plan: Plan, cols: int, device: torch.device, size: int, tensors: int) -> Plan:
    """The plan with fewer stages where the device has too little shared memory for them.

    Raises ValueError for a plan that the kernels do not accept for rows of `cols` columns.

    size: bytes of an element.  tensors: how many are read for each tile.  The plans were measured on an H200, which has
    more shared memory than some devices, and with 16-bit elements.
    """
    if wrong := plans.problem(plan, cols):
        raise ValueError(f"{plan} is not valid for {cols} columns: {wrong}")
    if device.type != "cuda":
        return plan
    properties: Any = torch.cuda.get_device_properties(device)
    limit = properties.shared_memory_per_block_optin
    if plan.team > 1:  # all programs are resident at once
        limit = min(limit, properties.shared_memory_per_multiprocessor // max(1, plan.programs) - RESERVED)
    stage = plan.rows * plan.block * size * tensors * (2 if plan.keep == "cached" else 1)
    return replace(plan, stages=max(1, min(plan.stages, 1 + (limit - SCRATCH) // stage)))


@overload
def aligned(tensor: Tensor) -> Tensor: ...
@overload
def aligned(tensor: Tensor | None) -> Tensor | None: ...
def aligned(tensor: Tensor | None) -> Tensor | None:
    """The tensor, or a dense copy of it if Triton's accesses to its rows would be narrower than to a new dense tensor.

    Other accesses would change the layout of a tile, and with it the order of its sums: a row would not have the same
    bits in every batch.  Triton distinguishes pointers to multiples of 16 bytes from all others, so a contiguous tensor
    that does not begin at one is copied as well, such as `x[1:]` with 3500 columns of 16 bits.
    """
    if tensor is None:
        return None
    unit = plans.access(tensor.shape[1], tensor.element_size())
    if unit == 1 or (row_stride(tensor) % unit == 0 and tensor.data_ptr() % plans.VECTOR_BYTES == 0):
        return tensor
    return tensor.clone(memory_format=torch.contiguous_format)


def vector(*tensors: Tensor | None) -> int:
    """Elements: the largest power of two up to the widest access to dense rows that divides all row strides."""
    present = [tensor for tensor in tensors if tensor is not None]
    unit = plans.access(present[0].shape[1], present[0].element_size())
    while any(row_stride(tensor) % unit for tensor in present):
        unit //= 2
    return unit


def row_stride(tensor: Tensor | None) -> int:
    """Elements from row to row; for a single row, whose stride means nothing, its length."""
    if tensor is None:
        return 0
    return tensor.stride(0) if tensor.shape[0] > 1 else tensor.shape[1]


def programs_of(device: torch.device, tiles: int, plan: plans.ForwardPlan) -> tuple[int, bool]:
    """(teams, whether they are persistent: each goes through several tiles).

    Raises ValueError for more programs than a workspace has words for.
    """
    if not plan.programs:
        return tiles, False
    teams = max(1, plan.programs * processors(device) // plan.team)
    limit = (workspaces.WORDS - workspaces.SLOTS) // WORDS_EACH
    if teams * plan.team > limit:
        raise ValueError(f"{plan} launches {teams * plan.team} programs; a workspace has slots for {limit}")
    return min(tiles, teams), True


@functools.cache
def processors(device: torch.device) -> int:
    """SMs of the device."""
    return torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else INTERPRETED_SMS


def starts_early(device: torch.device) -> bool:
    """Whether the device has programmatic dependent launch: a kernel starts before the one that it waits for ends."""
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0)


def _layout(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} in {tensor.dtype} with strides {tensor.stride()}"
