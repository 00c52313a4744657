"""RMSNorm: y = x / sqrt(mean(x^2) + eps) * weight."""

import torch
import triton
import triton.language as tl

from warpnorm.launch import backward_programs, backward_warps, forward_warps
from warpnorm.partials import summed


def _block(cols):
    return max(128, triton.next_power_of_2(cols))


@triton.jit
def _forward(x, weight, y, row_stride, cols, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    span = tl.arange(0, BLOCK)
    inside = span < cols
    v = tl.load(x + row * row_stride + span, mask=inside, other=0.0).to(tl.float32)
    w = tl.load(weight + span, mask=inside, other=0.0).to(tl.float32)
    scale = 1.0 / tl.sqrt_rn(tl.sum(v * v, axis=0) / cols + eps)
    tl.store(y + row * cols + span, (v * scale * w).to(y.dtype.element_ty), mask=inside)


@triton.jit
def _backward(dy, x, weight, rstd, dx, partials, rows, cols, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    span = tl.arange(0, BLOCK)
    inside = span < cols
    w = tl.load(weight + span, mask=inside, other=0.0).to(tl.float32)
    dw = tl.zeros([BLOCK], tl.float32)
    for row in range(program, rows, tl.num_programs(0)):
        at = row * cols + span
        g = tl.load(dy + at, mask=inside, other=0.0).to(tl.float32)
        v = tl.load(x + at, mask=inside, other=0.0).to(tl.float32)
        scale = tl.load(rstd + row)
        xhat = v * scale
        wg = g * w
        inner = tl.sum(wg * xhat, axis=0) / cols
        tl.store(dx + at, ((wg - xhat * inner) * scale).to(dx.dtype.element_ty), mask=inside)
        dw += g * xhat
    tl.store(partials + program * cols + span, dw, mask=inside)


def forward(x, weight, eps):
    rows, cols = x.shape
    y = torch.empty((rows, cols), device=x.device, dtype=x.dtype)
    block = _block(cols)
    _forward[(rows,)](x, weight, y, x.stride(0), cols, eps, BLOCK=block, num_warps=forward_warps(block))
    return y


def backward(dy, x, weight, rstd):
    rows, cols = x.shape
    dx = torch.empty_like(x)
    block, programs = _block(cols), backward_programs(x)
    partials = torch.empty((programs, cols), device=x.device, dtype=torch.float32)
    _backward[(programs,)](dy, x, weight, rstd, dx, partials, rows, cols, BLOCK=block, num_warps=backward_warps(block))
    return dx, summed(partials, weight.dtype)
