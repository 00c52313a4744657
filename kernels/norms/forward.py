"""The forward pass of RMSNorm and LayerNorm.  Each row is computed in fp32 and rounded once:

    x_hat = (x - mean) * rstd                   mean = 0 for RMSNorm
    y     = x_hat * (w + offset) + b
    rstd  = 1 / sqrt(m2 / N + eps)              m2 = sum((x - mean)^2), N columns

RMSNorm is Zhang and Sennrich (2019), LayerNorm is Ba, Kiros and Hinton (2016).  LayerNorm subtracts the mean before it
squares, so the variance stays accurate for a large mean.  x is read from memory once: between its sums and their use a
row stays in registers or is read again from the cache.  A row that is too wide for one program is split over a team of
programs, which exchange their sums through the L2 cache; where they cannot, a first pass computes the sums (`wide`).
Some SMs get less of the memory's bandwidth than others: programs of a team take rows when they are ready, unless rows
are prefetched, which needs a fixed share of them.
"""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN202, RUF005
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code="assignment, var-annotated"

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
from .calls.again import FORWARD, Relaunch
from .launching import (
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
    sum_dtype,
    tokens_of,
)
from .plans import AT_ONCE_WARPS, ForwardPlan
from .workspaces import slots_begin, slots_of_rows, workspace


class Forward(NamedTuple):
    y: Tensor  # like x
    residual_out: Tensor | None  # x + residual, rounded: what was normalised; in the dtype of torch's sum
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
    """Normalise the rows of x, [..., columns]; the elements of a row are contiguous, its stride is free.

    Heads and tokens may have a stride each, as in a slice of a packed projection (`launching.by_stride`).  Rows that
    only allow narrower accesses than dense rows are copied first (`launching.aligned`).
    residual: like x, added before the norm.  weight, bias: [columns].  These may have any of the three dtypes.
    center: LayerNorm.  offset: added to the weight (Gemma stores weight - 1).  statistics: return `mean` and `rstd` for
    the backward pass.
    Raises ValueError if the tensors or the plan do not fit together, tuned_plans.Unreadable for a bad file of plans.
    """
    arguments = (x, weight, bias, residual), eps, center, offset, statistics, tuned_plans.choices
    again: Forward | None = FORWARD.again(*arguments) if plan is None else None
    if again is not None:
        return again
    check(x, {"residual": residual}, {"weight": weight, "bias": bias}, offset=offset, leading=True, mixed=True)
    out = _outputs(x, residual, center, statistics)
    if not (rows := rows_of(x)):
        return out
    given, cols = (x, residual), x.shape[-1]
    x, residual = aligned(x, residual)
    summed = out.y if out.residual_out is None else out.residual_out
    chosen = plan or tuned_plans.chosen_plan(
        Direction.FWD, summed, weight, norm="layernorm" if center else "rmsnorm", bias=bias is not None,
        residual=residual is not None, rows=rows, processors=processors(x.device),
        one_stride=heads_of(x, residual) == 1,
    )  # fmt: skip
    chosen = fitting(chosen, cols, x.device, summed.element_size(), 1 if residual is None else 2)
    launch = partial(_launch, weight=weight, bias=bias, eps=eps, center=center, offset=offset)
    launched = wide.in_one_pass(partial(launch, out, x, residual, chosen), x.device, chosen)
    if launched is None:
        flat_out = out._replace(y=out.y.view(rows, cols))
        if out.residual_out is not None:
            flat_out = flat_out._replace(residual_out=out.residual_out.view(rows, cols))
        for slab in wide.slabs(x, residual):
            out_slab = Forward._make(None if tensor is None else tensor[slab] for tensor in flat_out)
            launch(out_slab, x[slab], None if residual is None else residual[slab], replace(chosen, exchange=False))
    elif plan is None and same_memory(given, (x, residual)):
        FORWARD.keep(launched.usable, partial(_again, launched, chosen, center, statistics), *arguments)
        begin = slots_begin(rows, chosen.team) if chosen.exchanged and chosen.dynamic else 0
        if begin is not None:
            native.keep_forward(launched, *arguments, slots=begin if chosen.exchanged else None)
    return out


