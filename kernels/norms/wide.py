"""Rows of a team without an exchange: a pass before computes each member's sums, and the kernel reads them.

The exchange needs all programs of a launch to run at the same time.  Triton's interpreter runs one after the other, a
device may have fewer places than a team has members, and part of a device (MIG, MPS) may refuse a cooperative launch.
Forward, a member's sums are the mean and the squares around it of its own columns, merged by the kernel (Chan, Golub
and LeVeque, 1979), so that the variance is as exact as in one piece.  What the first pass reads the second reads again:
forward in slabs of rows that stay in the L2 in between, backward in one slab, since each launch has parts of dweight.
"""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import warnings
from collections.abc import Callable, Iterator

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import processors, row_stride, vector
from .plans import ForwardPlan
from .tiles import columns_of, load_rows

OF_L2 = 2  # half of the L2 for what is read again: what is written passes through it as well
ALIGNED = 4  # rows: a slab's statistics, in fp32, begin at multiples of 16 bytes
INTERPRETED_L2 = 1 << 14  # bytes, so that tests go through several slabs
# What the driver says (CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE, CUDA_ERROR_NOT_SUPPORTED); neither harms the context.
REFUSALS = ("too many blocks in cooperative launch", "operation not supported")

_refused: set[tuple[torch.device, ForwardPlan]] = set()


def in_one_pass(launch: Callable[[], None], device: torch.device, plan: ForwardPlan) -> bool:
    """Launch, where a row has one program or its team can exchange sums.  Was it launched?

    A device that refuses to run all programs at the same time is not asked for this plan again, and that is told.
    """
    if plan.team > 1:
        places = max(1, plan.programs) * processors(device)
        if not plan.exchange or device.type != "cuda" or plan.team > places or (device, plan) in _refused:
            return False
    try:
        launch()
    except RuntimeError as error:
        if plan.team == 1 or not any(words in str(error) for words in REFUSALS):
            raise
        _refused.add((device, plan))
        warnings.warn(f"{device} refused a cooperative launch ({error}): two passes instead for {plan}", stacklevel=2)
        return False
    return True


