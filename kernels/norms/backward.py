"""The backward pass of RMSNorm and LayerNorm, in one pass over dy and x.

With n = (x - mean) * rstd and g = dy * (weight + offset), of each row:
    dx = (g - n * mean(n * g) [- mean(g) for LayerNorm]) * rstd [+ the gradient of residual_out]
and of all rows together: dweight = sum(dy * n), dbias = sum(dy).
A program goes through many rows and sums its own part of dweight and dbias in registers.  The parts are then added up
in an order that only their number decides, the same bits every time: by another kernel, by the last program to arrive,
or by the last of each group and then the last group (`plans.Sum`).  Nothing is ever added atomically.
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
import triton.language.extra.cuda
from torch import Tensor

from ..cases import Direction
from . import clusters, plans, tuning, wide
from .launching import check, fitting, programs_of, row_stride, starts_early, vector
from .plans import BackwardPlan, Sum
from .tiles import (
    COUNTERS,
    RING,
    SLOTS,
    columns_of,
    forget,
    leave,
    load_each,
    load_rows,
    of_team,
    store_rows,
    tell_team,
)
from .wide import of_all
from .workspaces import workspace

SUM_ROWS, SUM_COLS = 256, 32  # parts read at once and columns of a program that adds them up by itself


class Backward(NamedTuple):
    dx: Tensor  # like x; the gradient of the residual as well
    dweight: Tensor | None  # like the weight
    dbias: Tensor | None


def backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    mean: Tensor | None = None,
    dresidual_out: Tensor | None = None,
    *,
    bias_dtype: torch.dtype | None = None,
    weight_wanted: bool = True,
    offset: float = 0.0,
    plan: BackwardPlan | None = None,
) -> Backward:
    """The gradients from the forward pass's statistics; x is what was normalised.

    dy, x and dresidual_out are [rows, columns] with dense rows; rstd and mean [rows] in fp32, the mean for LayerNorm
    alone; with `bias_dtype` there was a bias; a frozen weight's gradient is not `weight_wanted`.
    Raises ValueError for tensors that do not fit together.
    """
    check(x, {"dy": dy, "dresidual_out": dresidual_out}, {"weight": weight}, {"rstd": rstd, "mean": mean})
    rows, cols = x.shape
    dx = x.new_empty(rows, cols)
    dweight = torch.empty_like(weight) if weight is not None and weight_wanted else None
    dbias = None if bias_dtype is None else x.new_empty(cols, dtype=bias_dtype)
    out = Backward(dx, dweight, dbias)
    if rows:
        plan = plan or _chosen(x, weight, mean is not None or bias_dtype is not None)
        plan = fitting(plan, x.device, x.element_size(), 2 if dresidual_out is None else 3)
        _launch(out, dy, x, weight, rstd, mean, dresidual_out, offset, plan)
    else:
        for gradient in (dweight, dbias):
            if gradient is not None:
                gradient.zero_()
    return out


def _chosen(x: Tensor, weight: Tensor | None, two: bool) -> BackwardPlan:
    """As for the forward pass; a bias has a sum of its own as LayerNorm's."""
    found = tuning.tuned(Direction.BWD, x, weight, center=two)
    if isinstance(found, BackwardPlan):
        return found
    plan = plans.backward(x.shape[1], center=two, size=x.element_size())
    if plan.team > 1 and clusters.are_there():
        return clusters.backward_plan(x.shape[1]) or plan
    return plan


def _launch(out, dy, x, weight, rstd, mean, dresidual_out, offset, plan) -> None:
    launch = partial(_gradients, out, dy, x, weight, rstd, mean, dresidual_out, offset)
    if not wide.in_one_pass(partial(launch, plan), x.device, plan):
        sums = wide.backward_sums(dy, x, weight, mean, rstd, offset, plan)
        launch(replace(plan, exchange=False), sums)


