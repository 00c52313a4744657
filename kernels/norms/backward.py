"""The backward pass of RMSNorm and LayerNorm, in one pass over dy and x.  Each row is computed in fp32:

    x_hat = (x - mean) * rstd                   mean = 0 for RMSNorm
    wdy   = dy * (w + offset)
    c1    = mean(x_hat * wdy)                   over the row
    c2    = mean(wdy)                           LayerNorm only
    dx    = (wdy - x_hat * c1 - c2) * rstd      + the gradient of residual_out
    dw    = sum(dy * x_hat),  db = sum(dy)      over all rows

A program goes through many rows and accumulates its partial dw and db in registers.  The partial sums are then added up
in a fixed order, which gives the same bits every time: by another kernel, by the last program that arrives at a
counter, or in two levels of such counters (`plans.Sum`).  No value is added atomically.
"""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from collections import namedtuple
from dataclasses import replace
from functools import partial
from typing import NamedTuple

import torch
import triton
import triton.language as tl
import triton.language.extra.cuda
from torch import Tensor

from ..cases import Direction
from . import tiles, tuned_plans, wide
from .calls import native
from .calls.again import BACKWARD, Relaunch
from .launching import (
    DTYPES,
    aligned,
    check,
    configure,
    fitting,
    heads_of,
    processors,
    row_stride,
    rows_of,
    same_memory,
    starts_early,
    tokens_of,
)
from .plans import SPLIT_BACKWARD_PROCESSORS, BackwardPlan, Sum
from .tiles import COUNTERS
from .workspaces import workspace

SUM_ROWS, SUM_COLS = 256, 32  # partial sums that the summing kernel reads at once, and columns of its programs
# Its warps, by the most partial sums that it reads at once.  It waits on the same SMs while the kernel before it runs:
# more warps leave that kernel less room.
SUM_WARPS = {32: 1, 128: 4, SUM_ROWS: 8}
EARLY_PROGRAMS = 3  # on an SM, at most, of a launch of teams that starts early


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
    narrow_dx: Tensor | None = None,
) -> Backward:
    """The gradients, from the statistics of the forward pass.  x is what was normalised (residual_out, if any).

    dy, x, dresidual_out: [..., columns] with strides as for `forward`, which says when rows are copied first.
    dy may be narrower than x, which is then the sum of rows like dy and a wider residual.  narrow_dx: contiguous, like
    dy; if given, dx is also written there.
    rstd, mean: [rows], fp32; a mean makes it LayerNorm.  bias_dtype: there was a bias, in this dtype.
    weight_wanted: False for a frozen weight.
    Raises ValueError if the tensors or the plan do not fit together, tuned_plans.Unreadable for a bad file of plans.
    """
    tensors, others = (dy, x, weight, rstd, mean, dresidual_out, narrow_dx), (bias_dtype, weight_wanted, offset)
    arguments = tensors, *others, tuned_plans.choices
    again: Backward | None = BACKWARD.again(*arguments) if plan is None else None
    if again is not None:
        return again
    by_row, each = {"dy": dy, "dresidual_out": dresidual_out}, {"rstd": rstd, "mean": mean}
    check(x, by_row, {"weight": weight}, each, offset=offset, leading=True, mixed=x.dtype is torch.float32)
    if dresidual_out is not None and dresidual_out.dtype is not x.dtype:
        raise ValueError(f"dresidual_out must be like x, {x.dtype}, not {dresidual_out.dtype}")
    if narrow_dx is not None and not (
        (narrow_dx.shape, narrow_dx.dtype, narrow_dx.device) == (dy.shape, dy.dtype, dy.device)
        and narrow_dx.is_contiguous()
    ):
        raise ValueError(f"narrow_dx must be contiguous and like dy, {tuple(dy.shape)} in {dy.dtype} on {dy.device}")
    if bias_dtype not in (None, *DTYPES):
        raise ValueError(f"bias_dtype must be {', '.join(map(str, DTYPES))} or None, not {bias_dtype}")
    out = _outputs(x, weight, bias_dtype, weight_wanted)
    if not rows_of(x):
        for gradient in (out.dweight, out.dbias):
            if gradient is not None:
                gradient.zero_()
        return out
    given, cols = (dy, x, dresidual_out), x.shape[-1]
    dy, x, dresidual_out = aligned(dy, x, dresidual_out)
    chosen = plan or tuned_plans.chosen_plan(
        Direction.BWD, x, weight, norm="rmsnorm" if mean is None else "layernorm", bias=bias_dtype is not None,
        residual=dresidual_out is not None, rows=rows_of(x), processors=processors(x.device),
        one_stride=heads_of(dy, x, dresidual_out) == 1,
    )  # fmt: skip
    chosen = fitting(chosen, cols, x.device, x.element_size(), 2 if dresidual_out is None else 3)
    launch = partial(_launch, out, dy, x, weight, rstd, mean, dresidual_out, narrow_dx, offset)
    launched = wide.in_one_pass(partial(launch, chosen), x.device, chosen)
    if launched is None:
        launch(replace(chosen, exchange=False))
    elif plan is None and same_memory(given, (dy, x, dresidual_out)):
        BACKWARD.keep(launched.usable, partial(_again, launched, bias_dtype, weight_wanted), *arguments)
        if (narrow_dx is None) == (given[0].dtype is given[1].dtype):
            native.keep_backward(launched, tensors[:-1], *others, tuned_plans.choices)
    return out


