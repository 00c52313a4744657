"""Ops, cases, metrics and roles.  Torch-free: the service imports this module."""

import math
import re
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import product
from typing import Self

# A name with a dash is a variant with its own series.
BUILT_IN_PROVIDERS = (
    "eager",
    "inductor",
    "inductor-max-autotune",
    "inductor-coordinate-descent",
    "inductor-dynamic",
    "inductor-automatic-dynamic",
    "inductor-regional",
    "quack",
    "quack-tuned",
    "liger",
    "flashinfer",
    "vllm",
    "triton",
)
# The distributions of the providers that are not part of torch.  Quack tunes itself: another version is another SOTA.
QUACK = "quack-kernels==0.6.5"
PACKAGES = {
    "quack": QUACK,
    "quack-tuned": QUACK,
    "liger": "liger-kernel",
    "flashinfer": "flashinfer-python",
    "vllm": "vllm",
}
# Inputs of [rows, columns], or [tokens, heads, columns], in the dtype of the case; then such outputs.
BY_ROW = ("dy", "dresidual_out", "x", "residual", "gate")
BY_ROW_OUT = ("y", "residual_out", "dx", "q")
EACH_ROW = ("mean", "rstd", "scale")  # one value for each row, in fp32
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}  # of a case
OTHER_BYTES = {"fp8": 1, "int8": 1, "uint8": 1}  # of tensors that a region adds
_BYTES = DTYPE_BYTES | OTHER_BYTES
DROPOUT_P = 0.1  # of BERT (arXiv 1810.04805) and GPT-2


class Direction(StrEnum):
    FWD = "fwd"
    BWD = "bwd"
    FWDBWD = "fwdbwd"  # one after the other, as in a training step


class Metric(StrEnum):
    """The metrics of a case.  Each has its own series."""

    KERNEL = "kernel"  # device time of a call, in us
    CALL = "call"  # host time of a call (launches, guards, wrappers), in us
    BLOCK = "block"  # forward and backward of a transformer block with this norm, in us
    COMPILE = "compile"  # the first call with empty caches, in us
    MEMORY = "memory"  # peak memory of a call in addition to its inputs, in bytes
    RECOMPILES = "recompiles"  # compilations for other numbers of rows after the first call
    BREAKS = "breaks"  # graph breaks of the first call
    KERNELS = "kernels"  # kernels that a call launches

    @property
    def unit(self) -> str:
        """`us`, `bytes` or `count`."""
        return "bytes" if self is Metric.MEMORY else "count" if self.counts else "us"

    @property
    def counts(self) -> bool:
        """Is a value a number of things?  It is whole, 0 is a legal value, and it does not vary."""
        return self in (Metric.RECOMPILES, Metric.BREAKS, Metric.KERNELS)

    @property
    def varies(self) -> bool:
        """Do samples of equal code vary?  Times do; bytes and counts do not."""
        return self.unit == "us"


class CompileMode(StrEnum):
    """How torch.compile compiles a function."""

    DEFAULT = "default"  # static shapes
    MAX_AUTOTUNE = "max-autotune"  # candidates of every kernel are timed on the device
    COORDINATE_DESCENT = "coordinate-descent"  # one setting of a kernel after the other is timed on the device
    DYNAMIC = "dynamic"  # the rows are marked as dynamic: one graph for any number of rows
    AUTOMATIC_DYNAMIC = "automatic-dynamic"  # after another number of rows, compiled for any number
    REGIONAL = "regional"  # only the operators of the function, in a graph that otherwise stays eager


class Rounding(StrEnum):
    """When a norm rounds to the dtype of its rows: a convention of an implementation."""

    AFTER_WEIGHT = "after-weight"  # once, at the end: torch, Quack, Apex
    BEFORE_WEIGHT = "before-weight"  # the normalised rows, then their product with the weight: Hugging Face's Llama


class Role(StrEnum):
    """The role of a contender in its session."""

    HEAD = "head"
    PARENT = "parent"
    LAST_GOOD = "last_good"  # the last revision that was not slow, where the parent is slow already
    PINNED = "pinned"  # the pinned baseline: the last release, or what the recipe pins
    SOTA = "sota"
    RIVAL = "rival"  # another provider of the baselines, in addition to SOTA
    CONTROL = "control"  # a second copy of the parent (of the head where there is none): the A/A control


