# ruff: noqa: E501  (a replacement reads best on one line)
"""Small commits to norm kernels, each with what it really changed: what the causes of a run are checked against.

Modules are texts, commits are replacements in them.  The effect is a plausible magnitude, declared and not measured:
what is checked is that the cause which is named is of the right kind, given an effect of that size.  Every second
commit was left out of sight while the rules were written (`HELD_OUT`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, field

from service.domain.attribution.explanations import By

HEADER = """
import torch
import triton
import triton.language as tl
"""

ROWS = """
@triton.jit
def _forward(X, W, Y, stride, N, eps, BLOCK: tl.constexpr, PLAIN: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + row * stride + cols, mask=mask, other=0.0).to(tl.float32)
    w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    rstd = tl.rsqrt(tl.sum(x * x, 0) / N + eps)
    y = x * rstd * w
    tl.store(Y + row * stride + cols, y.to(Y.dtype.element_ty), mask=mask)


def forward(x, weight, eps):
    rows, n = x.shape
    y = torch.empty_like(x)
    _forward[(rows,)](x, weight, y, x.stride(0), n, eps, BLOCK=triton.next_power_of_2(n), PLAIN=True, num_warps=8)
    return y
"""

PERSISTENT = """
@triton.jit
def _forward(X, W, Y, M, N, eps, BLOCK: tl.constexpr, ROWS: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    inside = (cols < N)[None, :]
    w = tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32)
    for first in tl.range(tl.program_id(0) * ROWS, M, tl.num_programs(0) * ROWS):
        rows = first + tl.arange(0, ROWS)
        at = rows[:, None].to(tl.int64) * N + cols[None, :]
        mask = inside & (rows < M)[:, None]
        x = tl.load(X + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.rsqrt(tl.sum(x * x, 1) / N + eps)
        y = x * rstd[:, None] * w[None, :]
        tl.store(Y + at, y.to(Y.dtype.element_ty), mask=mask)


def forward(x, weight, eps):
    y = torch.empty_like(x)
    programs = 132 * 4
    _forward[(programs,)](x, weight, y, *x.shape, eps, BLOCK=triton.next_power_of_2(x.shape[1]), ROWS=2, num_warps=4)
    return y
"""

CHUNKS = """
@triton.jit
def _forward(X, W, Y, N, eps, CHUNK: tl.constexpr):
    base = tl.program_id(0).to(tl.int64) * N
    squares = tl.zeros((CHUNK,), tl.float32)
    for start in range(0, N, CHUNK):
        cols = start + tl.arange(0, CHUNK)
        x = tl.load(X + base + cols, mask=cols < N, other=0.0, eviction_policy="evict_last").to(tl.float32)
        squares += x * x
    rstd = tl.rsqrt(tl.sum(squares, 0) / N + eps)
    for start in range(0, N, CHUNK):
        cols = start + tl.arange(0, CHUNK)
        x = tl.load(X + base + cols, mask=cols < N, other=0.0, eviction_policy="evict_first").to(tl.float32)
        w = tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32)
        tl.store(Y + base + cols, (x * rstd * w).to(Y.dtype.element_ty), mask=cols < N)


def forward(x, weight, eps):
    y = torch.empty_like(x)
    _forward[(x.shape[0],)](x, weight, y, x.shape[1], eps, CHUNK=4096, num_warps=8)
    return y
"""

BACKWARD = """
@triton.jit
def _backward(DY, X, W, RSTD, DX, DW, M, N, BLOCK: tl.constexpr):
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    dw = tl.zeros((BLOCK,), tl.float32)
    for row in tl.range(tl.program_id(0), M, tl.num_programs(0)):
        at = row.to(tl.int64) * N + cols
        x = tl.load(X + at, mask=mask, other=0.0).to(tl.float32)
        dy = tl.load(DY + at, mask=mask, other=0.0).to(tl.float32)
        rstd = tl.load(RSTD + row)
        normal = x * rstd
        slope = dy * w
        dx = (slope - normal * (tl.sum(slope * normal, 0) / N)) * rstd
        tl.store(DX + at, dx.to(DX.dtype.element_ty), mask=mask)
        dw += dy * normal
    tl.store(DW + tl.program_id(0) * N + cols, dw, mask=mask)


def backward(dy, x, weight, rstd, eps):
    rows, n = x.shape
    programs = 264
    dx = torch.empty_like(x)
    partial = torch.empty(programs, n, dtype=torch.float32, device=x.device)
    _backward[(programs,)](dy, x, weight, rstd, dx, partial, rows, n, BLOCK=triton.next_power_of_2(n), num_warps=8)
    return dx, partial.sum(0).to(weight.dtype)
