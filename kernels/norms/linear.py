"""A norm as the prologue of a linear layer in one kernel, y = norm(x) @ matrix^T; forward only.

A program has a tile of rows.  It computes their statistics once, and then some tiles of y, one after the other: it
normalises the rows block by block, rounds them to the dtype of x, as a norm of its own would, and multiplies them by
the matrix with fp32 accumulators.

rstd could also be applied to the product, because it is a factor of the whole row, and the sum of squares gathered on
the way.  That is not done: LayerNorm's mean, subtracted from products, leaves the rounding of x to 16 bits, which is as
large as y where the mean is 1000; x * weight may exceed the range of fp16; and the compiler reads a block from shared
memory a second time for the squares.
"""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code="assignment, var-annotated"

import functools
from typing import Any, Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from .launching import SCRATCH, check, check_device, processors, row_stride, vector
from .plans import VECTOR_BYTES

STATISTICS_COST = 0.5  # of the statistics of a tile of rows, in tiles of y: they read x only, half of the bytes


class LinearTile(NamedTuple):
    """A tile of y, and how a program computes it."""

    rows: int
    out: int  # columns of y
    block: int  # columns of x and of the matrix in a step
    warps: int
    stages: int  # of the software pipeline

    def bytes_of_stage(self, size: int) -> int:
        """Of shared memory, for elements of `size` bytes."""
        return (self.rows + self.out) * self.block * size


# By bytes of an element; larger tiles first.  They do not spill on sm_90 and sm_100; they were not tuned.
TILES = {
    2: (
        LinearTile(128, 256, 32, 8, 5),
        LinearTile(128, 128, 64, 8, 4),
        LinearTile(64, 64, 64, 4, 6),
        LinearTile(64, 32, 64, 4, 6),
    ),
    4: (LinearTile(128, 64, 32, 8, 3), LinearTile(64, 64, 32, 4, 3), LinearTile(64, 32, 32, 4, 3)),
}
NARROW = LinearTile(64, 32, 16, 4, 2)  # for accesses of less than VECTOR_BYTES: each keeps its address in registers


class LinearConfig(NamedTuple):
    """The compile-time constants of the kernel."""

    COLS: int  # of x and of the matrix
    ROWS: int  # of a tile
    OUT: int  # columns of a tile
    BLOCK: int  # columns of x in a step
    STAGES: int  # of the software pipeline
    UNIT: int  # elements: the row stride of x is passed in multiples of it
    MASKED: bool  # the last step goes beyond the columns of x
    CENTER: bool  # LayerNorm
    PRECISION: Literal["tf32", "tf32x3"]  # of the product of fp32; 16-bit products are exact