class _Launches(NamedTuple):
    main: Relaunch
    sums: Relaunch | None  # of the summing kernel, if separate
    partial_grads: tuple[int, ...] | None  # their shape
    works: bool  # with a workspace

    def usable(self) -> bool:
        return self.main.usable() and (self.sums is None or self.sums.usable())


def _outputs(x: Tensor, weight: Tensor | None, bias_dtype: torch.dtype | None, weight_wanted: bool) -> Backward:
    """Contiguous; not written yet."""
    dx = torch.empty_like(x) if x.is_contiguous() else x.new_empty(x.shape)  # the former takes half as long
    dweight = torch.empty_like(weight) if weight is not None and weight_wanted else None
    return Backward(dx, dweight, None if bias_dtype is None else x.new_empty(x.shape[-1], dtype=bias_dtype))


def _again(
    launches: _Launches, bias_dtype: torch.dtype | None, weight_wanted: bool,
    dy: Tensor, x: Tensor, weight: Tensor | None, rstd: Tensor, mean: Tensor | None, dresidual_out: Tensor | None,
    narrow_dx: Tensor | None,
) -> Backward:  # fmt: skip
    out = _outputs(x, weight, bias_dtype, weight_wanted)
    sums = None if launches.partial_grads is None else x.new_empty(launches.partial_grads, dtype=torch.float32)
    tensors = (dy, x, weight, mean, rstd, dresidual_out, out.dx, narrow_dx, out.dweight, out.dbias, sums)
    if launches.works:
        with workspace(x.device) as work:
            launches.main.again(*tensors, work, None)
    else:
        launches.main.again(*tensors, None, None)
    if launches.sums:
        gradients = [gradient for gradient in (out.dweight, out.dbias) if gradient is not None]
        launches.sums.again(sums, gradients[0], gradients[-1])
    return out


