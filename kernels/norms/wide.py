"""Rows of a team in two passes: a first kernel computes the sums of each program's columns, and the second reads them.

The exchange within one pass needs all programs of a launch to run at the same time.  Triton's interpreter runs them one
after the other, a device may have room for fewer programs than a team has, and a part of a device (MIG, MPS) may refuse
a cooperative launch.  Forward, the partial sums are a mean and the squares around it, which the second pass merges as
Chan, Golub and LeVeque (1979) do, so the variance is as accurate as in one pass.  Both passes read the same rows:
forward in slabs of rows that stay in the L2 cache in between, backward all at once, since dweight is one sum.
"""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN201, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

import warnings
from collections.abc import Callable, Iterator
from typing import TypeVar

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import processors
from .plans import ForwardPlan
from .tiles import columns_of

L2_SHARE = 2  # a slab has 1 / L2_SHARE of the L2 cache: what is written passes through it as well
ALIGNED = 4  # rows: a slab's statistics, in fp32, begin at multiples of 16 bytes
INTERPRETED_L2 = 1 << 14  # bytes, so that tests go through several slabs
# Messages of CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE and CUDA_ERROR_NOT_SUPPORTED; neither harms the context.
REFUSALS = ("too many blocks in cooperative launch", "operation not supported")

Launched = TypeVar("Launched")

_refused: set[tuple[torch.device, ForwardPlan]] = set()


def in_one_pass(launch: Callable[[], Launched], device: torch.device, plan: ForwardPlan) -> Launched | None:
    """Launch if a row has one program or its team can exchange sums; returns None if it did not.

    After a device has refused to run all programs at the same time, which warns once, this plan is not tried again.
    """
    if plan.team > 1:
        resident = max(1, plan.programs) * processors(device)
        if not plan.exchange or device.type != "cuda" or plan.team > resident or (device, plan) in _refused:
            return None
    try:
        return launch()
    except RuntimeError as error:
        if plan.team == 1 or not any(words in str(error) for words in REFUSALS):
            raise
        _refused.add((device, plan))
        warnings.warn(f"{device} refused a cooperative launch ({error}): two passes instead for {plan}", stacklevel=2)
        return None


def slabs(x: Tensor, residual: Tensor | None) -> Iterator[slice]:
    """The rows in pieces that stay in the L2 cache between two passes."""
    device = x.device
    l2 = torch.cuda.get_device_properties(device).L2_cache_size if device.type == "cuda" else INTERPRETED_L2
    row_bytes = x.shape[1] * x.element_size() * (1 if residual is None else 2)
    step = max(1, l2 // L2_SHARE // row_bytes // ALIGNED) * ALIGNED
    for first in range(0, x.shape[0], step):
        yield slice(first, first + step)


@triton.jit
def store_partials(PARTIALS, row, rank, M, first, second, CONFIG: tl.constexpr):
    """The partial sums [1] of one rank and row into PARTIALS [2, M, TEAM]; `first` is for LayerNorm only."""
    at = (row + tl.arange(0, 1)).to(tl.int64) * CONFIG.TEAM + rank
    if CONFIG.CENTER:
        tl.store(PARTIALS + at, first)
    tl.store(PARTIALS + M.to(tl.int64) * CONFIG.TEAM + at, second)


@triton.jit
def merged_statistics(PARTIALS, rows, M, eps, CONFIG: tl.constexpr):
    """(mean, rstd) of each row, [rows] each, from the mean and m2 of each rank.  The equation is `_collect_sums`'s."""
    TEAM: tl.constexpr = CONFIG.TEAM
    M2 = PARTIALS + M.to(tl.int64) * TEAM
    mean = tl.zeros_like(rows).to(tl.float32)
    if CONFIG.CENTER:
        for rank in tl.static_range(TEAM):
            mean += _partial(PARTIALS, rows, M, rank, CONFIG) * columns_of(rank, CONFIG)
        mean /= CONFIG.COLS
    m2 = sum_of_partials(M2, rows, M, CONFIG)
    if CONFIG.CENTER:
        for rank in tl.static_range(TEAM):
            deviation = _partial(PARTIALS, rows, M, rank, CONFIG) - mean
            m2 += deviation * deviation * columns_of(rank, CONFIG)
    return mean, tl.rsqrt(m2 / CONFIG.COLS + eps)


@triton.jit
def sum_of_partials(P, rows, M, CONFIG: tl.constexpr):
    """[rows]: the partial sums of all ranks, [M, TEAM], added up in order."""
    TEAM: tl.constexpr = CONFIG.TEAM
    total = _partial(P, rows, M, 0, CONFIG)
    for rank in tl.static_range(1, TEAM):
        total += _partial(P, rows, M, rank, CONFIG)
    return total


@triton.jit
def _partial(P, rows, M, rank, CONFIG: tl.constexpr):
    """[rows]: of one rank.  A small [rows, TEAM] tile would give its layout to the rows as well."""
    return tl.load(P + rows.to(tl.int64) * CONFIG.TEAM + rank, rows < M, other=0.0)