class Region(StrEnum):
    """What is fused with a norm; y is the norm with weight and bias.  docs/providers.md has the sources."""

    NONE = ""
    FP8 = "fp8"  # q = y / scale in float8_e4m3fn, scale = the largest |y| of the row / 448
    INT8 = "int8"  # the same in int8 with 127
    SILU_GATE = "silu_gate"  # y * silu(gate)
    GELU_GATE = "gelu_gate"  # y * gelu(gate)
    LINEAR = "linear"  # y @ matrix^T
    DROPOUT = "dropout"  # the norm of residual + x * mask / (1 - p)

    @property
    def text(self) -> str:
        """In a sentence."""
        names = {
            Region.FP8: "fp8 codes",
            Region.INT8: "int8 codes",
            Region.SILU_GATE: "a SiLU gate",
            Region.GELU_GATE: "a GELU gate",
            Region.LINEAR: "a linear layer",
        }
        return names.get(self, self.value)


@dataclass(frozen=True)
class Op:
    """A norm with or without weight, bias and residual, and what is fused with it.

    A residual is added before the norm, and the sum is returned as the new residual.
    """

    name: str
    norm: str
    weight: bool
    bias: bool
    residual: bool
    region: Region = Region.NONE

    @property
    def directions(self) -> tuple[Direction, ...]:
        return tuple(Direction) if self.region is Region.NONE else (Direction.FWD,)

    @property
    def quantised(self) -> bool:
        return self.region in (Region.FP8, Region.INT8)

    @property
    def added(self) -> tuple[str, ...]:
        """The inputs that belong to the region."""
        match self.region:
            case Region.SILU_GATE | Region.GELU_GATE:
                return ("gate",)
            case Region.LINEAR:
                return ("matrix",)
            case Region.DROPOUT:
                return ("mask",)
            case _:
                return ()

    @property
    def weights(self) -> tuple[str, ...]:
        """The parameters, which do not depend on the row."""
        return ("weight",) * self.weight + ("bias",) * self.bias

    @property
    def statistics(self) -> tuple[str, ...]:
        """Saved by forward for backward: fp32, one value per row."""
        return ("mean", "rstd") if self.norm == "layernorm" else ("rstd",)

    def inputs(self, direction: Direction) -> tuple[str, ...]:
        """The tensors of a call, in order, before eps.  In a backward pass x is the new residual."""
        added = ("residual",) * self.residual
        weights = self.weights
        if direction is Direction.FWD:
            return ("x", *added, *weights, *self.added)
        gradients = ("dy", *("dresidual_out",) * self.residual)
        if direction is Direction.FWDBWD:
            return (*gradients, "x", *added, *weights)
        return (*gradients, "x", *("weight",) * self.weight, *self.statistics)  # a backward pass does not need the bias

    def outputs(self, direction: Direction) -> tuple[str, ...]:
        """The outputs of a call, in order; a single one without a tuple.  dx is also the gradient of the residual."""
        forward = (*(("q", "scale") if self.quantised else ("y",)), *("residual_out",) * self.residual)
        backward = ("dx", *(f"d{name}" for name in self.weights))
        return {"fwd": forward, "bwd": backward, "fwdbwd": forward + backward}[direction]


def norm_name(norm: str, *, weight: bool, bias: bool, residual: bool) -> str:
    """`rmsnorm` has a weight, `layernorm` a weight and a bias; names of other ops have a suffix."""
    usual = norm == "layernorm"
    name = norm + "_noweight" * (not weight) + ("_bias" if bias else "_nobias") * (bias is not usual)
    return name + "_residual" * residual


def _norms() -> dict[str, Op]:
    ops = {}
    for norm, residual, weight, other_bias in product(
        ("rmsnorm", "layernorm"), (False, True), (True, False), (False, True)
    ):
        bias = (norm == "layernorm") is not other_bias
        name = norm_name(norm, weight=weight, bias=bias, residual=residual)
        ops[name] = Op(name, norm, weight, bias, residual)
    return ops