def _launch(out, dy, x, weight, rstd, mean, dresidual_out, narrow_dx, offset, plan) -> _Launches:
    """One pass over the rows, two for a team that does not exchange its sums; then the summing kernel, if separate."""
    rows, cols = rows_of(x), x.shape[-1]
    gradients = [gradient for gradient in (out.dweight, out.dbias) if gradient is not None]
    fused = bool(gradients) and plan.sum is not Sum.SEPARATE
    group = plan.group if plan.sum is Sum.TREE else 0
    constants, tokens = tokens_of(x, plan, X_TOKENS=x, RESIDUAL_TOKENS=dresidual_out, DY_TOKENS=dy)
    teams, config = configure(
        x, plan, center=mean is not None, offset=offset, ACC_ROWS=plan.held, FUSED=fused, GROUP=group, **constants,
    )  # fmt: skip
    # Programmatic dependent launch, as in `forward`, of this kernel and of the summing kernel, which waits while this
    # one runs: 0.82 to 0.99 of the time, apart from teams of six programs on an SM (1.02 to 1.08) and, mostly, of 34 to
    # 132 rows on 132 SMs (0.91 to 1.19).
    few_or_many = rows * SPLIT_BACKWARD_PROCESSORS <= processors(x.device) or rows > processors(x.device)
    early = starts_early(x.device) and (plan.team == 1 or (plan.programs <= EARLY_PROGRAMS and few_or_many))
    sums_early = early and bool(gradients) and not fused
    config = config._replace(EARLY=early, LAUNCH_DEPENDENTS=sums_early)
    dy_stride, x_stride, dresidual_stride = (row_stride(each) // config.UNIT for each in (dy, x, dresidual_out))
    partial_grads, partials = None, None
    if gradients:  # of each gradient: the partial sum of each team, then that of each group
        groups = triton.cdiv(teams, group) if group else 0
        partial_grads = x.new_empty(len(gradients), teams + groups, cols, dtype=torch.float32)
    if plan.team > 1 and not plan.exchange:
        partials = x.new_empty(2, rows, plan.team, dtype=torch.float32)
        _backward_sums[(rows * plan.team,)](
            dy, x, weight, mean, rstd, partials, rows, dy_stride, x_stride, config, num_warps=plan.warps
        )
    works = fused or plan.exchanged
    with workspace(x.device, wanted=works) as work:
        main = Relaunch(
            _backward, (teams * plan.team,),
            (dy, x, weight, mean, rstd, dresidual_out, out.dx, narrow_dx, out.dweight, out.dbias, partial_grads, work,
             partials),
            rows, dy_stride, x_stride, dresidual_stride, *tokens, config, **plan.options,
            **({"launch_pdl": True} if early else {}),
        )  # fmt: skip
    sums = None
    if gradients and not fused:
        sum_rows = min(SUM_ROWS, triton.next_power_of_2(teams))
        warps = next(warps for most, warps in SUM_WARPS.items() if sum_rows <= most)
        sums = Relaunch(
            _sum_partials, (triton.cdiv(cols, SUM_COLS), len(gradients)),
            (partial_grads, gradients[0], gradients[-1]), teams, cols, sum_rows, SUM_COLS, sums_early,
            num_warps=warps, **({"launch_pdl": True} if sums_early else {}),
        )  # fmt: skip
    return _Launches(main, sums, None if partial_grads is None else tuple(partial_grads.shape), works)


# Pointers, the number of rows and strides, for the functions below.
_Tensors = namedtuple(
    "_Tensors",
    "dy x w mean rstd dresidual dx narrow_dx dw db M dy_stride x_stride dresidual_stride heads x_tokens"
    " dresidual_tokens dy_tokens",
)


@triton.jit(
    do_not_specialize=[
        "M", "dy_stride", "x_stride", "dresidual_stride", "heads", "x_tokens", "dresidual_tokens", "dy_tokens",
    ]
)  # fmt: skip
def _backward(
    DY, X, W, MEAN, RSTD, DRESIDUAL, DX, NARROW_DX, DW, DB, PARTIAL_GRADS, WORKSPACE, PARTIALS, M, dy_stride,
    x_stride, dresidual_stride, heads, x_tokens, dresidual_tokens, dy_tokens, CONFIG: tl.constexpr,
):  # fmt: skip
    if CONFIG.EARLY:
        tl.extra.cuda.gdc_wait()
    if CONFIG.LAUNCH_DEPENDENTS:
        tl.extra.cuda.gdc_launch_dependents()
    rank, team = tl.program_id(0) % CONFIG.TEAM, tl.program_id(0) // CONFIG.TEAM
    teams = tl.num_programs(0) // CONFIG.TEAM
    cols = rank * CONFIG.BLOCK + tl.arange(0, CONFIG.BLOCK)
    n_tiles = tl.cdiv(M, CONFIG.ROWS)
    t = _Tensors(
        dy=DY, x=X, w=W, mean=MEAN, rstd=RSTD, dresidual=DRESIDUAL, dx=DX, narrow_dx=NARROW_DX, dw=DW, db=DB, M=M,
        dy_stride=dy_stride * CONFIG.UNIT, x_stride=x_stride * CONFIG.UNIT,
        dresidual_stride=dresidual_stride * CONFIG.UNIT, heads=heads, x_tokens=x_tokens,
        dresidual_tokens=dresidual_tokens, dy_tokens=dy_tokens,
    )  # fmt: skip
    w = cols  # a placeholder where the weight is loaded with each tile
    if CONFIG.WEIGHTS == "held":
        w = tiles.load_columns(W, cols, CONFIG)
    dw = tl.full([CONFIG.ACC_ROWS, CONFIG.BLOCK], 0.0, tl.float32)
    db = tl.full([CONFIG.ACC_ROWS, CONFIG.BLOCK], 0.0, tl.float32)
    if CONFIG.TEAM > 1 and PARTIALS is None:
        dw, db, arrived, epoch = _backward_team(team, teams, n_tiles, rank, cols, w, dw, db, t, WORKSPACE, CONFIG)
    else:
        for tile in tl.range(team, n_tiles, teams, num_stages=CONFIG.STAGES):
            x, dy, mean, rstd = _read(tile, t, cols, CONFIG, CONFIG.KEEP == "cached")
            if PARTIALS is not None:
                rows = tile * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS)
                c2_sum = wide.sum_of_partials(PARTIALS, rows, M, CONFIG) if CONFIG.CENTER else 0.0
                c1_sum = wide.sum_of_partials(PARTIALS + M.to(tl.int64) * CONFIG.TEAM, rows, M, CONFIG)
            else:
                c1_sum, c2_sum = _sums(x, dy, mean, rstd, w, cols, t, CONFIG)
            dw, db = _write(x, dy, mean, rstd, c1_sum, c2_sum, w, dw, db, tile, cols, t, CONFIG)
    if PARTIAL_GRADS is not None:
        groups = tl.cdiv(teams, CONFIG.GROUP) if CONFIG.GROUP else 0
        DB_PARTIALS = PARTIAL_GRADS + (teams + groups) * CONFIG.COLS * (DW is not None)
        if DW is not None:
            tl.store(PARTIAL_GRADS + team * CONFIG.COLS + cols, tl.sum(dw, 0), cols < CONFIG.COLS)
        if DB is not None:
            tl.store(DB_PARTIALS + team * CONFIG.COLS + cols, tl.sum(db, 0), cols < CONFIG.COLS)
        if CONFIG.FUSED:
            _sum_when_last(PARTIAL_GRADS, DB_PARTIALS, team, teams, groups, rank, t, WORKSPACE, CONFIG)
    if CONFIG.TEAM > 1 and PARTIALS is None:
        tiles.release_workspace(WORKSPACE, arrived, epoch, tl.num_programs(0))


