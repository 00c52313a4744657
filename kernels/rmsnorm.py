"""RMSNorm in Triton: y = x / rms(x) * weight, each row reduced in fp32."""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators

from dataclasses import dataclass

import torch
import triton
import triton.language as tl
from torch import Tensor

WIDEST = 32768  # columns; a row has to fit into the registers of one program


@dataclass(frozen=True)
class Plan:
    """How a kernel is launched: rows held at once by a program, warps, and programs an SM when they loop over rows."""

    rows: int
    warps: int
    programs: int = 0  # 0: one program for each block of rows
    stages: int = 1
    opaque: bool = False


# Without spills on sm_90 up to 16384 (compiled, not all of them timed): 8 warps at 4096 columns, 16 from 16384 on.
# At 8192 columns 8 warps take 70 us where 16 took 87 (8192 rows, H200, November).
# Below 2048 columns one row is too little to keep the memory busy.  At 16384, reading an fp32 weight again for each row
# costs as much L2 traffic as the row itself (0.65 of Quack's speed), so programs loop and keep it in registers.
_FORWARD = {
    256: Plan(16, 4),
    512: Plan(8, 4),
    1024: Plan(4, 4),
    2048: Plan(1, 4),
    4096: Plan(1, 8),
    8192: Plan(1, 8),
    16384: Plan(1, 16, programs=1, stages=3),
    32768: Plan(1, 32),
}
# As many programs as fit on an SM.  The opaque move saves 20 registers at 4096 columns, and at 16384 all but 6 of the
# spills of an fp32 weight (1.17 of Quack's speed there, with one program an SM and one stage; H200, November).
_BACKWARD = {
    256: Plan(16, 4, programs=4),
    512: Plan(8, 4, programs=4),
    1024: Plan(2, 4, programs=4),
    2048: Plan(1, 4, programs=6, opaque=True),
    4096: Plan(1, 8, programs=3, opaque=True),
    8192: Plan(1, 16, programs=1, opaque=True),
    16384: Plan(1, 16, programs=1, opaque=True),
    32768: Plan(1, 32, programs=1, opaque=True),
}
SUM_ROWS, SUM_COLS = 16, 64  # of the partial weight gradients, per step and per program


def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """y like x.  x is [rows, columns] with dense rows, at most WIDEST columns; the weight may have another dtype."""
    return _forward_into(None, x, weight, eps)


def forward_with_rstd(x: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    """(y, rstd): as `forward`, with what the backward pass takes, [rows] in fp32."""
    rstd = torch.empty(x.shape[0], dtype=torch.float32, device=x.device)
    return _forward_into(rstd, x, weight, eps), rstd


def _forward_into(rstd: Tensor | None, x: Tensor, weight: Tensor, eps: float) -> Tensor:
    rows, cols = x.shape
    block = _block(cols)
    plan = _FORWARD[max(256, block)]
    y = torch.empty_like(x)
    tensors = (x, weight, y, rstd, rows, cols, x.stride(0), y.stride(0), eps)
    even = block == cols
    if plan.programs:
        programs = min(rows, plan.programs * _processors(x))
        _forward_looping[(programs,)](*tensors, block, even, plan.stages, num_warps=plan.warps)
    else:
        _forward[(triton.cdiv(rows, plan.rows),)](*tensors, plan.rows, block, even, num_warps=plan.warps)
    return y


def backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, eps: float) -> tuple[Tensor, Tensor]:  # noqa: ARG001
    """(dx like x, dweight like weight) from the forward pass's rstd, [rows] in fp32.

    Each program sums its own part of dweight over its rows, and a second kernel adds the parts in a fixed order: the
    same bits every time.
    """
    rows, cols = x.shape
    block = _block(cols)
    plan = _BACKWARD[max(256, block)]
    programs = min(triton.cdiv(rows, plan.rows), plan.programs * _processors(x))
    dx, dweight = torch.empty_like(x), torch.empty_like(weight)
    parts = torch.empty(programs, cols, dtype=torch.float32, device=x.device)
    tensors = (dy, x, weight, rstd, dx, parts, rows, cols, dy.stride(0), x.stride(0), dx.stride(0))
    even = block == cols
    if plan.rows > 1:
        _backward_rows[(programs,)](*tensors, plan.rows, block, even, num_warps=plan.warps)
    else:
        # inline assembly does not run in the interpreter, and packs two 16-bit values
        opaque = plan.opaque and x.is_cuda and x.element_size() == 2
        _backward_row[(programs,)](*tensors, block, even, opaque, plan.stages, num_warps=plan.warps)
    _sum_parts[(triton.cdiv(cols, SUM_COLS),)](parts, dweight, programs, cols, SUM_ROWS, SUM_COLS, num_warps=4)
    return dx, dweight


@triton.jit
def _forward(X, W, Y, RSTD, M, N, x_stride, y_stride, eps, ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr):
    rows = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, BLOCK)
    inside = (rows < M)[:, None] if EVEN else (rows < M)[:, None] & (cols < N)[None, :]
    start = rows.to(tl.int64)[:, None]
    x = tl.load(X + start * x_stride + cols[None, :], inside, other=0.0, eviction_policy="evict_first").to(tl.float32)
    w = _weight(W, cols, N, EVEN)
    scale = tl.rsqrt(tl.sum(x * x, 1) / N + eps)
    if RSTD is not None:
        tl.store(RSTD + rows, scale, rows < M)
    y = x * scale[:, None] * w[None, :]
    tl.store(Y + start * y_stride + cols[None, :], y.to(Y.dtype.element_ty), inside)