def _outputs(x: Tensor, residual: Tensor | None, center: bool, statistics: bool) -> Forward:
    """Like x, contiguous; not written yet."""
    y = torch.empty_like(x) if x.is_contiguous() else x.new_empty(x.shape)  # the former takes half as long
    residual_out = None
    if residual is not None:
        residual_out = torch.empty_like(y, dtype=sum_dtype(x.dtype, residual.dtype))
    rstd = x.new_empty(rows_of(x), dtype=torch.float32) if statistics else None
    return Forward(y, residual_out, torch.empty_like(rstd) if rstd is not None and center else None, rstd)


def _again(
    launch: Relaunch, plan: ForwardPlan, center: bool, statistics: bool,
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None,
) -> Forward:  # fmt: skip
    out = _outputs(x, residual, center, statistics)
    tensors = (x, residual, weight, bias, *out)
    if not plan.exchanged:
        launch.again(*tensors, None, None, None)
        return out
    with workspace(x.device) as work:
        slots = slots_of_rows(work, rows_of(x), plan.team) if work is not None and plan.dynamic else None
        launch.again(*tensors, work, slots, None)
    return out


def _launch(out, x, residual, plan, *, weight, bias, eps, center, offset) -> Relaunch:
    """One pass over the rows; two for a team that does not exchange its sums.  Returns the last."""
    rows = rows_of(x)
    like = out.y if residual is None else out.residual_out
    constants, tokens = tokens_of(like, plan, X_TOKENS=x, RESIDUAL_TOKENS=residual)
    teams, config = configure(like, plan, center=center, offset=offset, **constants)
    # Programmatic dependent launch: each launch may start before the kernel before it ends, and waits for that on the
    # device: a norm after a product of matrices takes 0.9 us less (H200).  One with few warps lets the next start when
    # it has waited.  With more, launches that wait would take the places of the one that runs: at four warps for each
    # SM, norms one after the other took 1.4 times as long.  There the next starts when these programs end.
    early = starts_early(x.device)
    at_once = early and teams * plan.team * plan.warps <= AT_ONCE_WARPS * processors(x.device)
    config = config._replace(EARLY=early, LAUNCH_DEPENDENTS=at_once)
    strides = row_stride(x) // config.UNIT, row_stride(residual) // config.UNIT
    partials = None
    if plan.team > 1 and not plan.exchange:
        partials = x.new_empty(2, rows, plan.team, dtype=torch.float32)
        _forward_sums[(rows * plan.team,)](x, residual, partials, rows, *strides, config, num_warps=plan.warps)
    with workspace(x.device, wanted=plan.exchanged) as work:
        slots = slots_of_rows(work, rows, plan.team) if work is not None and plan.dynamic else None
        return Relaunch(
            _forward, (teams * plan.team,),
            (x, residual, weight, bias, out.y, out.residual_out, out.mean, out.rstd, work, slots, partials),
            rows, *strides, *tokens, eps, config, **plan.options, **({"launch_pdl": True} if early else {}),
        )  # fmt: skip


# Pointers, the number of rows and strides, for the functions below.
_Tensors = namedtuple(
    "_Tensors", "x residual w b y residual_out mean rstd M x_stride residual_stride heads x_tokens residual_tokens"
)


