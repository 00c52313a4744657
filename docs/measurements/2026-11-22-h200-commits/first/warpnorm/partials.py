"""The sum of the partial sums that the programs of a backward pass leave behind."""

import torch
import triton
import triton.language as tl


@triton.jit
def _sum_partials(partials, out, count, cols, ROWS: tl.constexpr, COLS: tl.constexpr):
    span = tl.program_id(0) * COLS + tl.arange(0, COLS)
    total = tl.zeros([ROWS, COLS], tl.float32)
    for first in range(0, count, ROWS):
        row = first + tl.arange(0, ROWS)
        inside = (row[:, None] < count) & (span[None, :] < cols)
        total += tl.load(partials + row[:, None] * cols + span[None, :], mask=inside, other=0.0)
    tl.store(out + span, tl.sum(total, axis=0).to(out.dtype.element_ty), mask=span < cols)


def summed(partials, dtype):
    """The column sums of `partials`, `[programs, cols]` in fp32, always in the same order."""
    count, cols = partials.shape
    out = torch.empty(cols, device=partials.device, dtype=dtype)
    _sum_partials[(triton.cdiv(cols, 32),)](partials, out, count, cols, ROWS=64, COLS=32, num_warps=4)
    return out