@triton.jit
def _forward_looping(
    X, W, Y, RSTD, M, N, x_stride, y_stride, eps, BLOCK: tl.constexpr, EVEN: tl.constexpr, STAGES: tl.constexpr
):
    cols = tl.arange(0, BLOCK)
    w = _weight(W, cols, N, EVEN)
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0), num_stages=STAGES):
        start = tl.cast(row, tl.int64)
        x = _row(X + start * x_stride, cols, N, EVEN).to(tl.float32)
        scale = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
        if RSTD is not None:
            tl.store(RSTD + row, scale)
        y = (x * scale * w).to(Y.dtype.element_ty)
        if EVEN:
            tl.store(Y + start * y_stride + cols, y)
        else:
            tl.store(Y + start * y_stride + cols, y, cols < N)


@triton.jit
def _backward_rows(
    DY, X, W, RSTD, DX, PARTS, M, N, dy_stride, x_stride, dx_stride,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, EVEN: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    w = _weight(W, cols, N, EVEN)[None, :]
    dw = tl.zeros([BLOCK], tl.float32)
    for tile in tl.range(first, tl.cdiv(M, ROWS), tl.num_programs(0)):
        rows = tile * ROWS + tl.arange(0, ROWS)
        present = rows < M
        inside = present[:, None] if EVEN else present[:, None] & (cols < N)[None, :]
        start = rows.to(tl.int64)[:, None]
        xs = tl.load(X + start * x_stride + cols[None, :], inside, other=0.0, eviction_policy="evict_first")
        dys = tl.load(DY + start * dy_stride + cols[None, :], inside, other=0.0, eviction_policy="evict_first")
        x, dy = xs.to(tl.float32), dys.to(tl.float32)
        scale = tl.load(RSTD + rows, present, other=0.0)[:, None]
        along = tl.sum(x * dy * w, 1)[:, None] * scale * (scale / N)
        dx = (dy * w - x * along) * scale
        tl.store(DX + start * dx_stride + cols[None, :], dx.to(DX.dtype.element_ty), inside)
        dw += tl.sum(dy * (x * scale), 0)
    tl.store(PARTS + first.to(tl.int64) * N + cols, dw, cols < N)


@triton.jit
def _backward_row(
    DY, X, W, RSTD, DX, PARTS, M, N, dy_stride, x_stride, dx_stride,
    BLOCK: tl.constexpr, EVEN: tl.constexpr, OPAQUE: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    first = tl.program_id(0)
    cols = tl.arange(0, BLOCK)
    dw = tl.zeros([BLOCK], tl.float32)
    for row in tl.range(first, M, tl.num_programs(0), num_stages=STAGES):
        start = tl.cast(row, tl.int64)
        xs = _row(X + start * x_stride, cols, N, EVEN)
        dys = _row(DY + start * dy_stride, cols, N, EVEN)
        scale = tl.load(RSTD + row)
        # The weight is read again for each row: it stays in the cache, and held it would cost the registers of a row.
        x, dy, w = xs.to(tl.float32), dys.to(tl.float32), _weight(W, cols, N, EVEN)
        along = tl.sum(x * dy * w, 0) * scale * (scale / N)
        if OPAQUE:
            # The compiler must not know that these are the values from before the sum: it would keep their fp32 copies.
            x = _opaque(xs).to(tl.float32)
            dy = _opaque(dys).to(tl.float32)
            w = _weight(W, cols, N, EVEN)
        dx = (dy * w - x * along) * scale
        dw += dy * (x * scale)
        if EVEN:
            tl.store(DX + start * dx_stride + cols, dx.to(DX.dtype.element_ty))
        else:
            tl.store(DX + start * dx_stride + cols, dx.to(DX.dtype.element_ty), cols < N)
    tl.store(PARTS + first.to(tl.int64) * N + cols, dw, cols < N)


@triton.jit
def _sum_parts(PARTS, DW, count, N, ROWS: tl.constexpr, COLS: tl.constexpr):
    cols = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros([COLS], tl.float32)
    for first in range(0, count, ROWS):
        rows = first + tl.arange(0, ROWS)
        inside = (rows < count)[:, None] & (cols < N)[None, :]
        total += tl.sum(tl.load(PARTS + rows.to(tl.int64)[:, None] * N + cols[None, :], inside, other=0.0), 0)
    tl.store(DW + cols, total.to(DW.dtype.element_ty), cols < N)


@triton.jit
def _weight(W, cols, N, EVEN: tl.constexpr):
    if EVEN:
        w = tl.load(W + cols, eviction_policy="evict_last")
    else:
        w = tl.load(W + cols, cols < N, other=0.0, eviction_policy="evict_last")
    return w.to(tl.float32)


@triton.jit
def _row(start, cols, N, EVEN: tl.constexpr):
    if EVEN:
        values = tl.load(start + cols, eviction_policy="evict_first")
    else:
        values = tl.load(start + cols, cols < N, other=0.0, eviction_policy="evict_first")
    return values


@triton.jit
def _opaque(values):
    return tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [values], dtype=values.dtype, is_pure=False, pack=2)


def _block(cols: int) -> int:
    if cols > WIDEST:
        raise ValueError(f"{cols} columns; at most {WIDEST}")
    return int(triton.next_power_of_2(cols))


def _processors(x: Tensor) -> int:
    """SMs of the device; a handful in the interpreter, so that tests run through loops there."""
    return torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 3