@triton.jit
def _backward_team(team, teams, n_tiles, rank, cols, w, dw, db, t, WORKSPACE, CONFIG: tl.constexpr):
    """All rows of a team.  While the sums of a row are exchanged, the next row is read and its sums are published."""
    slots, first_tag = tiles.open_exchange(WORKSPACE, team, CONFIG)
    x, dy, mean, rstd = _read(team, t, cols, CONFIG, CONFIG.KEEP == "cached")
    _publish_sums(x, dy, mean, rstd, w, 0, slots, first_tag, cols, rank, t, CONFIG)
    for tile in tl.range(team + teams, n_tiles, teams, num_stages=CONFIG.STAGES):
        step = tile // teams
        words = tiles.peek_both(tiles.slots_of(step - 1, slots, CONFIG), CONFIG)
        next_x, next_dy, next_mean, next_rstd = _read(tile, t, cols, CONFIG, CONFIG.KEEP == "cached")
        _publish_sums(next_x, next_dy, next_mean, next_rstd, w, step, slots, first_tag, cols, rank, t, CONFIG)
        c1_sum, c2_sum = _collect_sums(step - 1, slots, first_tag, words, CONFIG)
        dw, db = _write(x, dy, mean, rstd, c1_sum, c2_sum, w, dw, db, tile - teams, cols, t, CONFIG)
        x, dy, mean, rstd = next_x, next_dy, next_mean, next_rstd
    last = (n_tiles - 1 - team) // teams
    arrived = tiles.arrive(WORKSPACE, CONFIG)
    words = tiles.peek_both(tiles.slots_of(last, slots, CONFIG), CONFIG)
    c1_sum, c2_sum = _collect_sums(last, slots, first_tag, words, CONFIG)
    dw, db = _write(x, dy, mean, rstd, c1_sum, c2_sum, w, dw, db, team + last * teams, cols, t, CONFIG)
    return dw, db, arrived, first_tag + tl.cdiv(n_tiles, teams) - 1


