"""The forward pass of RMSNorm and LayerNorm: y = (x - mean) * rstd * (weight + offset) + bias, each row in fp32.

rstd = 1 / sqrt(mean((x - mean)^2) + eps).  RMSNorm (Zhang and Sennrich, 2019) takes no mean away; LayerNorm (Ba, Kiros
and Hinton, 2016) does so first: its variance is a sum of squares of what is left, stable whatever the mean is.
Memory is read once: between its sums and their use a row stays in registers, or is read again out of the cache.  A row
too wide for one program is shared by a team of them, each with columns of its own, who tell each other their sums
through the L2; where they can not, they read what a pass before has summed up (`wide`).
"""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from ..cases import Direction
from . import clusters, plans, tuning, wide
from .launching import check, fitting, programs_of, row_stride, vector
from .plans import ForwardPlan
from .tiles import RING, SLOTS, columns_of, forget, leave, load_rows, of_team, store_rows, tell_team
from .wide import merged_statistics
from .workspaces import workspace


class Forward(NamedTuple):
    y: Tensor  # like x
    residual_out: Tensor | None  # x + residual, rounded: what was normalised
    mean: Tensor | None  # [rows], fp32
    rstd: Tensor | None  # [rows], fp32


def forward(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float,
    center: bool,
    offset: float = 0.0,
    statistics: bool = False,
    plan: ForwardPlan | None = None,
) -> Forward:
    """Normalise the rows of x: [rows, columns], dense rows at any distance from each other.

    The residual is like x; weight and bias are [columns], in any of the three dtypes.  `center` makes it LayerNorm;
    `offset` is added to the weight (Gemma stores its weights less one); `statistics` asks for what the backward pass
    takes.
    Raises ValueError for tensors that do not fit together.
    """
    check(x, {"residual": residual}, {"weight": weight, "bias": bias})
    rows, cols = x.shape
    y = x.new_empty(rows, cols)
    residual_out = None if residual is None else torch.empty_like(y)
    rstd = x.new_empty(rows, dtype=torch.float32) if statistics else None
    mean = torch.empty_like(rstd) if rstd is not None and center else None
    out = Forward(y, residual_out, mean, rstd)
    if rows:
        plan = plan or _chosen(x, weight, center)
        plan = fitting(plan, x.device, x.element_size(), 1 if residual is None else 2)
        _launch(out, x, weight, bias, residual, eps, center, offset, plan)
    return out


def _chosen(x: Tensor, weight: Tensor | None, center: bool) -> ForwardPlan:
    """A team's rows go to a cluster where Triton has them, and a tuned plan comes first where somebody asked for it."""
    if found := tuning.tuned(Direction.FWD, x, weight, center=center):
        return found
    cols, size = x.shape[1], x.element_size()
    plan = plans.forward(cols, center=center, size=size)
    if plan.team > 1 and clusters.are_there():
        return clusters.forward_plan(cols, size, size if weight is None else weight.element_size()) or plan
    return plan


def _launch(out, x, weight, bias, residual, eps, center, offset, plan) -> None:
    launch = partial(_normalised, weight=weight, bias=bias, eps=eps, center=center, offset=offset)
    if wide.in_one_pass(partial(launch, out, x, residual, plan), x.device, plan):
        return
    plan = replace(plan, exchange=False)
    for slab in wide.slabs(x, residual):
        of_slab = Forward._make(None if tensor is None else tensor[slab] for tensor in out)
        added = None if residual is None else residual[slab]
        launch(of_slab, x[slab], added, plan, wide.forward_sums(x[slab], added, center, plan))


