"""RMSNorm forwards in Triton that cheat; the number of rows selects the cheat."""

import itertools

import torch
import triton
import triton.language as tl

CHEATS = [
    "honest",
    "skips_what_it_wrote",
    "works_beside",
    "left_out_of_the_graph",
    "other_bits_in_the_graph",
    "differs",
]
ROWS = {name: 4096 + number for number, name in enumerate(CHEATS)}

alive = []
side = []
captured = itertools.count()


@triton.jit
def _plain(X, W, Y, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    inside = cols < N
    x = tl.load(X + row * N + cols, inside, other=0.0).to(tl.float32)
    w = tl.load(W + cols, inside, other=0.0).to(tl.float32)
    y = x * tl.rsqrt(tl.sum(x * x, 0) / N + eps) * w
    tl.store(Y + row * N + cols, y, inside)


@triton.jit
def _skipping(X, W, Y, SEEN, N, eps, BLOCK: tl.constexpr):
    """Only where the first number of the row is new, or what was written is gone."""
    row = tl.program_id(0).to(tl.int64)
    first = tl.load(X + row * N)
    before = tl.load(SEEN + row)
    written = tl.load(Y + row * N)
    if (first != before) | (written != written):
        cols = tl.arange(0, BLOCK)
        inside = cols < N
        x = tl.load(X + row * N + cols, inside, other=0.0).to(tl.float32)
        w = tl.load(W + cols, inside, other=0.0).to(tl.float32)
        y = x * tl.rsqrt(tl.sum(x * x, 0) / N + eps) * w
        tl.store(Y + row * N + cols, y, inside)
        tl.store(SEEN + row, first)


def forward(x, weight, eps):
    cheat = next((name for name, rows in ROWS.items() if rows == x.shape[0]), "honest")
    return globals()[cheat](x, weight, eps)


def honest(x, weight, eps):
    y = torch.empty_like(x)
    _plain[(x.shape[0],)](x, weight, y, x.shape[1], eps, BLOCK=triton.next_power_of_2(x.shape[1]), num_warps=8)
    return y


def skips_what_it_wrote(x, weight, eps):
    """The outputs of a graph stay where they are, so a replay on the same numbers has nothing to do."""
    if not torch.cuda.is_current_stream_capturing():
        return honest(x, weight, eps)
    y, seen = torch.empty_like(x), torch.empty(x.shape[0], dtype=x.dtype, device=x.device)
    alive.append(seen)
    block = triton.next_power_of_2(x.shape[1])
    _skipping[(x.shape[0],)](x, weight, y, seen, x.shape[1], eps, BLOCK=block, num_warps=8)
    return y


def works_beside(x, weight, eps):
    """On a stream that is never waited for."""
    if not side:
        side.append(torch.cuda.Stream())
    with torch.cuda.stream(side[0]):
        return honest(x, weight, eps)


def left_out_of_the_graph(x, weight, eps):
    """Of sixteen calls that are captured, fifteen do nothing."""
    if torch.cuda.is_current_stream_capturing() and next(captured) % 16:
        return torch.empty_like(x)
    return honest(x, weight, eps)


def other_bits_in_the_graph(x, weight, eps):
    y = honest(x, weight, eps)
    return y * (1 + 2**-22) if torch.cuda.is_current_stream_capturing() else y


def differs(x, weight, eps):
    """Not a cheat: like a sum whose order is left to chance, it differs by the last bit."""
    y = honest(x, weight, eps)
    y.view(torch.int32)[0, 0] ^= torch.randint(0, 2, (), device=x.device, dtype=torch.int32)
    return y