@triton.jit(do_not_specialize=["M", "x_stride", "residual_stride", "heads", "x_tokens", "residual_tokens"])
def _forward(
    X, RESIDUAL, W, B, Y, RESIDUAL_OUT, MEAN, RSTD, WORKSPACE, SLOTS, PARTIALS, M, x_stride, residual_stride, heads,
    x_tokens, residual_tokens, eps, CONFIG: tl.constexpr,
):  # fmt: skip
    if CONFIG.EARLY:  # the wait is for the end of the kernel before: memory is not accessed until then
        tl.extra.cuda.gdc_wait()
    if CONFIG.LAUNCH_DEPENDENTS:  # after it: the next kernel may read before its own wait what that kernel wrote
        tl.extra.cuda.gdc_launch_dependents()
    rank, team = tl.program_id(0) % CONFIG.TEAM, tl.program_id(0) // CONFIG.TEAM
    teams = tl.num_programs(0) // CONFIG.TEAM
    cols = rank * CONFIG.BLOCK + tl.arange(0, CONFIG.BLOCK)
    n_tiles = tl.cdiv(M, CONFIG.ROWS)
    t = _Tensors(
        x=X, residual=RESIDUAL, w=W, b=B, y=Y, residual_out=RESIDUAL_OUT, mean=MEAN, rstd=RSTD, M=M,
        x_stride=x_stride * CONFIG.UNIT, residual_stride=residual_stride * CONFIG.UNIT, heads=heads,
        x_tokens=x_tokens, residual_tokens=residual_tokens,
    )  # fmt: skip
    if SLOTS is not None:
        _forward_dynamic(team, teams, rank, cols, t, WORKSPACE, SLOTS, eps, CONFIG)
    elif WORKSPACE is not None:
        _forward_team(team, teams, n_tiles, rank, cols, t, WORKSPACE, eps, CONFIG)
    elif CONFIG.BLOCKS > 1:
        _forward_blocks(team, cols, t, eps, CONFIG)
    else:
        w, b = _held_weights(cols, t, CONFIG)
        if CONFIG.PERSISTENT:
            for tile in tl.range(team, n_tiles, teams, num_stages=CONFIG.STAGES):
                _forward_tile(tile, rank, cols, w, b, t, PARTIALS, eps, CONFIG)
        else:
            _forward_tile(team, rank, cols, w, b, t, PARTIALS, eps, CONFIG)


@triton.jit
def _held_weights(cols, t, CONFIG: tl.constexpr):
    """(w, b) of these columns; placeholders where they are loaded with each tile."""
    w, b = cols, cols
    if CONFIG.WEIGHTS == "held":
        w, b = tiles.load_columns(t.w, cols, CONFIG), tiles.load_columns(t.b, cols, CONFIG)
    return w, b


@triton.jit
def _forward_tile(tile, rank, cols, w, b, t, PARTIALS, eps, CONFIG: tl.constexpr):
    """A tile whose sums need no exchange: whole rows, or partial sums of a first pass."""
    x = _read(tile, t, cols, CONFIG)
    if CONFIG.WEIGHTS == "early":
        w, b = tiles.load_columns(t.w, cols, CONFIG), tiles.load_columns(t.b, cols, CONFIG)
    if PARTIALS is not None:
        rows = tile * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS)
        mean, rstd = wide.merged_statistics(PARTIALS, rows, t.M, eps, CONFIG)
    else:
        mean, m2 = _moments(x, cols, rank, CONFIG)
        rstd = tl.rsqrt(m2 / CONFIG.COLS + eps)
    _write(x, tile, mean, rstd, rank, cols, w, b, t, CONFIG)


@triton.jit
def _forward_blocks(row, cols, t, eps, CONFIG: tl.constexpr):
    """Whole rows in blocks: together they are closer to the width than one power of two, and need fewer registers."""
    BLOCKS: tl.constexpr = CONFIG.BLOCKS
    xs, ws, bs = (), (), ()
    for block in tl.static_range(BLOCKS):
        block_cols = cols + block * CONFIG.BLOCK
        if CONFIG.KEEP != "cached":
            xs = xs + (_load(row, t, block_cols, CONFIG, False),)
        if CONFIG.WEIGHTS == "early":
            ws = ws + (tiles.load_columns(t.w, block_cols, CONFIG),)
            bs = bs + (tiles.load_columns(t.b, block_cols, CONFIG),)
    mean, m2 = _moments_of_blocks(xs, row, cols, t, CONFIG)
    rstd = tl.rsqrt(m2 / CONFIG.COLS + eps)
    _store_statistics(row, mean, rstd, t, CONFIG)
    for block in tl.static_range(BLOCKS):
        block_cols = cols + block * CONFIG.BLOCK
        x = _load(row, t, block_cols, CONFIG, False) if CONFIG.KEEP == "cached" else xs[block]
        if t.residual_out is not None:  # after all loads, which would wait for it
            tiles.store(t.residual_out, x, row * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS), block_cols, t.M, CONFIG)
        if CONFIG.WEIGHTS == "early":
            w, b = ws[block], bs[block]
        else:
            w, b = tiles.load_columns(t.w, block_cols, CONFIG), tiles.load_columns(t.b, block_cols, CONFIG)
        _write_block(x, row, mean, rstd, block_cols, w, b, t, CONFIG)