@triton.jit
def _read(tile, t, cols, CONFIG: tl.constexpr, REUSED: tl.constexpr):
    """(x, dy, mean, rstd) of a tile in their own dtypes."""
    rows = tile * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS)
    x = tiles.load(t.x, rows, t.x_stride, cols, t.M, CONFIG, REUSED, CONFIG.X_TOKENS, t.heads, t.x_tokens)
    dy = tiles.load(t.dy, rows, t.dy_stride, cols, t.M, CONFIG, REUSED, CONFIG.DY_TOKENS, t.heads, t.dy_tokens)
    rstd = tiles.load_statistic(t.rstd, rows, t.M, CONFIG)
    mean = tiles.load_statistic(t.mean, rows, t.M, CONFIG) if CONFIG.CENTER else rstd
    return x, dy, mean, rstd


@triton.jit
def _terms(x, dy, mean, rstd, w, cols, t, CONFIG: tl.constexpr):
    """(x_hat, wdy, dy) in fp32."""
    x_hat = x.to(tl.float32)
    if CONFIG.CENTER:
        x_hat -= mean[:, None]
    x_hat *= rstd[:, None]  # x_hat = (x - mean) * rstd
    dy = dy.to(tl.float32)
    wdy = dy
    if t.w is not None:
        if CONFIG.WEIGHTS != "held":
            w = tiles.load_columns(t.w, cols, CONFIG)
        wdy = dy * (w.to(tl.float32) + CONFIG.OFFSET)  # wdy = dy * (w + offset)
    return x_hat, wdy, dy


@triton.jit
def _sums(x, dy, mean, rstd, w, cols, t, CONFIG: tl.constexpr):
    """(N * c1, N * c2) of each row, [rows], over the columns of this program.  RMSNorm has no c2."""
    x_hat, wdy, _ = _terms(x, dy, mean, rstd, w, cols, t, CONFIG)
    if CONFIG.CENTER:  # both at once: half the barriers of one after the other
        c1_sum, c2_sum = tl.reduce((x_hat * wdy, wdy), 1, _add_pairs)
    else:
        c1_sum = tl.sum(x_hat * wdy, 1)
        c2_sum = c1_sum
    return c1_sum, c2_sum


@triton.jit
def _add_pairs(first, second, other_first, other_second):
    return first + other_first, second + other_second


@triton.jit
def _publish_sums(x, dy, mean, rstd, w, step, slots, first_tag, cols, rank, t, CONFIG: tl.constexpr):
    c1_sum, c2_sum = _sums(x, dy, mean, rstd, w, cols, t, CONFIG)
    slots = tiles.slots_of(step, slots, CONFIG)
    tiles.publish(c1_sum, slots, first_tag + step, rank)
    if CONFIG.CENTER:
        tiles.publish(c2_sum, slots + CONFIG.TEAM, first_tag + step, rank)


