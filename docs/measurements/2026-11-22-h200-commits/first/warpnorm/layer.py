"""LayerNorm: y = (x - mean(x)) / sqrt(var(x) + eps) * weight + bias."""

import torch
import triton
import triton.language as tl

from warpnorm.launch import backward_programs, backward_warps
from warpnorm.partials import summed


def _block(cols):
    return max(128, triton.next_power_of_2(cols))


@triton.autotune(
    configs=[triton.Config({}, num_warps=4), triton.Config({}, num_warps=8), triton.Config({}, num_warps=16)],
    key=["cols"],
)
@triton.jit
def _forward(x, weight, bias, y, row_stride, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    span = tl.arange(0, BLOCK)
    inside = span < cols
    v = tl.load(x + row * row_stride + span, mask=inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, v - tl.sum(v, axis=0) / cols, 0.0)
    scale = 1.0 / tl.sqrt_rn(tl.sum(centred * centred, axis=0) / cols + eps)
    w = tl.load(weight + span, mask=inside, other=0.0).to(tl.float32)
    b = tl.load(bias + span, mask=inside, other=0.0).to(tl.float32)
    tl.store(y + row * cols + span, (centred * scale * w + b).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(dy, x, weight, mean, rstd, dx, partials_w, partials_b, rows, cols, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    span = tl.arange(0, BLOCK)
    inside = span < cols
    w = tl.load(weight + span, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK], tl.float32)
    db = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        at = row * cols + span
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(rstd + row)
        xhat = tl.where(inside, (v - tl.load(mean + row)) * scale, 0.0)
        wg = g * w
        inner = tl.sum(wg * xhat, axis=0) / cols
        shift = tl.sum(wg, axis=0) / cols
        tl.store(dx + at, ((wg - shift - xhat * inner) * scale).to(dx.dtype.element_ty), mask=inside)
        dw += g * xhat
        db += g
    tl.store(partials_w + program * cols + span, dw, mask=inside)
    tl.store(partials_b + program * cols + span, db, mask=inside)


def forward(x, weight, bias, eps):
    rows, cols = x.shape
    y = torch.empty((rows, cols), device=x.device, dtype=x.dtype)
    _forward[(rows,)](x, weight, bias, y, x.stride(0), cols, eps, BLOCK=_block(cols))
    return y


def backward(dy, x, weight, mean, rstd):
    rows, cols = x.shape
    dx = torch.empty_like(x)
    block, programs = _block(cols), backward_programs(x)
    partials_w = torch.empty((programs, cols), device=x.device, dtype=torch.float32)
    partials_b = torch.empty((programs, cols), device=x.device, dtype=torch.float32)
    _backward[(programs,)](
        dy, x, weight, mean, rstd, dx, partials_w, partials_b, rows, cols, BLOCK=block, num_warps=backward_warps(block)
    )
    return dx, summed(partials_w, weight.dtype), summed(partials_b, weight.dtype)