def _gradients(out, dy, x, weight, rstd, mean, dresidual_out, offset, plan, sums=None) -> None:
    """One launch over all rows, and that which adds up the parts where they are added up separately."""
    rows, cols = x.shape
    tiles = triton.cdiv(rows, plan.rows)
    teams, _ = programs_of(x, tiles, plan)
    groups = triton.cdiv(teams, plan.group) if plan.sum is Sum.TREE else 1
    summed = [gradient for gradient in (out.dweight, out.dbias) if gradient is not None]
    # each program's part of each gradient, then each group's
    parts = (
        x.new_empty(len(summed), teams + groups * (plan.sum is Sum.TREE), cols, dtype=torch.float32) if summed else None
    )
    fused = bool(summed) and plan.sum is not Sum.SEPARATE
    # Launched while the first one works, it waits on the chip for it to end: 6 % of 10 us (docs/dweight.md).  Programs
    # of a team must all run at once, and nobody may take their places.
    early = bool(summed) and not fused and plan.team == 1 and starts_early(x.device)
    unit = vector(dy, x, dresidual_out)
    with workspace(x.device, wanted=fused or (plan.team > 1 and sums is None)) as work:
        _backward[(teams * plan.team,)](
            dy, x, weight, mean, rstd, dresidual_out, out.dx, out.dweight, out.dbias, parts, work, sums,
            rows, row_stride(dy) // unit, row_stride(x) // unit, row_stride(dresidual_out) // unit,
            COLS=cols, OFFSET=offset, ROWS=plan.rows, BLOCK=plan.block, TEAM=plan.team, UNIT=unit,
            PART=plan.block * plan.team != cols or rows % plan.rows != 0, HELD=plan.held, WEIGHTS=plan.weights,
            KEEP=plan.keep_of(x.dtype.itemsize, x.is_cuda), STAGES=plan.stages, THREADS=32 * plan.warps,
            FUSED=fused, GROUP=plan.group if plan.sum is Sum.TREE else 0, ANNOUNCE=early, **plan.options,
        )  # fmt: skip
    if summed and not fused:
        _sum_parts[(triton.cdiv(cols, SUM_COLS), len(summed))](
            parts, summed[0], summed[-1], teams, cols, ROWS=min(SUM_ROWS, triton.next_power_of_2(teams)),
            BLOCK=SUM_COLS, WAIT=early, num_warps=8, **({"launch_pdl": True} if early else {}),
        )  # fmt: skip


@triton.jit(do_not_specialize=["M"])
def _backward(
    DY, X, W, MEAN, RSTD, DRESIDUAL, DX, DW, DB, PARTS, WORK, SUMS, M, dy_stride, x_stride, dresidual_stride,
    COLS: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, TEAM: tl.constexpr,
    UNIT: tl.constexpr, PART: tl.constexpr, HELD: tl.constexpr, WEIGHTS: tl.constexpr, KEEP: tl.constexpr,
    STAGES: tl.constexpr, THREADS: tl.constexpr, FUSED: tl.constexpr, GROUP: tl.constexpr, ANNOUNCE: tl.constexpr,
):  # fmt: skip
    if ANNOUNCE:
        tl.extra.cuda.gdc_launch_dependents()
    member, team, teams = tl.program_id(0) % TEAM, tl.program_id(0) // TEAM, tl.num_programs(0) // TEAM
    cols = member * BLOCK + tl.arange(0, BLOCK)
    tiles = tl.cdiv(M, ROWS)
    dy_stride *= UNIT
    x_stride *= UNIT
    dresidual_stride *= UNIT
    w = cols
    if WEIGHTS == "held":
        w = columns_of(W, cols, COLS, PART, ROWS)
    dw = tl.zeros([HELD, BLOCK], tl.float32)
    db = tl.zeros([HELD, BLOCK], tl.float32)
    if TEAM > 1 and SUMS is None:
        # While the others' sums of a row are on their way, the next row is read and its own sums are sent.
        slots, first_tag = WORK + SLOTS + team * (RING * 2 * TEAM), tl.load(WORK).to(tl.int32) + 1
        x, dy, mean, rstd = _read(team, X, DY, MEAN, RSTD, cols, M, x_stride, dy_stride, COLS, ROWS, PART, KEEP)
        _tell(x, dy, mean, rstd, w, 0, slots, first_tag, cols, member, W, MEAN, COLS, OFFSET, TEAM, PART, WEIGHTS)
        for tile in tl.range(team + teams, tiles, teams, num_stages=STAGES):
            step = tile // teams
            x_, dy_, mean_, rstd_ = _read(
                tile, X, DY, MEAN, RSTD, cols, M, x_stride, dy_stride, COLS, ROWS, PART, KEEP
            )  # fmt: skip
            _tell(
                x_, dy_, mean_, rstd_, w, step, slots, first_tag, cols, member,
                W, MEAN, COLS, OFFSET, TEAM, PART, WEIGHTS,
            )  # fmt: skip
            along, level = _told(step - 1, slots, first_tag, MEAN, TEAM, THREADS)
            dw, db = _write(
                x, dy, mean, rstd, along, level, w, dw, db, tile - teams, cols, X, DY, W, MEAN, RSTD, DRESIDUAL, DX,
                DW, DB, M, x_stride, dy_stride, dresidual_stride, COLS, OFFSET, ROWS, PART, HELD, WEIGHTS, KEEP,
            )  # fmt: skip
            x, dy, mean, rstd = x_, dy_, mean_, rstd_
        last = (tiles - 1 - team) // teams
        along, level = _told(last, slots, first_tag, MEAN, TEAM, THREADS)
        dw, db = _write(
            x, dy, mean, rstd, along, level, w, dw, db, team + last * teams, cols, X, DY, W, MEAN, RSTD, DRESIDUAL, DX,
            DW, DB, M, x_stride, dy_stride, dresidual_stride, COLS, OFFSET, ROWS, PART, HELD, WEIGHTS, KEEP,
        )  # fmt: skip
    else:
        for tile in tl.range(team, tiles, teams, num_stages=STAGES):
            x, dy, mean, rstd = _read(tile, X, DY, MEAN, RSTD, cols, M, x_stride, dy_stride, COLS, ROWS, PART, KEEP)
            if SUMS is not None:
                rows = tile * ROWS + tl.arange(0, ROWS)
                level = of_all(SUMS, rows, M, TEAM) if MEAN is not None else 0.0
                along = of_all(SUMS + M.to(tl.int64) * TEAM, rows, M, TEAM)
            else:
                along, level = _own(x, dy, mean, rstd, w, cols, W, MEAN, COLS, OFFSET, PART, WEIGHTS)
            dw, db = _write(
                x, dy, mean, rstd, along, level, w, dw, db, tile, cols, X, DY, W, MEAN, RSTD, DRESIDUAL, DX,
                DW, DB, M, x_stride, dy_stride, dresidual_stride, COLS, OFFSET, ROWS, PART, HELD, WEIGHTS, KEEP,
            )  # fmt: skip
    if PARTS is not None:
        # of each gradient: the part of each team, then in a tree that of each group
        groups = tl.cdiv(teams, GROUP) if GROUP else 0
        PARTS_B = PARTS + (teams + groups) * COLS * (DW is not None)
        if DW is not None:
            tl.store(PARTS + team * COLS + cols, tl.sum(dw, 0), cols < COLS)
        if DB is not None:
            tl.store(PARTS_B + team * COLS + cols, tl.sum(db, 0), cols < COLS)
        if FUSED:
            counter = WORK + COUNTERS + member * (groups + 1)
            first, count, last = 0, teams, True
            if GROUP:
                group = team // GROUP
                size = tl.minimum(GROUP, teams - group * GROUP)
                last = _last_of(counter + 1 + group, size)
                if last:
                    if DW is not None:
                        _add_up(PARTS, group * GROUP, size, PARTS + (teams + group) * COLS, member, COLS, BLOCK)
                    if DB is not None:
                        _add_up(PARTS_B, group * GROUP, size, PARTS_B + (teams + group) * COLS, member, COLS, BLOCK)
                first, count = teams, groups
            if last:  # noqa: SIM102  an `and` here would ask both
                if _last_of(counter, count):
                    if DW is not None:
                        _add_up(PARTS, first, count, DW, member, COLS, BLOCK)
                    if DB is not None:
                        _add_up(PARTS_B, first, count, DB, member, COLS, BLOCK)
    if TEAM > 1 and SUMS is None:
        leave(WORK, tl.cdiv(tiles, teams), tl.num_programs(0))


