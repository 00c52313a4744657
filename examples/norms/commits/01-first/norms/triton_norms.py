"""The same forward passes as Triton kernels, one program a row.  Needs a GPU."""

import torch
import triton
import triton.language as tl
from torch import Tensor


@triton.jit
def _rms_norm(X, W, Y, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < N
    x = tl.load(X + row * stride + cols, inside, other=0.0).to(tl.float32)
    w = tl.load(W + cols, inside, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / N + eps) * w
    tl.store(Y + row * stride + cols, y.to(Y.dtype.element_ty), inside)


@triton.jit
def _layer_norm(X, W, B, Y, stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < N
    x = tl.load(X + row * stride + cols, inside, other=0.0).to(tl.float32)
    centred = tl.where(inside, x - tl.sum(x, 0) / N, 0.0)
    w = tl.load(W + cols, inside, other=0.0).to(tl.float32)
    b = tl.load(B + cols, inside, other=0.0).to(tl.float32)
    y = centred * tl.rsqrt(tl.sum(centred * centred, 0) / N + eps) * w + b
    tl.store(Y + row * stride + cols, y.to(Y.dtype.element_ty), inside)


def rms_norm(x: Tensor, weight: Tensor, eps: float = 1e-6) -> Tensor:
    rows, cols = x.shape
    y = torch.empty_like(x)
    block = triton.next_power_of_2(cols)
    _rms_norm[(rows,)](x, weight, y, x.stride(0), cols, eps, BLOCK=block, num_warps=min(16, max(1, block // 512)))
    return y


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float = 1e-6) -> Tensor:
    rows, cols = x.shape
    y = torch.empty_like(x)
    block = triton.next_power_of_2(cols)
    _layer_norm[(rows,)](x, weight, bias, y, x.stride(0), cols, eps, BLOCK=block, num_warps=min(16, max(1, block // 512)))
    return y
