"""A norm and what follows or precedes it in a model, in one kernel; forward only:

    quantised   q = y / scale in float8_e4m3fn or int8, scale = the largest |y| of the row / 448 or 127
    gated       y * silu(gate) or y * gelu(gate)
    dropped     the norm of residual + x * mask / (1 - p)

y is the norm with weight and bias, as in `forward`, in fp32: it is rounded once, into what is stored.  A row stays in
registers up to IN_REGISTERS columns.  Wider rows are read block by block, for the sums, for the largest value and for
the outputs, from the cache after the first time.
"""
# A kernel's arguments have no Python types.
# ruff: noqa: ANN001, ANN202
# mypy: allow-untyped-defs, allow-incomplete-defs, allow-untyped-calls, allow-untyped-decorators
# mypy: disable-error-code="assignment, var-annotated"

from collections import namedtuple
from typing import Literal, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from . import tiles
from .launching import check, check_device, row_stride, vector

Epilogue = Literal["", "fp8", "int8", "silu", "gelu"]
MAX_CODE = {torch.float8_e4m3fn: 448.0, torch.int8: 127.0}
SMALLEST_MAX = tl.constexpr(1e-12)  # of a row: its scale is not zero
# Added and subtracted in fp32, it rounds to the nearest integer, of two to the even one: no fraction fits behind it.
ROUNDS = tl.constexpr(1.5 * 2**23)
HALF_ROOT = tl.constexpr(0.7071067811865476)
IN_REGISTERS = 16384  # columns; 32 values for each of 512 threads
LOOPED_BLOCK = 8192  # columns of a block of a wider row; with 4096 two registers spilled
TILE = 2048  # elements: narrow rows share a program


class RegionConfig(NamedTuple):
    """The compile-time constants of the kernel; the first ones are those that `tiles` reads."""

    COLS: int  # of a row
    ROWS: int  # of a tile
    UNIT: int  # elements: strides are passed in multiples of it
    MASKED: bool  # some tiles go beyond the rows or columns
    BLOCK: int  # columns of a tile
    CENTER: bool  # LayerNorm
    EPILOGUE: Epilogue
    MAX_CODE: float
    KEPT: float  # what dropout multiplies the numbers by that it keeps


class Quantised(NamedTuple):
    q: Tensor  # [rows, columns]: y is about q * scale
    scale: Tensor  # [rows], fp32
    residual_out: Tensor | None  # x + residual, rounded: what was normalised


def quantised(
    x: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    residual: Tensor | None = None,
    *,
    eps: float,
    center: bool,
    dtype: torch.dtype = torch.float8_e4m3fn,
) -> Quantised:
    """Normalise the rows of x, [rows, columns], and quantise each by its largest value.

    Tensors as of `forward.forward`.  dtype: float8_e4m3fn (from compute capability 8.9 on) or int8.  A row of zeros has
    the smallest scale; a row with inf or nan has a scale of inf or nan.
    Raises ValueError if the tensors do not fit together, or for another dtype.
    """
    if dtype not in MAX_CODE:
        raise ValueError(f"quantise to torch.float8_e4m3fn or torch.int8, not {dtype}")
    q = torch.empty(x.shape, dtype=dtype, device=x.device)
    scale = x.new_empty(x.shape[:1], dtype=torch.float32)
    residual_out = None if residual is None else torch.empty(x.shape, dtype=x.dtype, device=x.device)
    epilogue: Epilogue = "int8" if dtype is torch.int8 else "fp8"
    _launch(x, weight, bias, residual, None, None, q, scale, residual_out, eps, center, epilogue, MAX_CODE[dtype])
    return Quantised(q, scale, residual_out)


def gated(
    x: Tensor,
    gate: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float,
    center: bool,
    activation: Literal["silu", "gelu"] = "silu",
) -> Tensor:
    """The norm of the rows of x, [rows, columns], times silu(gate) or the exact gelu(gate); gate is like x.

    Raises ValueError if the tensors do not fit together, or for another activation.
    """
    if activation not in ("silu", "gelu"):
        raise ValueError(f"the activation of the gate is silu or gelu, not {activation!r}")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    _launch(x, weight, bias, None, None, gate, y, None, None, eps, center, activation)
    return y