def _regions() -> dict[str, Op]:
    """The regions around `rmsnorm` and `layernorm`, named after the norm, `_residual` and the region."""
    found = []
    for norm, residual in product(("rmsnorm", "layernorm"), (False, True)):
        regions = [Region.FP8, Region.INT8]
        regions += [Region.DROPOUT] if residual else [Region.LINEAR]
        regions += [Region.SILU_GATE, Region.GELU_GATE] if norm == "rmsnorm" and not residual else []
        plain = NORMS[norm + "_residual" * residual]
        found += [replace(plain, name=f"{plain.name}_{region}", region=region) for region in regions]
    return {op.name: op for op in found}


NORMS = _norms()
OPS = {**NORMS, **_regions()}

_CASE = re.compile(
    r"(?P<op>[a-z][a-z0-9_]*)\.(?P<direction>fwdbwd|fwd|bwd)"
    r"\.(?P<rows>[0-9]+)(?:x(?P<heads>[0-9]+))?x(?P<cols>[0-9]+)(?:s(?P<stride>[0-9]+))?"
    r"\.(?P<dtype>[a-z0-9]+)(?:-(?P<weight_dtype>[a-z0-9]+))?(?:\.(?P<metric>[a-z]+))?"
)


@dataclass(frozen=True, order=True)
class Case:
    """An op, a direction, a shape, dtypes and a metric: `rmsnorm.fwd.32768x4096.bf16`.

    `….bf16-fp32` has fp32 weights; `32768x4096s5120` has a row stride of 5120 elements; any metric except `kernel` is a
    suffix: `rmsnorm.fwd.32768x4096.bf16.call`.  `4096x32x128s6144` has rows with two strides: 4096 tokens that start
    6144 elements apart, with 32 heads of 128 columns each, next to each other.  Each head is a row.
    """

    op: str
    direction: Direction
    rows: int
    cols: int
    dtype: str
    weight_dtype: str
    stride: int = 0  # elements between rows of the inputs, between tokens where there are heads; 0 if they are dense
    metric: Metric = Metric.KERNEL
    heads: int = 0  # rows of a token; 0 where a token is a row

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a case.  Raises ValueError that says what is wrong and what is allowed."""
        found = _CASE.fullmatch(text.strip())
        if not found:
            raise ValueError(
                f"{text!r} is not a case; write op.direction.ROWSxCOLS.dtype, e.g. rmsnorm.fwd.4096x1024.bf16"
            )
        if found["op"] not in OPS:
            raise ValueError(f"{text!r}: unknown op {found['op']!r}; known: {', '.join(OPS)}")
        weight_dtype = found["weight_dtype"] or found["dtype"]
        for dtype in (found["dtype"], weight_dtype):
            if dtype not in DTYPE_BYTES:
                raise ValueError(f"{text!r}: unknown dtype {dtype!r}; known: {', '.join(DTYPE_BYTES)}")
        cols, stride, heads = int(found["cols"]), int(found["stride"] or 0), int(found["heads"] or 0)
        rows = int(found["rows"]) * (heads if found["heads"] else 1)
        if heads and not stride:
            raise ValueError(
                f"{text!r}: heads need the stride of their tokens; dense ones are rows: write {rows}x{cols}"
            )
        if not (1 <= rows <= 1 << 24 and 1 <= cols <= 1 << 20):
            raise ValueError(f"{text!r}: rows must be 1 to {1 << 24} and columns 1 to {1 << 20}")
        if found["stride"] and not (heads or 1) * cols < stride <= 1 << 21:
            less = f"the {heads} heads of {cols} columns" if heads else "the columns"
            raise ValueError(f"{text!r}: a row stride must be more than {less}, and at most {1 << 21}")
        metric = found["metric"] or Metric.KERNEL.value
        if metric not in list(Metric):
            raise ValueError(f"{text!r}: unknown metric {metric!r}; known: {', '.join(Metric)}")
        direction = Direction(found["direction"])
        op = OPS[found["op"]]
        if direction not in op.directions:
            raise ValueError(f"{text!r}: {op.name} has no {direction}; directions: {', '.join(op.directions)}")
        if heads and op.region:
            raise ValueError(f"{text!r}: heads are for norms alone, and {op.name} is fused with its neighbour")
        if metric == Metric.BLOCK and Direction.FWDBWD not in op.directions:
            raise ValueError(f"{text!r}: the block metric needs a norm with a backward pass, which {op.name} is not")
        if metric == Metric.BLOCK and (direction is not Direction.FWDBWD or cols % 128 or stride):
            raise ValueError(
                f"{text!r}: the block metric needs direction fwdbwd, dense rows, and columns that are a multiple of 128"
            )
        return cls(op.name, direction, rows, cols, found["dtype"], weight_dtype, stride, Metric(metric), heads)

    def __str__(self) -> str:
        mixed = "" if self.weight_dtype == self.dtype else f"-{self.weight_dtype}"
        strided = f"s{self.stride}" if self.stride else ""
        metric = "" if self.metric is Metric.KERNEL else f".{self.metric}"
        shape = f"{self.tokens}x{self.heads}x{self.cols}" if self.heads else f"{self.rows}x{self.cols}"
        return f"{self.key}.{shape}{strided}.{self.dtype}{mixed}{metric}"

    @property
    def key(self) -> str:
        """`op.direction`, the key of functions in a provider."""
        return f"{self.op}.{self.direction}"

    @property
    def inputs(self) -> tuple[str, ...]:
        return OPS[self.op].inputs(self.direction)

    @property
    def outputs(self) -> tuple[str, ...]:
        return OPS[self.op].outputs(self.direction)

    @property
    def tokens(self) -> int:
        """The rows; where there are heads, the tokens that have them."""
        return self.rows // (self.heads or 1)

    @property
    def width(self) -> int:
        """Columns of a row, or of all heads of a token."""
        return (self.heads or 1) * self.cols

    def of_tokens(self, tokens: int) -> Self:
        """The same with another number of tokens, for the metric *kernel*."""
        return replace(self, rows=tokens * (self.heads or 1), metric=Metric.KERNEL)

    def shape(self, name: str) -> tuple[int, ...]:
        """Of an input or output."""
        if name in (*BY_ROW, *BY_ROW_OUT, "mask"):
            return (self.tokens, self.heads, self.cols) if self.heads else (self.rows, self.cols)
        if name in EACH_ROW:
            return (self.rows,)
        return (self.cols, self.cols) if name == "matrix" else (self.cols,)

    def dtypes(self, name: str) -> tuple[str, ...]:
        """Of an input or output.  A gradient may also be more precise than its weight."""
        if name in EACH_ROW:
            return ("fp32",)
        if name == "q":
            return (OPS[self.op].region.value,)
        if name == "mask":
            return ("uint8",)
        if name in (*BY_ROW, *BY_ROW_OUT, "matrix"):
            return (self.dtype,)
        return tuple(dict.fromkeys((self.weight_dtype, "fp32")) if name.startswith("d") else (self.weight_dtype,))

    @property
    def least_bytes(self) -> int:
        """The minimum of bytes that an implementation moves: each input read once, each output written once.

        fwdbwd counts both passes: a row does not stay on the chip in between.
        """
        parts = (Direction.FWD, Direction.BWD) if self.direction is Direction.FWDBWD else (self.direction,)
        return sum(self._least_bytes(part) for part in parts)

    def _least_bytes(self, direction: Direction) -> int:
        op = OPS[self.op]
        if direction is Direction.FWD:
            return sum(self._bytes(name) for name in (*op.inputs(direction), *op.outputs(direction)))
        # reads x, dy, the residual's gradient, weight and statistics; writes dx and a gradient for each weight (fp32)
        weights_in_and_out = self.cols * 4 * (op.weight + len(op.weights))
        by_row = (3 + op.residual) * self.rows * self.cols * DTYPE_BYTES[self.dtype]
        return by_row + weights_in_and_out + len(op.statistics) * self.rows * 4

    @property
    def set_bytes(self) -> int:
        """Of the matrices of an input set, with what is between their rows."""
        op, rows_apart = OPS[self.op], self.tokens * (self.stride or self.cols) * DTYPE_BYTES[self.dtype]
        others = sum(self._bytes(name) for name in op.added if name not in BY_ROW)
        return sum(name in BY_ROW for name in self.inputs) * rows_apart + others

    def _bytes(self, name: str) -> int:
        """Of an input or output, without gaps between its rows."""
        return math.prod(self.shape(name)) * _BYTES[self.dtypes(name)[0]]

    @property
    def flops(self) -> int:
        """Additions and multiplications that the definition needs for each element, over all elements.

        What is done once a row (means, the root, products of the row's sums) is left out: it is 1/columns of the rest.
        Recomputation does not count, as in PaLM's model FLOPs.
        """
        parts = (Direction.FWD, Direction.BWD) if self.direction is Direction.FWDBWD else (self.direction,)
        return self.rows * self.cols * sum(self._flops_of_an_element(part) for part in parts)

    def _flops_of_an_element(self, direction: Direction) -> int:
        """Of RMSNorm (arXiv 1910.07467), LayerNorm (arXiv 1607.06450) and the gradients in kernels/norms/backward.py.

        Forward: x + residual 1; LayerNorm's sum of x 1 and x - mean 1; the sum of squares 2; times rstd 1; times w 1;
        plus b 1.  Backward: x_hat = x * rstd 1, LayerNorm's - mean 1; wdy = w * dy 1; the sum of x_hat * wdy 2,
        LayerNorm's sum of wdy 1; dx = (wdy - x_hat * c1) * rstd 3, LayerNorm's - c2 1; the gradient of the residual 1;
        dw += dy * x_hat 2; db += dy 1.
        """
        op = OPS[self.op]
        centred = op.norm == "layernorm"
        if direction is Direction.FWD:
            return 3 + 2 * centred + op.weight + op.bias + op.residual + self._flops_of_the_region(op.region)
        return 6 + 3 * centred + 3 * op.weight + op.bias + op.residual

    def _flops_of_the_region(self, region: Region) -> int:
        """Exponentials, erf and divisions count as one operation, comparisons and conversions as none.

        Quantisation: y / scale 1.  Gates: silu(g) = g / (1 + exp(-g)) 4, gelu(g) = g * 0.5 * (1 + erf(g * c)) 5, and
        times y 1.  Dropout: times mask and 1 / (1 - p) 2.  A linear layer multiplies and adds for each column.
        """
        match region:
            case Region.FP8 | Region.INT8:
                return 1
            case Region.SILU_GATE:
                return 5
            case Region.GELU_GATE:
                return 6
            case Region.DROPOUT:
                return 2
            case Region.LINEAR:
                return 2 * self.cols
            case _:
                return 0


FUNCTION_NAME = r"[A-Za-z_][\w-]*(?:/[A-Za-z_][\w-]*)*"
_FUNCTION_CASE = re.compile(
    rf"(?P<function>{FUNCTION_NAME})/(?P<label>[\w=,+-][\w=,+.-]*?)(?:\.(?P<metric>{'|'.join(Metric)}))?", re.ASCII
)
MAX_FUNCTION_CASE = 120  # characters


@dataclass(frozen=True, order=True)
class FunctionCase:
    """A function of a recipe at a label of its own: `softmax/8x512x4096`, `attention/causal/4x32x2048.bf16.call`.

    `kernels.functions` says what the function and the label are.  `least_bytes` and `flops` are 0 where unknown.
    """

    function: str
    label: str
    metric: Metric = Metric.KERNEL
    least_bytes: int = field(default=0, compare=False)
    flops: int = field(default=0, compare=False)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parse the text of a case.  Raises ValueError."""
        parts = _FUNCTION_CASE.fullmatch(text.strip())
        if not parts or len(text) > MAX_FUNCTION_CASE:
            raise ValueError(
                f"{text[:MAX_FUNCTION_CASE]!r} is not a case of a function; write NAME/LABEL with letters, digits and "
                f"_ = , + . -, at most {MAX_FUNCTION_CASE} of them, e.g. softmax/8x512x4096"
            )
        return cls(parts["function"], parts["label"], Metric(parts["metric"] or Metric.KERNEL))

    def __str__(self) -> str:
        return f"{self.key}/{self.label}" + ("" if self.metric is Metric.KERNEL else f".{self.metric}")

    @property
    def key(self) -> str:
        """The name of the function, the key of functions in a provider."""
        return self.function


AnyCase = Case | FunctionCase


def parse_case(text: str) -> AnyCase:
    """A case of a norm or of a function, which has a slash.  Raises ValueError."""
    return FunctionCase.parse(text) if "/" in text else Case.parse(text)


@dataclass(frozen=True)
class Comparison:
    """Candidate over baseline at one case.  `ratio` is a quotient of times or of bytes: 1.05 is 5 % more.

    Of counts it encodes their difference (`service.domain.stats.estimates`).
    """

    ratio: float
    low: float
    high: float
    rounds: int
    trials: int