@triton.jit
def _forward_team(team, teams, n_tiles, rank, cols, t, WORKSPACE, eps, CONFIG: tl.constexpr):
    """All rows of a team.  While the sums of a row are exchanged, the next row is read and its sums are published."""
    slots, first_tag = tiles.open_exchange(WORKSPACE, team, CONFIG)
    x = _read(team, t, cols, CONFIG)
    w, b = _held_weights(cols, t, CONFIG)  # after the first row: its sums do not wait for them
    _publish_sums(x, slots, first_tag, cols, rank, CONFIG)
    for tile in tl.range(team + teams, n_tiles, teams, num_stages=CONFIG.STAGES):
        step = tile // teams
        before = tiles.slots_of(step - 1, slots, CONFIG)
        if CONFIG.CENTER:  # early for LayerNorm, which has two sums; RMSNorm loses 1 % by it
            words = tiles.peek_both(before, CONFIG)
        next_x = _read(tile, t, cols, CONFIG)
        _publish_sums(next_x, tiles.slots_of(step, slots, CONFIG), first_tag + step, cols, rank, CONFIG)
        if not CONFIG.CENTER:
            words = tiles.peek_both(before, CONFIG)
        mean, rstd = _collect_sums(before, first_tag + step - 1, words, eps, CONFIG)
        _write(x, tile - teams, mean, rstd, rank, cols, w, b, t, CONFIG)
        x = next_x
    last = (n_tiles - 1 - team) // teams
    before = tiles.slots_of(last, slots, CONFIG)
    arrived = tiles.arrive(WORKSPACE, CONFIG)
    words = tiles.peek_both(before, CONFIG)
    mean, rstd = _collect_sums(before, first_tag + last, words, eps, CONFIG)
    _write(x, team + last * teams, mean, rstd, rank, cols, w, b, t, CONFIG)
    tiles.release_workspace(WORKSPACE, arrived, first_tag + tl.cdiv(n_tiles, teams) - 1, tl.num_programs(0))


@triton.jit
def _forward_dynamic(team, teams, rank, cols, t, WORKSPACE, SLOTS, eps, CONFIG: tl.constexpr):
    """Rows in dynamic scheduling: each program takes the next row of its rank when it is ready.

    The team of a row are the programs that took it, one of each rank.  Each rank takes rows in order, and a program
    publishes the sums of a row before it waits for those of the row before.  So the sums that it waits for are
    published or their row is about to be taken: no program waits forever.
    """
    tag = (tl.load(WORKSPACE).to(tl.int32) + 1) | 1  # never 0, which is the tag of slots that were just zeroed
    row = team
    x = _read(row, t, cols, CONFIG)
    w, b = _held_weights(cols, t, CONFIG)  # after the first row: its sums do not wait for them
    following = tiles.take_row(WORKSPACE, rank, teams, t.M)
    _publish_sums(x, tiles.slots_of_row(row, SLOTS, CONFIG), tag, cols, rank, CONFIG)
    while following < t.M:
        next_x = _read(following, t, cols, CONFIG)
        after = tiles.take_row(WORKSPACE, rank, teams, t.M)  # early: the answer takes as long as the loads
        _publish_sums(next_x, tiles.slots_of_row(following, SLOTS, CONFIG), tag, cols, rank, CONFIG)
        _finish_row(x, row, rank, cols, w, b, t, SLOTS, tag, eps, CONFIG)
        x, row, following = next_x, following, after
    arrived = tiles.arrive(WORKSPACE, CONFIG)
    _finish_row(x, row, rank, cols, w, b, t, SLOTS, tag, eps, CONFIG)
    tiles.release_workspace(WORKSPACE, arrived, tag, tl.num_programs(0), CONFIG.TEAM)