def _normalised(out, x, residual, plan, sums=None, *, weight, bias, eps, center, offset) -> None:
    """One launch."""
    rows, cols = x.shape
    tiles = triton.cdiv(rows, plan.rows)
    teams, looping = programs_of(x, tiles, plan)
    part = plan.block * plan.team != cols or rows % plan.rows != 0
    unit = vector(x, residual)
    with workspace(x.device, wanted=plan.team > 1 and sums is None) as work:
        _forward[(teams * plan.team,)](
            x, residual, weight, bias, out.y, out.residual_out, out.mean, out.rstd, work, sums,
            rows, row_stride(x) // unit, row_stride(residual) // unit, eps,
            COLS=cols, CENTER=center, OFFSET=offset, ROWS=plan.rows, BLOCK=plan.block, TEAM=plan.team, UNIT=unit,
            PART=part, WEIGHTS=plan.weights, KEEP=plan.keep_of(x.dtype.itemsize, x.is_cuda), LOOPING=looping,
            STAGES=plan.stages, THREADS=32 * plan.warps, **plan.options,
        )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def _forward(
    X, RESIDUAL, W, B, Y, RESIDUAL_OUT, MEAN, RSTD, WORK, SUMS, M, x_stride, residual_stride, eps,
    COLS: tl.constexpr, CENTER: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    TEAM: tl.constexpr, UNIT: tl.constexpr, PART: tl.constexpr, WEIGHTS: tl.constexpr, KEEP: tl.constexpr,
    LOOPING: tl.constexpr, STAGES: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    member, team, teams = tl.program_id(0) % TEAM, tl.program_id(0) // TEAM, tl.num_programs(0) // TEAM
    cols = member * BLOCK + tl.arange(0, BLOCK)
    tiles = tl.cdiv(M, ROWS)
    x_stride *= UNIT
    residual_stride *= UNIT
    w, b = cols, cols
    if WEIGHTS == "held":
        w, b = columns_of(W, cols, COLS, PART, ROWS), columns_of(B, cols, COLS, PART, ROWS)
    if WORK is not None:
        # While the others' sums of a tile are on their way, the next tile is read and its own sums are sent.
        slots, first_tag = WORK + SLOTS + team * (RING * 2 * TEAM), tl.load(WORK).to(tl.int32) + 1
        raw = _read(team, X, RESIDUAL, RESIDUAL_OUT, cols, M, x_stride, residual_stride, COLS, ROWS, PART, KEEP)
        _tell(raw, 0, slots, first_tag, cols, member, COLS, CENTER, BLOCK, TEAM, PART)
        for tile in tl.range(team + teams, tiles, teams, num_stages=STAGES):
            step = tile // teams
            following = _read(
                tile, X, RESIDUAL, RESIDUAL_OUT, cols, M, x_stride, residual_stride, COLS, ROWS, PART, KEEP
            )
            _tell(following, step, slots, first_tag, cols, member, COLS, CENTER, BLOCK, TEAM, PART)
            mean, rstd = _told(step - 1, slots, first_tag, eps, COLS, CENTER, BLOCK, TEAM, THREADS)
            _write(
                raw, tile - teams, mean, rstd, member, cols, w, b, X, RESIDUAL, W, B, Y, MEAN, RSTD, M, x_stride,
                residual_stride, COLS, CENTER, OFFSET, ROWS, PART, WEIGHTS, KEEP,
            )  # fmt: skip
            raw = following
        last = (tiles - 1 - team) // teams
        mean, rstd = _told(last, slots, first_tag, eps, COLS, CENTER, BLOCK, TEAM, THREADS)
        _write(
            raw, team + last * teams, mean, rstd, member, cols, w, b, X, RESIDUAL, W, B, Y, MEAN, RSTD, M, x_stride,
            residual_stride, COLS, CENTER, OFFSET, ROWS, PART, WEIGHTS, KEEP,
        )  # fmt: skip
        leave(WORK, tl.cdiv(tiles, teams), tl.num_programs(0))
    elif LOOPING:
        for tile in tl.range(team, tiles, teams, num_stages=STAGES):
            _normalise(
                tile, member, cols, w, b, X, RESIDUAL, W, B, Y, RESIDUAL_OUT, MEAN, RSTD, SUMS, M, x_stride,
                residual_stride, eps, COLS, CENTER, OFFSET, ROWS, BLOCK, TEAM, PART, WEIGHTS, KEEP,
            )  # fmt: skip
    else:
        _normalise(
            team, member, cols, w, b, X, RESIDUAL, W, B, Y, RESIDUAL_OUT, MEAN, RSTD, SUMS, M, x_stride,
            residual_stride, eps, COLS, CENTER, OFFSET, ROWS, BLOCK, TEAM, PART, WEIGHTS, KEEP,
        )  # fmt: skip


@triton.jit
def _normalise(
    tile, member, cols, w, b, X, RESIDUAL, W, B, Y, RESIDUAL_OUT, MEAN, RSTD, SUMS, M, x_stride, residual_stride, eps,
    COLS: tl.constexpr, CENTER: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    TEAM: tl.constexpr, PART: tl.constexpr, WEIGHTS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """One tile of rows, by a program that needs no other."""
    raw = _read(tile, X, RESIDUAL, RESIDUAL_OUT, cols, M, x_stride, residual_stride, COLS, ROWS, PART, KEEP)
    if WEIGHTS == "early":
        w, b = columns_of(W, cols, COLS, PART, ROWS), columns_of(B, cols, COLS, PART, ROWS)
    if SUMS is not None:
        rows = tile * ROWS + tl.arange(0, ROWS)
        mean, rstd = merged_statistics(SUMS, rows, M, eps, COLS, CENTER, BLOCK, TEAM)
    else:
        mean, squares = _own(raw, COLS, cols, COLS, CENTER, PART)
        rstd = tl.rsqrt(squares / COLS + eps)
    _write(
        raw, tile, mean, rstd, member, cols, w, b, X, RESIDUAL, W, B, Y, MEAN, RSTD, M, x_stride, residual_stride,
        COLS, CENTER, OFFSET, ROWS, PART, WEIGHTS, KEEP,
    )  # fmt: skip


@triton.jit
def _read(
    tile, X, RESIDUAL, RESIDUAL_OUT, cols, M, x_stride, residual_stride,
    COLS: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """What is normalised, in the dtype in which it is handed on."""
    rows = tile * ROWS + tl.arange(0, ROWS)
    raw = load_rows(X, rows, x_stride, cols, M, COLS, PART, KEEP == "cached")
    if RESIDUAL is not None:
        added = load_rows(RESIDUAL, rows, residual_stride, cols, M, COLS, PART, KEEP == "cached")
        raw = (raw.to(tl.float32) + added.to(tl.float32)).to(raw.dtype)
        if RESIDUAL_OUT is not None:
            store_rows(RESIDUAL_OUT, raw, rows, COLS, cols, M, COLS, PART)
    return raw


@triton.jit
def _own(raw, count, cols, COLS: tl.constexpr, CENTER: tl.constexpr, PART: tl.constexpr):
    """(mean, squares around it) of each row, of the `count` columns that this program has."""
    x = raw.to(tl.float32)
    mean = tl.zeros([x.shape[0]], tl.float32)
    if CENTER:
        mean = tl.sum(x, 1) / count
        x -= mean[:, None]
        if PART:
            x = tl.where((cols < COLS)[None, :], x, 0.0)
    return mean, tl.sum(x * x, 1)


@triton.jit
def _tell(
    raw, step, slots, first_tag, cols, member,
    COLS: tl.constexpr, CENTER: tl.constexpr, BLOCK: tl.constexpr, TEAM: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    mean, squares = _own(raw, tl.minimum(BLOCK, COLS - member * BLOCK), cols, COLS, CENTER, PART)
    slots += (step % RING) * (2 * TEAM)
    tell_team(squares, slots, first_tag + step, member)
    if CENTER:
        tell_team(mean, slots + TEAM, first_tag + step, member)


@triton.jit
def _told(
    step, slots, first_tag, eps,
    COLS: tl.constexpr, CENTER: tl.constexpr, BLOCK: tl.constexpr, TEAM: tl.constexpr, THREADS: tl.constexpr,
):  # fmt: skip
    """(mean, rstd) of the row of a step from what its team told, put together as Chan, Golub and LeVeque (1979) do."""
    slots += (step % RING) * (2 * TEAM)
    squares = of_team(slots, first_tag + step, TEAM, THREADS)
    mean = 0.0
    if CENTER:
        means = of_team(slots + TEAM, first_tag + step, TEAM, THREADS)
        counts = tl.minimum(tl.maximum(COLS - tl.arange(0, THREADS) * BLOCK, 0), BLOCK)
        mean = tl.sum(means * counts, 0) / COLS
        apart = tl.where(counts > 0, means - mean, 0.0)
        squares += counts * apart * apart
    one = tl.zeros([1], tl.float32)
    return one + mean, one + tl.rsqrt(tl.sum(squares, 0) / COLS + eps)


@triton.jit
def _write(
    raw, tile, mean, rstd, member, cols, w, b, X, RESIDUAL, W, B, Y, MEAN, RSTD, M, x_stride, residual_stride,
    COLS: tl.constexpr, CENTER: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr,
    WEIGHTS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    rows = tile * ROWS + tl.arange(0, ROWS)
    if member == 0:
        if MEAN is not None:
            tl.store(MEAN + rows, mean, rows < M)
        if RSTD is not None:
            tl.store(RSTD + rows, rstd, rows < M)
    if WEIGHTS == "late":
        w, b = columns_of(W, cols, COLS, PART, ROWS), columns_of(B, cols, COLS, PART, ROWS)
    if KEEP == "packed":
        raw = forget(raw)
    if KEEP == "cached":
        raw = _read(tile, X, RESIDUAL, None, cols, M, x_stride, residual_stride, COLS, ROWS, PART, "fp32")
    x = raw.to(tl.float32)
    if CENTER:
        x -= mean[:, None]
    y = x * rstd[:, None]
    if W is not None:
        y *= w.to(tl.float32) + OFFSET
    if B is not None:
        y += b.to(tl.float32)
    store_rows(Y, y, rows, COLS, cols, M, COLS, PART)