"""

LAYER = """
@triton.jit
def _layer(X, W, B, Y, N, eps, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * N
    cols = tl.arange(0, BLOCK)
    mask = cols < N
    x = tl.load(X + at + cols, mask=mask, other=0.0).to(tl.float32)
    mean = tl.sum(x, 0) / N
    centred = tl.where(mask, x - mean, 0.0)
    rstd = tl.rsqrt(tl.sum(centred * centred, 0) / N + eps)
    w = tl.load(W + cols, mask=mask, other=0.0).to(tl.float32)
    b = tl.load(B + cols, mask=mask, other=0.0).to(tl.float32)
    tl.store(Y + at + cols, (centred * rstd * w + b).to(Y.dtype.element_ty), mask=mask)


def layer(x, weight, bias, eps):
    rows, n = x.shape
    y = torch.empty_like(x)
    _layer[(rows,)](x, weight, bias, y, n, eps, BLOCK=triton.next_power_of_2(n), num_warps=8)
    return y
"""

EAGER = """
def forward(x, weight, eps):
    wide = x.float()
    rstd = torch.rsqrt(wide.square().mean(-1, keepdim=True) + eps)
    return (wide * rstd * weight).to(x.dtype)
"""

FUNCTIONS = {
    "rmsnorm.fwd": "forward",
    "rmsnorm.bwd": "backward",
    "layernorm.fwd": "layer",
}


@dataclass(frozen=True)
class Commit:
    """One change: replacements in a module, at which case, how long it took before, and how much longer it takes."""

    name: str
    module: str
    edits: Mapping[str, str]
    case: str
    us: float
    ratio: float
    by: By
    before: Mapping[str, str] = field(default_factory=dict)  # what the module was made into first
    certain: bool = False  # may it be called certain?

    @property
    def base(self) -> str:
        return HEADER + _edited(self.module, self.before)

    @property
    def head(self) -> str:
        return HEADER + _edited(_edited(self.module, self.before), self.edits)


def _edited(text: str, edits: Mapping[str, str]) -> str:
    for old, new in edits.items():
        assert old in text, old
        text = text.replace(old, new)
    return text


WIDE = "rmsnorm.fwd.32768x4096.bf16"
SHORT = "rmsnorm.fwd.4096x1024.bf16"
LONG = "rmsnorm.fwd.8192x65536.bf16"
BACK = "rmsnorm.bwd.32768x4096.bf16-fp32"
LAYER_CASE = "layernorm.fwd.32768x4096.bf16"
GRAIN = "    y = torch.empty_like(x)\n"

COMMITS = (
    Commit(
        "keep the input apart", ROWS, {GRAIN: f"    x = x.clone()\n{GRAIN}"}, WIDE, 134, 1.98, By.TRAFFIC, certain=True
    ),
    Commit("start from zeros", ROWS, {"empty_like": "zeros_like"}, WIDE, 134, 1.5, By.TRAFFIC, certain=True),
    Commit(
        "weights in fp32",
        ROWS,
        {GRAIN: f"    weight = weight.float()\n{GRAIN}"},
        SHORT,
        6,
        1.28,
        By.TRAFFIC,
        certain=True,
    ),
    Commit(
        "one build for every stride",
        ROWS,
        {"@triton.jit\n": '@triton.jit(do_not_specialize=["stride", "N"])\n'},
        WIDE,
        134,
        1.12,
        By.WIDTH,
    ),
    Commit("one warp", ROWS, {"num_warps=8": "num_warps=1"}, WIDE, 134, 1.8, By.CONFIGURATION),
    Commit("as many warps as there are", ROWS, {"num_warps=8": "num_warps=32"}, SHORT, 6, 1.3, By.CONFIGURATION),
    Commit(
        "stream the weight",
        ROWS,
        {
            "w = tl.load(W + cols, mask=mask, other=0.0)": 'w = tl.load(W + cols, mask=mask, other=0.0, eviction_policy="evict_first")'
        },
        WIDE,
        134,
        1.04,
        By.HINTS,
    ),
    Commit(
        "round at the end",
        ROWS,
        {GRAIN: "    y = torch.empty_like(x, dtype=torch.float32)\n", "return y": "return y.to(x.dtype)"},
        WIDE,
        134,
        2.6,
        By.TRAFFIC,
    ),
    Commit(
        "exact sums",
        ROWS,
        {
            "tl.sum(x * x, 0) / N": "tl.sum((x * x).to(tl.float64), 0) / N",
            "rsqrt(": "rsqrt((",
            "+ eps)": "+ eps).to(tl.float32))",
        },
        WIDE,
        134,
        1.3,
        By.WORK,
    ),
    Commit(
        "read it again",
        ROWS,
        {
            "    y = x * rstd": '    x = tl.load(X + row * stride + cols, mask=mask, other=0.0, cache_modifier=".cg").to(tl.float32)\n    y = x * rstd'
        },
        WIDE,
        134,
        1.15,
        By.REREADS,
    ),
    Commit(
        "divide by the root",
        ROWS,
        {"y = x * rstd * w": "y = x / tl.sqrt(x * 1e-30 + 1.0 / (rstd * rstd)) * tl.exp(tl.log(tl.abs(w) + 1.0))"},
        WIDE,
        134,
        1.2,
        By.WORK,
    ),
    Commit(
        "count what is clipped",
        ROWS,
        {"    tl.store(Y": "    tl.atomic_add(W + cols, w * 0.0, mask=mask)\n    tl.store(Y"},
        WIDE,
        134,
        6.0,
        By.ATOMICS,
    ),
    Commit(
        "pad where it is asked for",
        ROWS,
        {GRAIN: f"    x = x + 0\n{GRAIN}", "PLAIN=True": "PLAIN=False"},
        WIDE,
        134,
        1.95,
        By.TRAFFIC,
        certain=True,
    ),
    Commit(
        "statistics of their own",
        ROWS,
        {
            "@triton.jit\ndef _forward": "@triton.jit\ndef _rstd(X, R, stride, N, eps, BLOCK: tl.constexpr):\n    row = tl.program_id(0).to(tl.int64)\n    cols = tl.arange(0, BLOCK)\n    x = tl.load(X + row * stride + cols, mask=cols < N, other=0.0).to(tl.float32)\n    tl.store(R + row, tl.rsqrt(tl.sum(x * x, 0) / N + eps))\n\n\n@triton.jit\ndef _forward",
            "W, Y, stride": "W, R, Y, stride",
            "rstd = tl.rsqrt(tl.sum(x * x, 0) / N + eps)\n    y": "rstd = tl.load(R + row)\n    y",
            "    _forward[(rows,)](x, weight, y": "    r = torch.empty(rows, dtype=torch.float32, device=x.device)\n    _rstd[(rows,)](x, r, x.stride(0), n, eps, BLOCK=triton.next_power_of_2(n), num_warps=8)\n    _forward[(rows,)](x, weight, r, y",
        },
        WIDE,
        134,
        1.5,
        By.TRAFFIC,
    ),
    Commit(
        "hold the weight no longer",
        PERSISTENT,
        {
            "    w = tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32)\n    for": "    for",
            "        y = x": "        w = tl.load(W + cols, mask=cols < N, other=0.0).to(tl.float32)\n        y = x",
        },
        WIDE,
        134,
        1.06,
        By.REREADS,
    ),
    Commit("fewer programs", PERSISTENT, {"132 * 4": "64"}, WIDE, 134, 1.9, By.WAVES),
    Commit("a program more", PERSISTENT, {"132 * 4": "132 * 4 + 1"}, WIDE, 134, 1.18, By.WAVES),
    Commit("eight rows at once", PERSISTENT, {"ROWS=2": "ROWS=8"}, WIDE, 134, 1.5, By.CONFIGURATION),
    Commit(
        "do not trust the caller",
        PERSISTENT,
        {GRAIN: f"    x = torch.nan_to_num(x)\n{GRAIN}"},
        WIDE,
        134,
        1.97,
        By.TRAFFIC,
        certain=True,
    ),
    Commit("smaller chunks", CHUNKS, {"CHUNK=4096": "CHUNK=512"}, LONG, 800, 1.25, By.CONFIGURATION),
    Commit(
        "no hints",
        CHUNKS,
        {', eviction_policy="evict_last"': "", ', eviction_policy="evict_first"': ""},
        LONG,
        800,
        1.07,
        By.HINTS,
    ),
    Commit(
        "variance after the mean",
        CHUNKS,
        {
            "    rstd = tl.rsqrt": "    for start in range(0, N, CHUNK):\n        cols = start + tl.arange(0, CHUNK)\n        x = tl.load(X + base + cols, mask=cols < N, other=0.0).to(tl.float32)\n        squares += (x - tl.sum(squares, 0)) * 1e-9\n    rstd = tl.rsqrt"
        },
        LONG,
        800,
        1.35,
        By.REREADS,
    ),
    Commit(
        "columns of any number",
        CHUNKS,
        {"@triton.jit\n": '@triton.jit(do_not_specialize=["N"])\n'},
        LONG,
        800,
        1.2,
        By.WIDTH,
    ),
    Commit(
        "rows in one piece",
        CHUNKS,
        {"CHUNK=4096": "CHUNK=16384"},
        "rmsnorm.fwd.8192x16384.bf16",
        140,
        1.4,
        By.CONFIGURATION,
    ),
    Commit(
        "dw without a second kernel",
        BACKWARD,
        {
            "tl.store(DW + tl.program_id(0) * N + cols, dw, mask=mask)": "tl.store(DW + tl.program_id(0) * N + cols, dw, mask=mask)",
            "        dw += dy * normal": "        tl.atomic_add(DW + cols, dy * normal, mask=mask)",
        },
        BACK,
        219,
        5.0,
        By.ATOMICS,
    ),
    Commit(
        "gradients in fp32",
        BACKWARD,
        {"    rows, n = x.shape": "    dy = dy.float()\n    rows, n = x.shape"},
        BACK,
        219,
        2.4,
        By.TRAFFIC,
    ),
    Commit(
        "no need for zeros",
        BACKWARD,
        {"dx = torch.zeros_like": "dx = torch.empty_like"},
        BACK,
        283,
        0.77,
        By.TRAFFIC,
        before={"dx = torch.empty_like": "dx = torch.zeros_like"},
        certain=True,
    ),
    Commit(
        "every row its partial",
        BACKWARD,
        {
            "        dw += dy * normal": "        tl.store(DW + at, dy * normal, mask=mask)",
            "    tl.store(DW + tl.program_id(0) * N + cols, dw, mask=mask)\n": "",
            "torch.empty(programs, n, d": "torch.empty(rows, n, d",
        },
        BACK,
        219,
        2.9,
        By.TRAFFIC,
    ),
    Commit("two warps backwards", BACKWARD, {"num_warps=8": "num_warps=2"}, BACK, 219, 2.2, By.CONFIGURATION),
    Commit(
        "keep more of a row", BACKWARD, {"num_warps=8)": "num_warps=8, maxnreg=64)"}, BACK, 219, 1.35, By.CONFIGURATION
    ),
    Commit(
        "bias in the caller",
        LAYER,
        {"centred * rstd * w + b": "centred * rstd * w", "return y": "return y + bias"},
        LAYER_CASE,
        135,
        2.0,
        By.TRAFFIC,
    ),
    Commit(
        "a copy that nobody needs",
        LAYER,
        {GRAIN: f"    x = x.contiguous().clone()\n{GRAIN}"},
        LAYER_CASE,
        135,
        1.96,
        By.TRAFFIC,
        certain=True,
    ),
    Commit(
        "erase the slack",
        LAYER,
        {"torch.empty_like(x)": "torch.full_like(x, float('nan'))"},
        LAYER_CASE,
        135,
        1.5,
        By.TRAFFIC,
        certain=True,
    ),
    Commit(
        "fp64 mean",
        LAYER,
        {"mean = tl.sum(x, 0) / N": "mean = (tl.sum(x.to(tl.float64), 0) / N).to(tl.float32)"},
        LAYER_CASE,
        135,
        1.25,
        By.WORK,
    ),
    Commit("double conversion", EAGER, {"wide = x.float()": "wide = x.double().float()"}, WIDE, 900, 1.5, By.TRAFFIC),
    Commit("square by pow", EAGER, {"wide.square()": "wide.pow(2).clone()"}, WIDE, 900, 1.27, By.TRAFFIC, certain=True),
    Commit(
        "multiply in place",
        EAGER,
        {"(wide * rstd * weight)": "wide.mul_(rstd).mul_(weight)"},
        WIDE,
        900,
        0.9,
        By.TRAFFIC,
    ),
    Commit(
        "leave the copy out",
        EAGER,
        {"x.clone().float()": "x.float()"},
        WIDE,
        1030,
        0.87,
        By.TRAFFIC,
        before={"x.float()": "x.clone().float()"},
        certain=True,
    ),
)
IN_SIGHT, HELD_OUT = COMMITS[::2], COMMITS[1::2]
