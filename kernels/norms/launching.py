"""Shared by both launches: checks of the tensors, the constants and the number of programs of the kernel."""

import ctypes
import functools
import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from . import plans, workspaces
from .plans import Plan

DTYPES = (torch.bfloat16, torch.float16, torch.float32)
# The kernels compute numbers of rows and the distance of two rows, in elements, in 32 bits.
MAX_STRIDE, MAX_ROWS = 1 << 31, (1 << 31) - plans.REGISTERS  # a tile has at most REGISTERS rows
# Of rows with two strides, heads are few and narrow: how many follow each other is a constant of the kernel.  Longer
# sequences with a gap between them would compile another kernel for each length: there it is an argument.  Wider rows
# are copied: they may have a team, which takes slabs of rows.
MAX_HEADS, MAX_HEAD_COLS, MAX_APART_COLS = 128, 256, 8192
RESERVED, SCRATCH = 1024, 4096  # bytes of shared memory of each program: for the system, and for reductions
WORDS_EACH = 2 * workspaces.RING  # of a workspace, for each program of a team: at most two values a step
NAMES = ", ".join(str(dtype).removeprefix("torch.") for dtype in DTYPES)
INTERPRETED_SMS = 3  # a few in the interpreter, so that tests go through loops


class Config(NamedTuple):
    """The compile-time constants of a kernel.  Those from ACC_ROWS to GROUP are for the backward pass."""

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
    LAUNCH_DEPENDENTS: bool | None = None  # the next kernel may start at once
    EARLY: bool = False  # it may start before the kernel before it ends
    HEADS: int = 1  # rows of a token, where rows of a tensor have two strides: then, in elements, the stride of tokens
    X_TOKENS: int = 0
    RESIDUAL_TOKENS: int = 0  # of the residual, or of its gradient
    DY_TOKENS: int = 0


def configure(x: Tensor, plan: plans.ForwardPlan, *, center: bool, offset: float, **others: Any) -> tuple[int, Config]:
    """(teams, constants of the kernel) of a launch over the rows of x, in the widest dtype of all rows.

    Raises ValueError as `programs_of`.
    """
    rows, cols = rows_of(x), x.shape[-1]
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
    leading: bool = False,
    mixed: bool = False,
) -> None:
    """Raises ValueError unless `rows` are like x, `columns` have one value a column and `each` one in fp32 a row.

    offset: added to the weight of `columns`.  leading: x may be [..., columns] instead of [rows, columns].  mixed:
    `rows` may have other dtypes than x.
    """
    each = each or {}
    if not (x.ndim == 2 or (leading and x.ndim)) or x.dtype not in DTYPES or x.shape[-1] == 0:
        shape = "[..., columns]" if leading else "[rows, columns]"
        raise ValueError(f"x must be {shape} in {NAMES}, with at least one column, not {_layout(x)}")
    if x.shape[-1] > 1 and x.stride(-1) != 1:
        raise ValueError(f"the elements of a row of x must be contiguous, not {_layout(x)}: call .contiguous()")
    if rows_of(x) > MAX_ROWS:
        raise ValueError(f"x has {rows_of(x)} rows; the kernels take at most {MAX_ROWS}")
    for name, tensor in rows.items():
        if tensor is not None and (
            tensor.shape != x.shape
            or tensor.dtype not in (DTYPES if mixed else (x.dtype,))
            or tensor.stride(-1) != 1 < x.shape[-1]
        ):
            raise ValueError(
                f"{name} must be like x, {tuple(x.shape)} in {NAMES if mixed else x.dtype} with contiguous rows, not "
                f"{_layout(tensor)}"
            )
    for name, tensor in columns.items():
        if tensor is not None and (
            tensor.shape != x.shape[-1:] or tensor.dtype not in DTYPES or not tensor.is_contiguous()
        ):
            raise ValueError(
                f"{name} must be contiguous in {NAMES}, one value for each of {x.shape[-1]} columns, not "
                f"{_layout(tensor)}"
            )
    for name, tensor in each.items():
        if tensor is not None and (
            tensor.shape != (rows_of(x),) or tensor.dtype is not torch.float32 or not tensor.is_contiguous()
        ):
            raise ValueError(
                f"{name} must be contiguous in float32, one value for each of {rows_of(x)} rows, not {_layout(tensor)}"
            )
    for name, tensor in {**rows, **columns, **each}.items():
        if tensor is not None:
            check_device(name, tensor, x)
    for name, tensor in {"x": x, **rows}.items():
        if tensor is not None and tensor.ndim == 2 and row_stride(tensor) >= MAX_STRIDE:
            raise ValueError(f"the stride of {name}'s rows must be less than 2^31 elements, not {row_stride(tensor)}")
    if offset and columns.get("weight") is None:
        raise ValueError("an offset is added to the weight: without a weight it must be 0")
    if x.is_cuda and x.device.index != (current := torch.cuda.current_device()):
        raise ValueError(
            f"x is on {x.device} and the current device is cuda:{current}: call this within `torch.cuda.device_of(x)`"
        )


def sum_dtype(dtype: torch.dtype, other: torch.dtype) -> torch.dtype:
    """torch.promote_types for the dtypes of rows; that is an op, which would be recorded."""
    if dtype is other:
        return dtype
    return torch.float64 if torch.float64 in (dtype, other) else torch.float32