@triton.jit
def _read(
    tile, X, DY, MEAN, RSTD, cols, M, x_stride, dy_stride,
    COLS: tl.constexpr, ROWS: tl.constexpr, PART: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    rows = tile * ROWS + tl.arange(0, ROWS)
    x = load_rows(X, rows, x_stride, cols, M, COLS, PART, KEEP == "cached")
    dy = load_rows(DY, rows, dy_stride, cols, M, COLS, PART, KEEP == "cached")
    rstd = load_each(RSTD, rows, M, PART)
    mean = load_each(MEAN, rows, M, PART) if MEAN is not None else rstd
    return x, dy, mean, rstd


@triton.jit
def _slopes(
    x, dy, mean, rstd, w, cols, W, MEAN,
    COLS: tl.constexpr, OFFSET: tl.constexpr, PART: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    """(n, g, dy) in fp32."""
    n = x.to(tl.float32)
    if MEAN is not None:
        n -= mean[:, None]
    n *= rstd[:, None]
    dy = dy.to(tl.float32)
    g = dy
    if W is not None:
        if WEIGHTS != "held":
            w = columns_of(W, cols, COLS, PART, x.shape[0])
        g = dy * (w.to(tl.float32) + OFFSET)
    return n, g, dy


@triton.jit
def _own(
    x, dy, mean, rstd, w, cols, W, MEAN,
    COLS: tl.constexpr, OFFSET: tl.constexpr, PART: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    """(sum of n * g, sum of g for LayerNorm) of each row, of the columns that this program has."""
    n, g, _ = _slopes(x, dy, mean, rstd, w, cols, W, MEAN, COLS, OFFSET, PART, WEIGHTS)
    along = tl.sum(n * g, 1)
    level = tl.sum(g, 1) if MEAN is not None else along
    return along, level


@triton.jit
def _tell(
    x, dy, mean, rstd, w, step, slots, first_tag, cols, member, W, MEAN,
    COLS: tl.constexpr, OFFSET: tl.constexpr, TEAM: tl.constexpr, PART: tl.constexpr, WEIGHTS: tl.constexpr,
):  # fmt: skip
    along, level = _own(x, dy, mean, rstd, w, cols, W, MEAN, COLS, OFFSET, PART, WEIGHTS)
    slots += (step % RING) * (2 * TEAM)
    tell_team(along, slots, first_tag + step, member)
    if MEAN is not None:
        tell_team(level, slots + TEAM, first_tag + step, member)


@triton.jit
def _told(step, slots, first_tag, MEAN, TEAM: tl.constexpr, THREADS: tl.constexpr):
    slots += (step % RING) * (2 * TEAM)
    along = tl.sum(of_team(slots, first_tag + step, TEAM, THREADS), 0) + tl.zeros([1], tl.float32)
    level = along
    if MEAN is not None:
        level = tl.sum(of_team(slots + TEAM, first_tag + step, TEAM, THREADS), 0) + tl.zeros([1], tl.float32)
    return along, level


@triton.jit
def _write(
    x, dy, mean, rstd, along, level, w, dw, db, tile, cols, X, DY, W, MEAN, RSTD, DRESIDUAL, DX, DW, DB, M,
    x_stride, dy_stride, dresidual_stride, COLS: tl.constexpr, OFFSET: tl.constexpr, ROWS: tl.constexpr,
    PART: tl.constexpr, HELD: tl.constexpr, WEIGHTS: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    """dx of a tile, and dw and db with what it adds to them."""
    if KEEP == "packed":
        x, dy = forget(x), forget(dy)
    if KEEP == "cached":
        x, dy, mean, rstd = _read(tile, X, DY, MEAN, RSTD, cols, M, x_stride, dy_stride, COLS, ROWS, PART, "fp32")
    n, g, dy = _slopes(x, dy, mean, rstd, w, cols, W, MEAN, COLS, OFFSET, PART, WEIGHTS)
    dx = g - n * (along / COLS)[:, None]
    if MEAN is not None:
        dx -= (level / COLS)[:, None]
    dx *= rstd[:, None]
    rows = tile * ROWS + tl.arange(0, ROWS)
    if DRESIDUAL is not None:
        dx += load_rows(DRESIDUAL, rows, dresidual_stride, cols, M, COLS, PART, False).to(tl.float32)
    store_rows(DX, dx, rows, COLS, cols, M, COLS, PART)
    if DW is not None:
        dw += tl.sum(tl.reshape(dy * n, [ROWS // HELD, HELD, dw.shape[1]]), 0)
    if DB is not None:
        db += tl.sum(tl.reshape(dy, [ROWS // HELD, HELD, db.shape[1]]), 0)
    return dw, db


@triton.jit
def _last_of(COUNTER, count):
    """Has everybody else arrived?  Then what they stored before is to be seen, and the counter is as it was."""
    tl.debug_barrier()  # all threads have stored
    last = tl.atomic_add(COUNTER, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(COUNTER, 0)
    return last


@triton.jit
def _add_up(PARTS, first, count, OUT, member, COLS: tl.constexpr, BLOCK: tl.constexpr):
    """One program's columns of `count` parts from `first` on.  Read past the L1: others just wrote them."""
    WIDTH: tl.constexpr = min(BLOCK, 256)
    HEIGHT: tl.constexpr = 16
    for start in range(member * BLOCK, min(member * BLOCK + BLOCK, COLS), WIDTH):
        cols = start + tl.arange(0, WIDTH)
        total = tl.zeros([WIDTH], tl.float32)
        for at in range(0, count, HEIGHT):
            rows = at + tl.arange(0, HEIGHT)
            inside = (rows < count)[:, None] & (cols < COLS)[None, :]
            parts = PARTS + (first + rows)[:, None] * COLS + cols[None, :]
            total += tl.sum(tl.load(parts, inside, other=0.0, cache_modifier=".cg"), 0)
        tl.store(OUT + cols, total.to(OUT.dtype.element_ty), cols < COLS)


@triton.jit
def _sum_parts(
    PARTS, FIRST, SECOND, count, COLS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WAIT: tl.constexpr
):
    """A kernel of its own: some columns of the first gradient, or of the second."""
    if WAIT:
        tl.extra.cuda.gdc_wait()
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = tl.program_id(1)
    total = tl.zeros([BLOCK], tl.float32)
    for first in range(0, count, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < count)[:, None] & (cols < COLS)[None, :]
        total += tl.sum(tl.load(PARTS + (which * count + rows)[:, None] * COLS + cols[None, :], inside, other=0.0), 0)
    if which == 0:
        tl.store(FIRST + cols, total.to(FIRST.dtype.element_ty), cols < COLS)
    else:
        tl.store(SECOND + cols, total.to(SECOND.dtype.element_ty), cols < COLS)