def dropped(
    x: Tensor,
    residual: Tensor,
    mask: Tensor,
    weight: Tensor | None = None,
    bias: Tensor | None = None,
    *,
    eps: float,
    center: bool,
    p: float,
) -> tuple[Tensor, Tensor]:
    """(y, residual_out): the norm of residual + x * mask / (1 - p), rounded, and that sum.

    mask: 0 or 1 in uint8, [rows, columns], contiguous.  p: the probability of 0, less than 1.
    Raises ValueError if the tensors do not fit together.
    """
    check_device("mask", mask, x)
    if mask.shape != x.shape or mask.dtype is not torch.uint8 or not mask.is_contiguous():
        raise ValueError(f"mask must be contiguous, {tuple(x.shape)} in uint8, not {tuple(mask.shape)} in {mask.dtype}")
    if not 0 <= p < 1:
        raise ValueError(f"the probability of dropout is at least 0 and less than 1, not {p}")
    y = torch.empty(x.shape, dtype=x.dtype, device=x.device)
    residual_out = torch.empty_like(y)
    _launch(x, weight, bias, residual, mask, None, y, None, residual_out, eps, center, "", kept=1 / (1 - p))
    return y, residual_out


def _launch(
    x, weight, bias, residual, mask, gate, out, scale, residual_out, eps, center, epilogue: Epilogue,
    max_code: float = 0.0, kept: float = 1.0,
) -> None:  # fmt: skip
    check(x, {"residual": residual, "gate": gate}, {"weight": weight, "bias": bias})
    rows, cols = x.shape
    if not rows:
        return
    block = triton.next_power_of_2(cols) if cols <= IN_REGISTERS else LOOPED_BLOCK
    tile_rows = max(1, TILE // block)
    unit = vector(x, residual, gate)
    strides = (row_stride(tensor) // unit for tensor in (x, residual, gate))
    masked = cols % block != 0 or rows % tile_rows != 0
    config = RegionConfig(cols, tile_rows, unit, masked, block, center, epilogue, max_code, kept)
    _region[(triton.cdiv(rows, tile_rows),)](
        x, residual, mask, gate, weight, bias, out, scale, residual_out, rows, *strides, eps, config,
        num_warps=max(4, min(16, tile_rows * block // 512)),
    )  # fmt: skip


# Pointers, the number of rows and strides, for the functions below.
_Tensors = namedtuple(
    "_Tensors", "x residual mask gate w b out scale residual_out M x_stride residual_stride gate_stride"
)


@triton.jit(do_not_specialize=["M"])
def _region(
    X, RESIDUAL, MASK, GATE, W, B, OUT, SCALE, RESIDUAL_OUT, M, x_stride, residual_stride, gate_stride, eps,
    CONFIG: tl.constexpr,
):  # fmt: skip
    rows = tl.program_id(0) * CONFIG.ROWS + tl.arange(0, CONFIG.ROWS)
    t = _Tensors(
        x=X, residual=RESIDUAL, mask=MASK, gate=GATE, w=W, b=B, out=OUT, scale=SCALE, residual_out=RESIDUAL_OUT, M=M,
        x_stride=x_stride * CONFIG.UNIT, residual_stride=residual_stride * CONFIG.UNIT,
        gate_stride=gate_stride * CONFIG.UNIT,
    )  # fmt: skip
    if CONFIG.COLS > CONFIG.BLOCK:
        _in_blocks(rows, t, eps, CONFIG)
    else:
        _at_once(rows, t, eps, CONFIG)


@triton.jit
def _at_once(rows, t, eps, CONFIG: tl.constexpr):
    cols = tl.arange(0, CONFIG.BLOCK)
    x = _read(rows, cols, t, CONFIG, False)
    _keep_sum(x, rows, cols, t, CONFIG)
    mean = tl.full([CONFIG.ROWS], 0.0, tl.float32)
    if CONFIG.CENTER:
        mean = tl.sum(x, 1) / CONFIG.COLS
    m2 = tl.sum(_squares(x, mean, cols, CONFIG), 1)
    y = _normalised(x, mean, tl.rsqrt(m2 / CONFIG.COLS + eps), cols, t, CONFIG)
    inverse = mean  # placeholder where nothing is quantised
    if t.scale is not None:
        inverse = _store_scale(tl.max(_magnitudes(y, cols, CONFIG), 1), m2, rows, t, CONFIG)
    _write(y, inverse, rows, cols, t, CONFIG)


@triton.jit
def _in_blocks(rows, t, eps, CONFIG: tl.constexpr):
    block = tl.arange(0, CONFIG.BLOCK)
    mean = tl.full([CONFIG.ROWS], 0.0, tl.float32)
    if CONFIG.CENTER:
        total = tl.full([CONFIG.ROWS, CONFIG.BLOCK], 0.0, tl.float32)
        for start in range(0, CONFIG.COLS, CONFIG.BLOCK):
            total += _read(rows, start + block, t, CONFIG, True)
        mean = tl.sum(total, 1) / CONFIG.COLS
    squares = tl.full([CONFIG.ROWS, CONFIG.BLOCK], 0.0, tl.float32)
    for start in range(0, CONFIG.COLS, CONFIG.BLOCK):
        x = _read(rows, start + block, t, CONFIG, True)
        _keep_sum(x, rows, start + block, t, CONFIG)
        squares += _squares(x, mean, start + block, CONFIG)
    m2 = tl.sum(squares, 1)
    rstd = tl.rsqrt(m2 / CONFIG.COLS + eps)
    inverse = mean  # placeholder where nothing is quantised
    if t.scale is not None:
        largest = tl.full([CONFIG.ROWS, CONFIG.BLOCK], 0.0, tl.float32)
        for start in range(0, CONFIG.COLS, CONFIG.BLOCK):
            y = _normalised(_read(rows, start + block, t, CONFIG, True), mean, rstd, start + block, t, CONFIG)
            largest = tl.maximum(largest, _magnitudes(y, start + block, CONFIG))
        inverse = _store_scale(tl.max(largest, 1), m2, rows, t, CONFIG)
    for start in range(0, CONFIG.COLS, CONFIG.BLOCK):
        y = _normalised(_read(rows, start + block, t, CONFIG, False), mean, rstd, start + block, t, CONFIG)
        _write(y, inverse, rows, start + block, t, CONFIG)


@triton.jit
def _read(rows, cols, t, CONFIG: tl.constexpr, REUSED: tl.constexpr):
    """[rows, columns] in fp32: what is normalised, rounded to its dtype; zero out of bounds."""
    narrow = tiles.load(t.x, rows, t.x_stride, cols, t.M, CONFIG, REUSED)
    x = narrow.to(tl.float32)
    if t.mask is not None:
        x *= tiles.load(t.mask, rows, CONFIG.COLS, cols, t.M, CONFIG, REUSED).to(tl.float32) * CONFIG.KEPT
    if t.residual is not None:
        x += tiles.load(t.residual, rows, t.residual_stride, cols, t.M, CONFIG, REUSED).to(tl.float32)
        x = x.to(narrow.dtype).to(tl.float32)
    return x


@triton.jit
def _keep_sum(x, rows, cols, t, CONFIG: tl.constexpr):
    if t.residual_out is not None:
        tiles.store(t.residual_out, x, rows, cols, t.M, CONFIG)


@triton.jit
def _squares(x, mean, cols, CONFIG: tl.constexpr):
    if CONFIG.CENTER:
        x -= mean[:, None]
        if CONFIG.MASKED:
            x = tl.where((cols < CONFIG.COLS)[None, :], x, 0.0)
    return x * x


@triton.jit
def _normalised(x, mean, rstd, cols, t, CONFIG: tl.constexpr):
    """y = (x - mean) * rstd * w + b."""
    if CONFIG.CENTER:
        x -= mean[:, None]
    y = x * rstd[:, None]
    if t.w is not None:
        y *= tiles.load_columns(t.w, cols, CONFIG).to(tl.float32)
    if t.b is not None:
        y += tiles.load_columns(t.b, cols, CONFIG).to(tl.float32)
    return y


@triton.jit
def _magnitudes(y, cols, CONFIG: tl.constexpr):
    """|y|, zero out of bounds."""
    y = tl.abs(y)
    if CONFIG.MASKED:
        y = tl.where((cols < CONFIG.COLS)[None, :], y, 0.0)
    return y


@triton.jit
def _store_scale(largest, m2, rows, t, CONFIG: tl.constexpr):
    """1 / scale of each row; stores the scale."""
    largest = tl.maximum(largest, SMALLEST_MAX)
    largest = tl.where(m2 < float("inf"), largest, m2)  # a maximum skips nan
    tl.store(t.scale + rows, largest / CONFIG.MAX_CODE, rows < t.M)
    return CONFIG.MAX_CODE / largest


@triton.jit
def _write(y, inverse, rows, cols, t, CONFIG: tl.constexpr):
    """What the region makes of y."""
    if CONFIG.EPILOGUE == "fp8" or CONFIG.EPILOGUE == "int8":
        y *= inverse[:, None]
    if CONFIG.EPILOGUE == "int8":
        y = (y + ROUNDS) - ROUNDS
    if t.gate is not None:
        gate = tiles.load(t.gate, rows, t.gate_stride, cols, t.M, CONFIG, False).to(tl.float32)
        y *= gate * (tl.sigmoid(gate) if CONFIG.EPILOGUE == "silu" else 0.5 * (1.0 + tl.erf(gate * HALF_ROOT)))
    tiles.store(t.out, y, rows, cols, t.M, CONFIG)