@triton.jit
def _finish_row(x, row, rank, cols, w, b, t, SLOTS, tag, eps, CONFIG: tl.constexpr):
    slots = tiles.slots_of_row(row, SLOTS, CONFIG)
    mean, rstd = _collect_sums(slots, tag, tiles.peek_both(slots, CONFIG), eps, CONFIG)
    _write(x, row, mean, rstd, rank, cols, w, b, t, CONFIG)


@triton.jit
def _read(tile, t, cols, CONFIG: tl.constexpr):
    """Return the tensor to normalise, in its own dtype; stores residual_out."""
    x = _load(tile, t, cols, CONFIG, CONFIG.KEEP == "cached")
    if t.residual_out is not None:
        tiles.store(t.residual_out, x, tile * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS), cols, t.M, CONFIG)
    return x


@triton.jit
def _load(tile, t, cols, CONFIG: tl.constexpr, REUSED: tl.constexpr):
    """x, or x + residual rounded to its dtype."""
    rows = tile * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS)
    x = tiles.load(t.x, rows, t.x_stride, cols, t.M, CONFIG, REUSED, CONFIG.X_TOKENS, t.heads, t.x_tokens)
    if t.residual is not None:
        residual = tiles.load(
            t.residual, rows, t.residual_stride, cols, t.M, CONFIG, REUSED, CONFIG.RESIDUAL_TOKENS, t.heads,
            t.residual_tokens,
        )  # fmt: skip
        total = x.to(tl.float32) + residual.to(tl.float32)
        x = (
            total.to(x.dtype) if x.dtype == residual.dtype else total
        )  # two dtypes of 16 bits have a sum in fp32 as well
    return x


@triton.jit
def _moments(x, cols, rank, CONFIG: tl.constexpr):
    """(mean, m2) of each row, [rows], over the n columns of this program."""
    n = CONFIG.COLS if CONFIG.TEAM == 1 else tl.minimum(CONFIG.BLOCK, CONFIG.COLS - rank * CONFIG.BLOCK)
    x = x.to(tl.float32)
    mean = tl.zeros([x.shape[0]], tl.float32)
    if CONFIG.CENTER:
        mean = tl.sum(x, 1) / n
        x -= mean[:, None]
        if CONFIG.MASKED:
            x = tl.where((cols < CONFIG.COLS)[None, :], x, 0.0)
    return mean, tl.sum(x * x, 1)  # m2 = sum((x - mean)^2)


@triton.jit
def _moments_of_blocks(xs, tile, cols, t, CONFIG: tl.constexpr):
    """(mean, m2) of each row, [rows], of blocks in registers; or of blocks that are read here, for LayerNorm twice."""
    BLOCKS: tl.constexpr = CONFIG.BLOCKS
    mean = tl.full([CONFIG.ROWS], 0.0, tl.float32)
    if CONFIG.CENTER:
        total = tl.full([CONFIG.ROWS, CONFIG.BLOCK], 0.0, tl.float32)
        for block in tl.static_range(BLOCKS):
            total += _block_of(xs, block, tile, cols, t, CONFIG)
        mean = tl.sum(total, 1) / CONFIG.COLS
    squares = tl.full([CONFIG.ROWS, CONFIG.BLOCK], 0.0, tl.float32)
    for block in tl.static_range(BLOCKS):
        x = _block_of(xs, block, tile, cols, t, CONFIG)
        if CONFIG.CENTER:
            x -= mean[:, None]
            if CONFIG.MASKED:
                x = tl.where((cols + block * CONFIG.BLOCK < CONFIG.COLS)[None, :], x, 0.0)
        squares += x * x
    return mean, tl.sum(squares, 1)


@triton.jit
def _block_of(xs, block: tl.constexpr, tile, cols, t, CONFIG: tl.constexpr):
    """In fp32."""
    x = _load(tile, t, cols + block * CONFIG.BLOCK, CONFIG, True) if CONFIG.KEEP == "cached" else xs[block]
    return x.to(tl.float32)


@triton.jit
def _publish_sums(x, slots, tag, cols, rank, CONFIG: tl.constexpr):
    """Publish m2, and for LayerNorm the mean, of this program's columns of a row, whose slots these are."""
    mean, m2 = _moments(x, cols, rank, CONFIG)
    tiles.publish(m2, slots, tag, rank)
    if CONFIG.CENTER:
        tiles.publish(mean, slots + CONFIG.TEAM, tag, rank)


