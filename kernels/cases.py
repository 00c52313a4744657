"""Ops, cases, metrics and roles.  Torch-free: the service imports this module."""

import re
from dataclasses import dataclass
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
    "triton",
)
# The distributions of the providers that are not part of torch.  Quack tunes itself: another version is another SOTA.
QUACK = "quack-kernels==0.6.5"
PACKAGES = {"quack": QUACK, "quack-tuned": QUACK, "liger": "liger-kernel"}
BY_ROW = ("dy", "dresidual_out", "x", "residual")  # inputs of [rows, columns], in the dtype of the case
BY_ROW_OUT = ("y", "residual_out", "dx")  # outputs of [rows, columns], in the dtype of the case; others are [columns]
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}


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


class Role(StrEnum):
    """The role of a contender in its session."""

    HEAD = "head"
    PARENT = "parent"
    LAST_GOOD = "last_good"  # the last revision that was not slow, where the parent is slow already
    PINNED = "pinned"  # the pinned baseline: the last release, or what the recipe pins
    SOTA = "sota"
    RIVAL = "rival"  # another provider of the baselines, in addition to SOTA
    CONTROL = "control"  # a second copy of the parent (of the head where there is none): the A/A control


@dataclass(frozen=True)
class Op:
    """A norm with or without weight, bias and residual.

    A residual is added before the norm, and the sum is returned as the new residual.
    """

    name: str
    norm: str
    weight: bool
    bias: bool
    residual: bool

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
            return ("x", *added, *weights)
        gradients = ("dy", *("dresidual_out",) * self.residual)
        if direction is Direction.FWDBWD:
            return (*gradients, "x", *added, *weights)
        return (*gradients, "x", *("weight",) * self.weight, *self.statistics)  # a backward pass does not need the bias

    def outputs(self, direction: Direction) -> tuple[str, ...]:
        """The outputs of a call, in order; a single one without a tuple.  dx is also the gradient of the residual."""
        forward = ("y", *("residual_out",) * self.residual)
        backward = ("dx", *(f"d{name}" for name in self.weights))
        return {"fwd": forward, "bwd": backward, "fwdbwd": forward + backward}[direction]


def _ops() -> dict[str, Op]:
    """`rmsnorm` has a weight, `layernorm` a weight and a bias; names of other ops have a suffix."""
    ops = {}
    norms = (("rmsnorm", False), ("layernorm", True))
    for (norm, has_bias), residual, weight, other_bias in product(norms, (False, True), (True, False), (False, True)):
        bias = has_bias is not other_bias
        name = norm + "_noweight" * (not weight) + ("_bias" if bias else "_nobias") * (bias is not has_bias)
        name += "_residual" * residual
        ops[name] = Op(name, norm, weight, bias, residual)
    return ops


OPS = _ops()

_CASE = re.compile(
    r"(?P<op>[a-z][a-z0-9_]*)\.(?P<direction>fwdbwd|fwd|bwd)\.(?P<rows>[0-9]+)x(?P<cols>[0-9]+)(?:s(?P<stride>[0-9]+))?"
    r"\.(?P<dtype>[a-z0-9]+)(?:-(?P<weight_dtype>[a-z0-9]+))?(?:\.(?P<metric>[a-z]+))?"
)


@dataclass(frozen=True, order=True)
class Case:
    """An op, a direction, a shape, dtypes and a metric: `rmsnorm.fwd.32768x4096.bf16`.

    `….bf16-fp32` has fp32 weights; `32768x4096s5120` has a row stride of 5120 elements; any metric except `kernel` is a
    suffix: `rmsnorm.fwd.32768x4096.bf16.call`.
    """

    op: str
    direction: Direction
    rows: int
    cols: int
    dtype: str
    weight_dtype: str
    stride: int = 0  # elements between rows of the inputs; 0 if they are dense
    metric: Metric = Metric.KERNEL

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
        rows, cols, stride = int(found["rows"]), int(found["cols"]), int(found["stride"] or 0)
        if not (1 <= rows <= 1 << 24 and 1 <= cols <= 1 << 20):
            raise ValueError(f"{text!r}: rows must be 1 to {1 << 24} and columns 1 to {1 << 20}")
        if found["stride"] and not cols < stride <= 1 << 21:
            raise ValueError(f"{text!r}: a row stride must be more than the columns, and at most {1 << 21}")
        metric = found["metric"] or Metric.KERNEL.value
        if metric not in list(Metric):
            raise ValueError(f"{text!r}: unknown metric {metric!r}; known: {', '.join(Metric)}")
        direction = Direction(found["direction"])
        if metric == Metric.BLOCK and (direction is not Direction.FWDBWD or cols % 128 or stride):
            raise ValueError(
                f"{text!r}: the block metric needs direction fwdbwd, dense rows, and columns that are a multiple of 128"
            )
        return cls(found["op"], direction, rows, cols, found["dtype"], weight_dtype, stride, Metric(metric))

    def __str__(self) -> str:
        mixed = "" if self.weight_dtype == self.dtype else f"-{self.weight_dtype}"
        strided = f"s{self.stride}" if self.stride else ""
        metric = "" if self.metric is Metric.KERNEL else f".{self.metric}"
        return f"{self.key}.{self.rows}x{self.cols}{strided}.{self.dtype}{mixed}{metric}"

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
    def least_bytes(self) -> int:
        """The minimum of bytes that an implementation moves: each input read once, each output written once.

        fwdbwd counts both passes: a row does not stay on the chip in between.
        """
        parts = (Direction.FWD, Direction.BWD) if self.direction is Direction.FWDBWD else (self.direction,)
        return sum(self._least_bytes(part) for part in parts)

    def _least_bytes(self, direction: Direction) -> int:
        op, size, weight_size = OPS[self.op], DTYPE_BYTES[self.dtype], DTYPE_BYTES[self.weight_dtype]
        elements = self.rows * self.cols
        if direction is Direction.FWD:
            return 2 * (1 + op.residual) * elements * size + len(op.weights) * self.cols * weight_size
        # reads x, dy, the residual's gradient, weight and statistics; writes dx and a gradient for each weight (fp32)
        weights_in_and_out = self.cols * 4 * (op.weight + len(op.weights))
        return (3 + op.residual) * elements * size + weights_in_and_out + len(op.statistics) * self.rows * 4

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
            return 3 + 2 * centred + op.weight + op.bias + op.residual
        return 6 + 3 * centred + 3 * op.weight + op.bias + op.residual


@dataclass(frozen=True)
class Comparison:
    """Candidate over baseline at one case.  `ratio` is a quotient of times or of bytes: 1.05 is 5 % more.

    Of counts it encodes their difference (`service.domain.stats.effects`).
    """

    ratio: float
    low: float
    high: float
    rounds: int
    trials: int
