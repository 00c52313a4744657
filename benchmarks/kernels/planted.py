"""RMSNorm with a planted slow-down: the target's code in the power study.

The study copies this file into a folder with a `planted.json`, which maps `ROWSxCOLS` to a slow-down.  `{"delay":
CYCLES}` makes the last programs, one for each SM, wait for that many cycles of the SM's clock; the study measures the
resulting time.  `{"rows": N}` adds N programs that compute rows again: extra bytes.
"""
# A kernel's arguments have no Python types.

import json
from functools import cache
from pathlib import Path

import torch
import triton
import triton.language as tl
from torch import Tensor

WARPS = 8


@triton.jit
def _rms_norm(X, W, Y, stride, ROWS, N, eps, first_late, BLOCK: tl.constexpr, DELAY: tl.constexpr):
    program = tl.program_id(0)
    row = (program % ROWS).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < N
    x = tl.load(X + row * stride + cols, inside, other=0.0).to(tl.float32)
    w = tl.load(W + cols, inside, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / N + eps) * w
    tl.store(Y + row * N + cols, y.to(Y.dtype.element_ty), inside)
    if DELAY > 0:  # noqa: SIM102  a compile-time condition: the kernel without a delay contains none of this
        if program >= first_late:
            began = _clock(program)
            now = began
            while now - began < DELAY:
                now = _clock(program)


@triton.jit
def _clock(anything):
    """Cycles of this SM.  The argument keeps the compiler from merging two readings."""
    return tl.inline_asm_elementwise("mov.u64 $0, %clock64;", "=l,r", [anything], dtype=tl.int64, is_pure=False, pack=1)


def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """x: [rows, columns], up to 16384 columns; weight: [columns]."""
    rows, cols = x.shape
    y = torch.empty_like(x)
    planted = _planted().get(f"{rows}x{cols}", {})
    delay = planted.get("delay", 0)
    late = _multiprocessors(x.device.index or 0)
    _rms_norm[(rows + planted.get("rows", 0),)](
        x, weight, y, x.stride(0), rows, cols, eps, rows - late, BLOCK=triton.next_power_of_2(cols), DELAY=delay,
        num_warps=WARPS,
    )  # fmt: skip
    return y


@cache
def _planted() -> dict[str, dict[str, int]]:
    found: dict[str, dict[str, int]] = json.loads((Path(__file__).parent / "planted.json").read_text())
    return found


@cache
def _multiprocessors(device: int) -> int:
    count: int = torch.cuda.get_device_properties(device).multi_processor_count
    return count