@triton.jit
def _collect_sums(slots, tag, words, eps, CONFIG: tl.constexpr):
    """(mean, rstd) of the row with these slots, [1] each, merged as by Chan, Golub and LeVeque (1979):

    mean = sum(n_i * mean_i) / N,  m2 = sum(m2_i) + sum(n_i * (mean_i - mean)^2) over the ranks i, with n_i columns.
    """
    m2 = tiles.collect(slots, tag, words[0], CONFIG)
    mean = 0.0
    if CONFIG.CENTER:
        means = tiles.collect(slots + CONFIG.TEAM, tag, words[1], CONFIG)
        counts = tiles.columns_of(tl.arange(0, CONFIG.THREADS), CONFIG)
        mean = tl.sum(means * counts, 0) / CONFIG.COLS
        deviations = tl.where(counts > 0, means - mean, 0.0)
        m2 += counts * deviations * deviations
    zero = tl.zeros([1], tl.float32)
    return zero + mean, zero + tl.rsqrt(tl.sum(m2, 0) / CONFIG.COLS + eps)


@triton.jit
def _write(x, tile, mean, rstd, rank, cols, w, b, t, CONFIG: tl.constexpr):
    """Normalise a tile and store y; rank 0 stores the statistics."""
    if rank == 0:
        _store_statistics(tile, mean, rstd, t, CONFIG)
    if CONFIG.WEIGHTS == "late":  # before the row: after it, 65536 columns spill four registers on sm_100
        w, b = tiles.load_columns(t.w, cols, CONFIG), tiles.load_columns(t.b, cols, CONFIG)
    if CONFIG.KEEP == "cached":
        x = _load(tile, t, cols, CONFIG, False)
    _write_block(x, tile, mean, rstd, cols, w, b, t, CONFIG)


@triton.jit
def _store_statistics(tile, mean, rstd, t, CONFIG: tl.constexpr):
    rows = tile * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS)
    if t.mean is not None:
        tl.store(t.mean + rows, mean, rows < t.M)
    if t.rstd is not None:
        tl.store(t.rstd + rows, rstd, rows < t.M)


@triton.jit
def _write_block(x, tile, mean, rstd, cols, w, b, t, CONFIG: tl.constexpr):
    """Normalise these columns of a tile and store y."""
    if CONFIG.KEEP == "packed":
        x = tiles.optimization_barrier(x)
    x = x.to(tl.float32)
    if CONFIG.CENTER:
        x -= mean[:, None]
    y = x * rstd[:, None]  # x_hat = (x - mean) * rstd
    if t.w is not None:
        y *= w.to(tl.float32) + CONFIG.OFFSET  # y = x_hat * (w + offset) + b
    if t.b is not None:
        y += b.to(tl.float32)
    tiles.store(t.y, y, tile * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS), cols, t.M, CONFIG)


@triton.jit(do_not_specialize=["M", "x_stride", "residual_stride"])
def _forward_sums(X, RESIDUAL, PARTIALS, M, x_stride, residual_stride, CONFIG: tl.constexpr):
    """The first of two passes: PARTIALS [2, rows, TEAM], for each rank the mean (LayerNorm) and m2 of its columns."""
    rank, row = tl.program_id(0) % CONFIG.TEAM, tl.program_id(0) // CONFIG.TEAM
    cols = rank * CONFIG.BLOCK + tl.arange(0, CONFIG.BLOCK)
    t = _Tensors(
        x=X, residual=RESIDUAL, w=None, b=None, y=None, residual_out=None, mean=None, rstd=None, M=M,
        x_stride=x_stride * CONFIG.UNIT, residual_stride=residual_stride * CONFIG.UNIT, heads=None, x_tokens=None,
        residual_tokens=None,
    )  # fmt: skip
    mean, m2 = _moments(_load(row, t, cols, CONFIG, True), cols, rank, CONFIG)
    wide.store_partials(PARTIALS, row, rank, M, mean, m2, CONFIG)