def slabs(x: Tensor, residual: Tensor | None) -> Iterator[slice]:
    """The rows in pieces that stay in the L2 between two passes."""
    device = x.device
    l2 = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else INTERPRETED_L2
    row_bytes = x.shape[1] * x.element_size() * (1 if residual is None else 2)
    step = max(1, l2 // OF_L2 // row_bytes // ALIGNED) * ALIGNED
    for first in range(0, x.shape[0], step):
        yield slice(first, first + step)


def forward_sums(x: Tensor, residual: Tensor | None, center: bool, plan: ForwardPlan) -> Tensor:
    """[2, rows, team] in fp32, of each member's columns: the mean (LayerNorm), and the squares around it (or zero)."""
    rows, cols = x.shape
    unit = vector(x, residual)
    sums = x.new_empty(2, rows, plan.team, dtype=torch.float32)
    _forward_sums[(rows * plan.team,)](
        x, residual, sums, rows, row_stride(x) // unit, row_stride(residual) // unit,
        COLS=cols, CENTER=center, BLOCK=plan.block, TEAM=plan.team, UNIT=unit, PART=plan.block * plan.team != cols,
        num_warps=plan.warps,
    )  # fmt: skip
    return sums


def backward_sums(
    dy: Tensor, x: Tensor, weight: Tensor | None, mean: Tensor | None, rstd: Tensor, offset: float, plan: ForwardPlan
) -> Tensor:
    """[2, rows, team] in fp32, of each member's columns: the sum of g (LayerNorm), and that of n * g."""
    rows, cols = x.shape
    unit = vector(dy, x)
    sums = x.new_empty(2, rows, plan.team, dtype=torch.float32)
    _backward_sums[(rows * plan.team,)](
        dy, x, weight, mean, rstd, sums, rows, row_stride(dy) // unit, row_stride(x) // unit,
        COLS=cols, OFFSET=offset, BLOCK=plan.block, TEAM=plan.team, UNIT=unit, PART=plan.block * plan.team != cols,
        num_warps=plan.warps,
    )  # fmt: skip
    return sums


@triton.jit(do_not_specialize=["M"])
def _forward_sums(
    X, RESIDUAL, SUMS, M, x_stride, residual_stride,
    COLS: tl.constexpr, CENTER: tl.constexpr, BLOCK: tl.constexpr, TEAM: tl.constexpr, UNIT: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0) % TEAM
    rows = tl.program_id(0) // TEAM + tl.arange(0, 1)
    cols = member * BLOCK + tl.arange(0, BLOCK)
    raw = load_rows(X, rows, x_stride * UNIT, cols, M, COLS, PART, True)
    if RESIDUAL is not None:
        added = load_rows(RESIDUAL, rows, residual_stride * UNIT, cols, M, COLS, PART, True)
        raw = (raw.to(tl.float32) + added.to(tl.float32)).to(raw.dtype)
    x = raw.to(tl.float32)
    at = rows.to(tl.int64) * TEAM + member
    if CENTER:
        mean = tl.sum(x, 1) / tl.maximum(_columns(member, COLS, BLOCK), 1)
        x -= mean[:, None]
        if PART:
            x = tl.where((cols < COLS)[None, :], x, 0.0)
        tl.store(SUMS + at, mean)
    tl.store(SUMS + M.to(tl.int64) * TEAM + at, tl.sum(x * x, 1))


@triton.jit(do_not_specialize=["M"])
def _backward_sums(
    DY, X, W, MEAN, RSTD, SUMS, M, dy_stride, x_stride,
    COLS: tl.constexpr, OFFSET: tl.constexpr, BLOCK: tl.constexpr, TEAM: tl.constexpr, UNIT: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    member = tl.program_id(0) % TEAM
    rows = tl.program_id(0) // TEAM + tl.arange(0, 1)
    cols = member * BLOCK + tl.arange(0, BLOCK)
    n = load_rows(X, rows, x_stride * UNIT, cols, M, COLS, PART, True).to(tl.float32)
    g = load_rows(DY, rows, dy_stride * UNIT, cols, M, COLS, PART, True).to(tl.float32)
    if MEAN is not None:
        n -= tl.load(MEAN + rows)[:, None]
    n *= tl.load(RSTD + rows)[:, None]
    if W is not None:
        g *= columns_of(W, cols, COLS, PART, 1).to(tl.float32) + OFFSET
    at = rows.to(tl.int64) * TEAM + member
    if MEAN is not None:
        tl.store(SUMS + at, tl.sum(g, 1))
    tl.store(SUMS + M.to(tl.int64) * TEAM + at, tl.sum(n * g, 1))


@triton.jit
def merged_statistics(
    SUMS, rows, M, eps, COLS: tl.constexpr, CENTER: tl.constexpr, BLOCK: tl.constexpr, TEAM: tl.constexpr
):
    """(mean, rstd) of each row from what `forward_sums` gave for its members."""
    SQUARES = SUMS + M.to(tl.int64) * TEAM
    mean = tl.zeros_like(rows).to(tl.float32)
    if CENTER:
        for member in tl.static_range(TEAM):
            mean += _of_member(SUMS, rows, M, member, TEAM) * _columns(member, COLS, BLOCK)
        mean /= COLS
    squares = _of_member(SQUARES, rows, M, 0, TEAM)
    for member in tl.static_range(1, TEAM):
        squares += _of_member(SQUARES, rows, M, member, TEAM)
    if CENTER:
        for member in tl.static_range(TEAM):
            apart = _of_member(SUMS, rows, M, member, TEAM) - mean
            squares += apart * apart * _columns(member, COLS, BLOCK)
    return mean, tl.rsqrt(squares / COLS + eps)


@triton.jit
def of_all(SUMS, rows, M, TEAM: tl.constexpr):
    """[rows]: what `backward_sums` gave for the members of each row, added up in the order of the members."""
    total = _of_member(SUMS, rows, M, 0, TEAM)
    for member in tl.static_range(1, TEAM):
        total += _of_member(SUMS, rows, M, member, TEAM)
    return total


@triton.jit
def _of_member(P, rows, M, member, TEAM: tl.constexpr):
    """[rows].  One member after the other: of a small matrix Triton would take the layout for the rows as well."""
    return tl.load(P + rows.to(tl.int64) * TEAM + member, rows < M, other=0.0)


@triton.jit
def _columns(member, COLS: tl.constexpr, BLOCK: tl.constexpr):
    """How many columns a member has: none where the team is wider than the row."""
    return tl.minimum(tl.maximum(COLS - member * BLOCK, 0), BLOCK)