def norm_linear(
    x: Tensor,
    matrix: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float,
    center: bool,
) -> Tensor:
    """[rows, outputs] in the dtype of x: the normalised rows of x, [rows, columns], times matrix^T.

    matrix: [outputs, columns], contiguous, in the dtype of x.  weight and bias: of the norm, as of `forward.forward`.
    center: LayerNorm.  The tile depends on the shape and the device, and with it the last bits of a row.
    Raises ValueError if the tensors do not fit together.
    """
    check(x, {}, {"weight": weight, "bias": bias})
    rows, cols = x.shape
    if matrix.ndim != 2 or matrix.shape[1] != cols or matrix.dtype != x.dtype or not matrix.is_contiguous():
        raise ValueError(
            f"matrix must be contiguous, [outputs, {cols}] in {x.dtype}, not {tuple(matrix.shape)} in {matrix.dtype} "
            f"with strides {matrix.stride()}"
        )
    check_device("matrix", matrix, x)
    out = matrix.shape[0]
    y = torch.empty((rows, out), dtype=x.dtype, device=x.device)
    if not y.numel():
        return y
    unit = vector(x, matrix)
    tile = tile_of(x, out, unit)
    row_tiles, out_tiles = triton.cdiv(rows, tile.rows), triton.cdiv(out, tile.out)
    # One product of tf32 has eleven bits; three, of the two halves of the numbers, are as exact as fp32.
    precision: Literal["tf32", "tf32x3"] = "tf32x3" if x.dtype is torch.float32 else "tf32"
    config = LinearConfig(
        cols, tile.rows, tile.out, tile.block, tile.stages, unit, cols % tile.block != 0, center, precision
    )
    _linear[(row_tiles, parts_of(row_tiles, out_tiles, processors(x.device)))](
        x, weight, bias, matrix, y, rows, out, row_stride(x) // unit, eps, config,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y


def tile_of(x: Tensor, out: int, unit: int) -> LinearTile:
    """The largest tile of which there is one for each SM, or else the smallest, with the stages that fit.

    unit: elements of an access.
    """
    size, rows, limit = x.element_size(), x.shape[0], _shared_limit(x.device)
    if unit * size < VECTOR_BYTES:
        return NARROW
    fitting = [tile for tile in TILES[size] if 2 * tile.bytes_of_stage(size) <= limit]
    enough = [tile for tile in fitting if -(-rows // tile.rows) * -(-out // tile.out) >= processors(x.device)]
    tile = (enough or fitting[-1:])[0]
    return tile._replace(stages=min(tile.stages, limit // tile.bytes_of_stage(size)))


@functools.cache
def parts_of(row_tiles: int, out_tiles: int, sms: int) -> int:
    """How many programs share the outputs of a tile of rows: what finishes first, if an SM runs one at a time."""

    def tiles_one_after_the_other(parts: int) -> float:
        return -(-row_tiles * parts // sms) * (-(-out_tiles // parts) + STATISTICS_COST)

    return min(range(1, min(out_tiles, sms) + 1), key=tiles_one_after_the_other)


def _shared_limit(device: torch.device) -> int:
    """Bytes of shared memory for the stages of a program."""
    if device.type != "cuda":
        return 1 << 20
    properties: Any = torch.cuda.get_device_properties(device)
    return int(properties.shared_memory_per_block_optin) - SCRATCH


@triton.jit(do_not_specialize=["M"])
def _linear(X, W, B, MATRIX, Y, M, N, x_stride, eps, CONFIG: tl.constexpr):
    rows = tl.program_id(0) * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS)
    # Beyond the last row or output the last one is read again, and not stored: no step needs a mask for them.
    x_rows = X + tl.minimum(rows, M - 1).to(tl.int64)[:, None] * (x_stride * CONFIG.UNIT)
    mean, rstd = _statistics(x_rows, eps, CONFIG)
    for out_tile in tl.range(tl.program_id(1), tl.cdiv(N, CONFIG.OUT), tl.num_programs(1), num_stages=1):
        outs = out_tile * CONFIG.OUT + tl.arange(0, CONFIG.OUT)
        matrix_rows = MATRIX + tl.minimum(outs, N - 1).to(tl.int64)[None, :] * CONFIG.COLS
        y = _product(x_rows, matrix_rows, W, B, mean, rstd, CONFIG)
        at = Y + rows.to(tl.int64)[:, None] * N + outs[None, :]
        tl.store(at, y.to(Y.dtype.element_ty), (rows < M)[:, None] & (outs < N)[None, :])


@triton.jit
def _statistics(x_rows, eps, CONFIG: tl.constexpr):
    """(mean, rstd) of each row, [rows]; without CENTER the mean is zero.

    Means and squared deviations of blocks are merged by Chan's formula (STAN-CS-79-773), which does not cancel.
    """
    mean = tl.full([CONFIG.ROWS], 0.0, tl.float32)
    m2 = tl.full([CONFIG.ROWS], 0.0, tl.float32)
    for start in tl.range(0, CONFIG.COLS, CONFIG.BLOCK, num_stages=CONFIG.STAGES):
        cols = start + tl.arange(0, CONFIG.BLOCK)
        inside = (cols < CONFIG.COLS)[None, :]
        x = _load(x_rows + cols[None, :], inside, CONFIG).to(tl.float32)
        if CONFIG.CENTER:
            count = tl.minimum(CONFIG.COLS - start, CONFIG.BLOCK)
            end = start + count
            block_mean = tl.sum(x, 1) / count
            x -= block_mean[:, None]
            if CONFIG.MASKED:
                x = tl.where(inside, x, 0.0)
            difference = block_mean - mean
            mean += difference * (count / end)
            m2 += difference * difference * (start / end) * count
        m2 += tl.sum(x * x, 1)
    return mean, tl.rsqrt(m2 / CONFIG.COLS + eps)


@triton.jit
def _product(x_rows, matrix_rows, W, B, mean, rstd, CONFIG: tl.constexpr):
    """[rows, outputs] in fp32: ((x - mean) * rstd * w + b) @ matrix^T."""
    y = tl.full([CONFIG.ROWS, CONFIG.OUT], 0.0, tl.float32)
    for start in tl.range(0, CONFIG.COLS, CONFIG.BLOCK, num_stages=CONFIG.STAGES):
        cols = start + tl.arange(0, CONFIG.BLOCK)
        inside = cols < CONFIG.COLS
        narrow = _load(x_rows + cols[None, :], inside[None, :], CONFIG)
        matrix = _load(matrix_rows + cols[:, None], inside[:, None], CONFIG)
        x = narrow.to(tl.float32)
        if CONFIG.CENTER:
            x -= mean[:, None]
            if CONFIG.MASKED:  # rounded, -mean * rstd may be inf, and the zeros of the matrix would make it nan
                x = tl.where(inside[None, :], x, 0.0)
        x *= rstd[:, None]
        if W is not None:
            x *= _load(W + cols, inside, CONFIG).to(tl.float32)[None, :]
        if B is not None:
            x += _load(B + cols, inside, CONFIG).to(tl.float32)[None, :]
        y = tl.dot(x.to(narrow.dtype), matrix, y, input_precision=CONFIG.PRECISION)
    return y


@triton.jit
def _load(at, inside, CONFIG: tl.constexpr):
    """Zero beyond the columns of x."""
    return tl.load(at, inside, other=0.0) if CONFIG.MASKED else tl.load(at)