def check_device(name: str, tensor: Tensor, x: Tensor) -> None:
    if tensor.device != x.device:
        raise ValueError(f"{name} is on {tensor.device} and x on {x.device}")


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


def aligned(*tensors: Tensor | None) -> list[Any]:
    """The tensors as `by_stride`, or dense copies where Triton's accesses to rows would be narrower than to dense rows.

    Other accesses would change the layout of a tile, and with it the order of its sums: a row would not have the same
    bits in every batch.  Triton distinguishes pointers to multiples of 16 bytes from all others, so a contiguous tensor
    that does not begin at one is copied as well, such as `x[1:]` with 3500 columns of 16 bits.  So is one whose tokens
    have other heads than those of the tensors before it.
    """
    found = [None if tensor is None else _aligned(tensor) for tensor in tensors]
    heads = heads_of(*found)
    if heads == 1:
        return found
    return [
        tensor if tensor is None or tensor.ndim == 2 or tensor.shape[1] == heads else tensor.flatten(0, 1)
        for tensor in found
    ]


def _aligned(tensor: Tensor) -> Tensor:
    rows = by_stride(tensor)
    unit = plans.access(rows.shape[-1], rows.element_size())
    fits = row_stride(rows) % unit == 0 and token_stride(rows) % unit == 0
    if unit == 1 or (fits and rows.data_ptr() % plans.VECTOR_BYTES == 0):
        return rows
    return rows.clone(memory_format=torch.contiguous_format).view(-1, rows.shape[-1])


def by_stride(tensor: Tensor) -> Tensor:
    """[rows, columns] of [..., columns]; [tokens, heads, columns] where these have two strides; a dense copy for more.

    More than MAX_APART_COLS columns and tokens that overlap are copied too.
    """
    cols = tensor.shape[-1]
    if tensor.ndim == 2:
        return tensor
    if tensor.is_contiguous():
        return tensor.view(-1, cols)
    evenly: list[tuple[int, int]] = []  # (rows, elements from one to the next), from the inside
    for size, stride in zip(reversed(tensor.shape[:-1]), reversed(tensor.stride()[:-1]), strict=True):
        if evenly and stride == math.prod(evenly[-1]):
            evenly[-1] = size * evenly[-1][0], evenly[-1][1]
        elif size != 1:
            evenly.append((size, stride))
    if len(evenly) > 2 or any(stride >= MAX_STRIDE for _, stride in evenly):
        return tensor.reshape(-1, cols).contiguous()  # a single stride may be too large
    if len(evenly) < 2:
        return tensor.view(-1, cols)
    (heads, apart), (_, tokens_apart) = evenly
    if cols > MAX_APART_COLS or tokens_apart < heads * apart:
        return tensor.reshape(-1, cols)
    return tensor.view(-1, heads, cols)


def rows_of(x: Tensor) -> int:
    return math.prod(x.shape[:-1])


def same_memory(given: tuple[Tensor | None, ...], taken: tuple[Tensor | None, ...]) -> bool:
    """Whether no tensor was copied."""
    pairs = zip(given, taken, strict=True)
    return all(one is None or other is None or one.data_ptr() == other.data_ptr() for one, other in pairs)


def heads_of(*tensors: Tensor | None) -> int:
    """Rows of a token of the tensors, from `aligned`, that have two strides; 1 if none has."""
    for tensor in tensors:  # every launch asks: a generator takes twice as long
        if tensor is not None and tensor.ndim > 2:
            return tensor.shape[1]
    return 1


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
    return tensor.stride(-2) if tensor.shape[-2] > 1 else tensor.shape[-1]


def token_stride(tensor: Tensor | None) -> int:
    """Elements from token to token; 0 for rows with one stride."""
    return tensor.stride(0) if tensor is not None and tensor.ndim > 2 else 0


def tokens_of(like: Tensor, plan: Plan, **tensors: Tensor | None) -> tuple[dict[str, int], tuple[int | None, ...]]:
    """How the rows of tensors from `aligned` have two strides, by the names in Config: (constants, arguments).

    like: as for `configure`.  Constants are for heads; the arguments of longer sequences are the rows of a token, and
    its stride in each tensor, divided by UNIT.  Raises ValueError for a team, whose rows have one stride.
    """
    heads, cols = heads_of(*tensors.values()), like.shape[-1]
    if plan.team > 1 and heads > 1:
        raise ValueError(f"{plan} has a team, whose rows have one stride: call .contiguous()")
    strides = {name: token_stride(tensor) for name, tensor in tensors.items()}
    if heads == 1 or (heads <= MAX_HEADS and cols <= MAX_HEAD_COLS):
        return {"HEADS": heads, **strides}, (None,) * (1 + len(strides))
    unit = plans.access(cols, like.element_size())
    return {}, (heads, *(stride // unit or None for stride in strides.values()))


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
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (9, 0) and _captures_early_starts()


@functools.cache
def _captures_early_starts() -> bool:
    """Whether the driver is of CUDA 12.3 or later; those before do not capture them in a graph."""
    version = ctypes.c_int()
    try:
        return workspaces.driver().cuDriverGetVersion(ctypes.byref(version)) != 0 or version.value >= 12030
    except OSError:  # no driver: only compiled
        return True


def _layout(tensor: Tensor) -> str:
    return f"{tuple(tensor.shape)} in {tensor.dtype} with strides {tensor.stride()}"
