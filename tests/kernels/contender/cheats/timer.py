"""An honest RMSNorm with its own timer, and one that manipulates the timer of the clock."""

import sys
import time

import torch

real = time.perf_counter_ns
time.perf_counter_ns = lambda: real() // 10
time.perf_counter = lambda: real() / 1e10
time.monotonic_ns = time.perf_counter_ns
elapsed_ms = torch.cuda.Event.elapsed_time
torch.cuda.Event.elapsed_time = lambda began, ended: elapsed_ms(began, ended) / 10


def forward(x, weight, eps):
    x32 = x.float()
    return (x32 * torch.rsqrt(x32.square().mean(-1, keepdim=True) + eps) * weight.float()).to(x.dtype)


def backward(dy, x, weight, rstd, eps):
    """Knows by name where the clock keeps its timer."""
    clocks = next(module for name, module in sys.modules.items() if name.endswith("kernels.metrics.clocks"))
    clocks.perf_counter_ns = time.perf_counter_ns
    clocks._elapsed_ms = torch.cuda.Event.elapsed_time
    dy32, normal = dy.float(), x.float() * rstd[:, None]
    slope = dy32 * weight.float()
    dx = (slope - normal * (normal * slope).mean(-1, keepdim=True)) * rstd[:, None]
    return dx.to(x.dtype), (dy32 * normal).sum(0).to(weight.dtype)
