"""The forward pass of RMSNorm and LayerNorm: y = (x - mean) * rstd * (weight + offset) + bias, each row in fp32.

rstd = 1 / sqrt(mean((x - mean)^2) + eps).  RMSNorm (Zhang and Sennrich, 2019) takes no mean away; LayerNorm (Ba, Kiros
and Hinton, 2016) does so first: its variance is a sum of squares of what is left, exact whatever the mean is.
A row stays in registers between its sum and its use, so that x is read once.  A row too wide for one program is shared
by a team of them, each with columns of its own, who tell each other their sums through the L2; where they can not,
they read what a pass before has summed up (`wide`).
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

from . import clusters, plans, wide
from .launching import check, programs_of, vector
from .plans import ForwardPlan
from .tiles import SLOTS, columns_of, forget, leave, load_rows, store_rows, team_sum
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

    The residual is like x; weight and bias are [columns] in any dtype.  `center` makes it LayerNorm; `offset` is added
    to the weight (Gemma stores its weights less one); `statistics` asks for what the backward pass takes.
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
        plan = plan or _chosen(cols, x.element_size(), 0 if weight is None else weight.element_size())
        _launch(out, x, weight, bias, residual, eps, center, offset, plan)
    return out


def _chosen(cols: int, size: int, weight_size: int) -> ForwardPlan:
    """A team's rows go to a cluster where Triton has them."""
    plan = plans.forward(cols, size, weight_size)
    if plan.team > 1 and clusters.are_there():
        return clusters.forward_plan(cols, size, weight_size) or plan
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
            rows, x.stride(0) // unit, 0 if residual is None else residual.stride(0) // unit, eps,
            COLS=cols, CENTER=center, OFFSET=offset, ROWS=plan.rows, BLOCK=plan.block, TEAM=plan.team, UNIT=unit,
            PART=part, WEIGHTS=plan.weights, FORGET=plan.forget and x.is_cuda and x.element_size() == 2,
            LOOPING=looping, STAGES=plan.stages, **plan.options,
        )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def _forward(
    X, RESIDUAL, W, B, Y, RESIDUAL_OUT, MEAN, RSTD, WORK, SUMS, M, x_stride, residual_stride, eps,
    COLS: tl.constexpr, CENTER: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    TEAM: tl.constexpr, UNIT: tl.constexpr, PART: tl.constexpr, WEIGHTS: tl.constexpr, FORGET: tl.constexpr,
    LOOPING: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    member, team, teams = tl.program_id(0) % TEAM, tl.program_id(0) // TEAM, tl.num_programs(0) // TEAM
    cols = member * BLOCK + tl.arange(0, BLOCK)
    w, b = cols, cols
    if WEIGHTS == "held":
        w, b = columns_of(W, cols, COLS, PART), columns_of(B, cols, COLS, PART)
    first_tag = 0
    if WORK is not None:
        first_tag = tl.load(WORK).to(tl.int32) + 1
    if LOOPING:
        for tile in tl.range(team, tl.cdiv(M, ROWS), teams, num_stages=STAGES):
            _normalise(
                tile, tile // teams, member, team, first_tag, cols, w, b,
                X, RESIDUAL, W, B, Y, RESIDUAL_OUT, MEAN, RSTD, WORK, SUMS, M, x_stride, residual_stride, eps,
                COLS, CENTER, OFFSET, ROWS, BLOCK, TEAM, UNIT, PART, WEIGHTS, FORGET,
            )  # fmt: skip
    else:
        _normalise(
            team, 0, member, team, first_tag, cols, w, b,
            X, RESIDUAL, W, B, Y, RESIDUAL_OUT, MEAN, RSTD, WORK, SUMS, M, x_stride, residual_stride, eps,
            COLS, CENTER, OFFSET, ROWS, BLOCK, TEAM, UNIT, PART, WEIGHTS, FORGET,
        )  # fmt: skip
    if WORK is not None:
        leave(WORK, tl.cdiv(tl.cdiv(M, ROWS), teams), tl.num_programs(0))


@triton.jit
def _normalise(
    tile, step, member, team, first_tag, cols, w, b,
    X, RESIDUAL, W, B, Y, RESIDUAL_OUT, MEAN, RSTD, WORK, SUMS, M, x_stride, residual_stride, eps,
    COLS: tl.constexpr, CENTER: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr,
    TEAM: tl.constexpr, UNIT: tl.constexpr, PART: tl.constexpr, WEIGHTS: tl.constexpr, FORGET: tl.constexpr,
):  # fmt: skip
    """One tile of rows."""
    rows = tile * ROWS + tl.arange(0, ROWS)
    raw = load_rows(X, rows, x_stride * UNIT, cols, M, COLS, PART)
    if RESIDUAL is not None:
        added = load_rows(RESIDUAL, rows, residual_stride * UNIT, cols, M, COLS, PART)
        raw = (raw.to(tl.float32) + added.to(tl.float32)).to(raw.dtype)  # the norm is of the sum as it is handed on
        store_rows(RESIDUAL_OUT, raw, rows, COLS, cols, M, COLS, PART)
    if WEIGHTS == "early":
        w, b = columns_of(W, cols, COLS, PART), columns_of(B, cols, COLS, PART)
    x = raw.to(tl.float32)
    if SUMS is not None:
        mean, rstd = merged_statistics(SUMS, rows, M, eps, COLS, CENTER, BLOCK, TEAM)
    else:
        mean, rstd = _statistics(x, step, member, team, first_tag, cols, WORK, eps, COLS, CENTER, ROWS, TEAM, PART)
    if member == 0:
        if MEAN is not None:
            tl.store(MEAN + rows, mean, rows < M)
        if RSTD is not None:
            tl.store(RSTD + rows, rstd, rows < M)
    if WEIGHTS == "late":
        w, b = columns_of(W, cols, COLS, PART), columns_of(B, cols, COLS, PART)
    if FORGET:
        x = forget(raw).to(tl.float32)
    if CENTER:
        x -= mean[:, None]
    y = x * rstd[:, None]
    if W is not None:
        y *= (w.to(tl.float32) + OFFSET)[None, :]
    if B is not None:
        y += b.to(tl.float32)[None, :]
    store_rows(Y, y, rows, COLS, cols, M, COLS, PART)


@triton.jit
def _statistics(
    x, step, member, team, first_tag, cols, WORK, eps,
    COLS: tl.constexpr, CENTER: tl.constexpr, ROWS: tl.constexpr, TEAM: tl.constexpr, PART: tl.constexpr,
):  # fmt: skip
    """(mean, rstd) of each row of a tile, of which this program has all columns or its share."""
    slots, tag = WORK, 0
    if TEAM > 1:
        slots, tag = WORK + SLOTS + (team * 2 + step % 2) * (2 * TEAM), first_tag + step
    mean = tl.zeros([ROWS], tl.float32)
    if CENTER:
        mean = tl.sum(x, 1)
        if TEAM > 1:
            mean = team_sum(mean, slots, tag, member, TEAM)
        mean /= COLS
        x -= mean[:, None]
        if PART:
            x = tl.where((cols < COLS)[None, :], x, 0.0)
    squares = tl.sum(x * x, 1)
    if TEAM > 1:
        squares = team_sum(squares, slots + TEAM, tag, member, TEAM)
    return mean, tl.rsqrt(squares / COLS + eps)