@triton.jit
def _collect_sums(step, slots, first_tag, words, CONFIG: tl.constexpr):
    """(N * c1, N * c2) of the team's row of this step, [1] each: the sums of all ranks."""
    slots, zero = tiles.slots_of(step, slots, CONFIG), tl.zeros([1], tl.float32)
    c1_sums = tiles.collect(slots, first_tag + step, words[0], CONFIG)
    if CONFIG.CENTER:
        c2_sums = tiles.collect(slots + CONFIG.TEAM, first_tag + step, words[1], CONFIG)
        c1_sum, c2_sum = tl.reduce((c1_sums, c2_sums), 0, _add_pairs)
    else:
        c1_sum = tl.sum(c1_sums, 0)
        c2_sum = c1_sum
    return c1_sum + zero, c2_sum + zero


@triton.jit
def _write(x, dy, mean, rstd, c1_sum, c2_sum, w, dw, db, tile, cols, t, CONFIG: tl.constexpr):
    """Store dx of a tile; returns dw and db with its rows added."""
    if CONFIG.KEEP == "packed":
        x, dy = tiles.optimization_barrier(x), tiles.optimization_barrier(dy)
    if CONFIG.KEEP == "cached":
        x, dy, mean, rstd = _read(tile, t, cols, CONFIG, False)
    x_hat, wdy, dy = _terms(x, dy, mean, rstd, w, cols, t, CONFIG)
    dx = wdy - x_hat * (c1_sum / CONFIG.COLS)[:, None]  # dx = (wdy - x_hat * c1 - c2) * rstd
    if CONFIG.CENTER:
        dx -= (c2_sum / CONFIG.COLS)[:, None]
    dx *= rstd[:, None]
    rows = tile * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS)
    if t.dresidual is not None:
        dresidual = tiles.load(
            t.dresidual, rows, t.dresidual_stride, cols, t.M, CONFIG, False, CONFIG.RESIDUAL_TOKENS, t.heads,
            t.dresidual_tokens,
        )  # fmt: skip
        dx += dresidual.to(tl.float32)
    tiles.store(t.dx, dx, rows, cols, t.M, CONFIG)
    if t.narrow_dx is not None:
        tiles.store(t.narrow_dx, dx, rows, cols, t.M, CONFIG)
    SHAPE: tl.constexpr = [CONFIG.ROWS // CONFIG.ACC_ROWS, CONFIG.ACC_ROWS, CONFIG.BLOCK]
    if t.dw is not None:
        dw += tl.sum(tl.reshape(dy * x_hat, SHAPE), 0)  # dw = sum(dy * x_hat)
    if t.db is not None:
        db += tl.sum(tl.reshape(dy, SHAPE), 0)  # db = sum(dy)
    return dw, db


@triton.jit(do_not_specialize=["M", "dy_stride", "x_stride"])
def _backward_sums(DY, X, W, MEAN, RSTD, PARTIALS, M, dy_stride, x_stride, CONFIG: tl.constexpr):
    """The first of two passes: PARTIALS [2, rows, TEAM], for each rank N * c2 (LayerNorm) and N * c1 of its columns."""
    rank, row = tl.program_id(0) % CONFIG.TEAM, tl.program_id(0) // CONFIG.TEAM
    cols = rank * CONFIG.BLOCK + tl.arange(0, CONFIG.BLOCK)
    t = _Tensors(
        dy=DY, x=X, w=W, mean=MEAN, rstd=RSTD, dresidual=None, dx=None, narrow_dx=None, dw=None, db=None, M=M,
        dy_stride=dy_stride * CONFIG.UNIT, x_stride=x_stride * CONFIG.UNIT, dresidual_stride=0,
        heads=None, x_tokens=None, dresidual_tokens=None, dy_tokens=None,
    )  # fmt: skip
    x, dy, mean, rstd = _read(row, t, cols, CONFIG, True)
    w = tiles.load_columns(W, cols, CONFIG) if CONFIG.WEIGHTS == "held" else cols
    c1_sum, c2_sum = _sums(x, dy, mean, rstd, w, cols, t, CONFIG)
    wide.store_partials(PARTIALS, row, rank, M, c2_sum, c1_sum, CONFIG)


@triton.jit
def _sum_when_last(DW_PARTIALS, DB_PARTIALS, team, teams, groups, rank, t, WORKSPACE, CONFIG: tl.constexpr):
    """Add up the partial sums if this program is the last one to arrive.

    With groups (a tree), the last program of each group adds up those of its group first.
    """
    counter = WORKSPACE + COUNTERS + rank * (groups + 1)
    first, count, last = 0, teams, True
    if CONFIG.GROUP:
        group = team // CONFIG.GROUP
        size = tl.minimum(CONFIG.GROUP, teams - group * CONFIG.GROUP)
        last = _is_last(counter + 1 + group, size)
        if last:
            at = (teams + group) * CONFIG.COLS
            _sum_columns(
                DW_PARTIALS, DB_PARTIALS, group * CONFIG.GROUP, size, DW_PARTIALS, DB_PARTIALS, at, rank, t, CONFIG
            )
        first, count = teams, groups
    if last:  # noqa: SIM102  an `and` would evaluate both
        if _is_last(counter, count):
            _sum_columns(DW_PARTIALS, DB_PARTIALS, first, count, t.dw, t.db, 0, rank, t, CONFIG)


@triton.jit
def _is_last(COUNTER, count):
    """Whether this program is the last of `count` to arrive; if so, it sees what the others stored before.

    The last one resets the counter.
    """
    tl.debug_barrier()  # all threads have stored
    last = tl.atomic_add(COUNTER, 1, sem="acq_rel") == count - 1
    if last:
        tl.store(COUNTER, 0)
    return last


@triton.jit
def _sum_columns(DW_PARTIALS, DB_PARTIALS, first, count, DW, DB, at, rank, t, CONFIG: tl.constexpr):
    """The columns of this rank, for each gradient: `count` partial sums from number `first` on, stored at DW + at."""
    if t.dw is not None:
        _sum_block(DW_PARTIALS, first, count, DW + at, rank, CONFIG)
    if t.db is not None:
        _sum_block(DB_PARTIALS, first, count, DB + at, rank, CONFIG)


@triton.jit
def _sum_block(P, first, count, OUT, rank, CONFIG: tl.constexpr):
    WIDTH: tl.constexpr = min(CONFIG.BLOCK, 256)
    HEIGHT: tl.constexpr = 16
    begin = rank * CONFIG.BLOCK
    for start in range(begin, min(begin + CONFIG.BLOCK, CONFIG.COLS), WIDTH):
        cols = start + tl.arange(0, WIDTH)
        total = tl.zeros([WIDTH], tl.float32)
        for at in range(0, count, HEIGHT):
            rows = at + tl.arange(0, HEIGHT)
            inside = (rows < count)[:, None] & (cols < CONFIG.COLS)[None, :]
            values = P + (first + rows)[:, None] * CONFIG.COLS + cols[None, :]
            # past the L1 cache: other SMs just wrote them
            total += tl.sum(tl.load(values, inside, other=0.0, cache_modifier=".cg"), 0)
        tl.store(OUT + cols, total.to(OUT.dtype.element_ty), cols < CONFIG.COLS)


@triton.jit
def _sum_partials(
    P, FIRST, SECOND, count, COLS: tl.constexpr, ROWS: tl.constexpr, BLOCK: tl.constexpr, WAIT: tl.constexpr
):
    """A kernel of its own: add up the partial sums of some columns of the first gradient, or of the second."""
    if WAIT:
        tl.extra.cuda.gdc_wait()
    cols = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    which = tl.program_id(1)
    total = tl.zeros([BLOCK], tl.float32)
    for at in range(0, count, ROWS):
        rows = at + tl.arange(0, ROWS)
        inside = (rows < count)[:, None] & (cols < COLS)[None, :]
        total += tl.sum(tl.load(P + (which * count + rows)[:, None] * COLS + cols[None, :], inside, other=0.0), 0)
    if which == 0:
        tl.store(FIRST + cols, total.to(FIRST.dtype.element_ty), cols < COLS)
    else:
        tl.store(SECOND + cols, total.to(SECOND.dtype.element_ty), cols < COLS)
