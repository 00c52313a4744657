"""The words of measuring: Op, Case, Comparison.  No torch in here: the service imports this module."""

import re
from dataclasses import dataclass
from enum import StrEnum
from typing import Self

BUILT_IN_PROVIDERS = ("eager", "inductor", "quack", "liger", "triton")  # those that kernelwatch brings
DTYPE_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp64": 8}


class Direction(StrEnum):
    FWD = "fwd"
    BWD = "bwd"


class Role(StrEnum):
    """What a contender is in its session."""

    HEAD = "head"
    PARENT = "parent"
    SOTA = "sota"
    CONTROL = "control"  # a second copy of the parent (of the head where there is none): the A/A control


@dataclass(frozen=True)
class Op:
    """What is computed.  `weights` and `statistics` name the row-independent and the per-row tensors."""

    name: str
    weights: tuple[str, ...]
    statistics: tuple[str, ...]  # fp32, one value a row, handed from forward to backward


OPS = {
    "rmsnorm": Op("rmsnorm", ("weight",), ("rstd",)),
    "layernorm": Op("layernorm", ("weight", "bias"), ("mean", "rstd")),
}

_CASE = re.compile(
    r"(?P<op>[a-z][a-z0-9_]*)\.(?P<direction>fwd|bwd)\.(?P<rows>[0-9]+)x(?P<cols>[0-9]+)"
    r"\.(?P<dtype>[a-z0-9]+)(?:-(?P<weight_dtype>[a-z0-9]+))?"
)


@dataclass(frozen=True, order=True)
class Case:
    """One thing to measure: `rmsnorm.fwd.32768x4096.bf16`, or `….bf16-fp32` when the weights are fp32."""

    op: str
    direction: Direction
    rows: int
    cols: int
    dtype: str
    weight_dtype: str

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read a case as it is printed.  Raises ValueError that says what is wrong and what is known."""
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
        rows, cols = int(found["rows"]), int(found["cols"])
        if not (1 <= rows <= 1 << 24 and 1 <= cols <= 1 << 20):
            raise ValueError(f"{text!r}: rows must be 1 to {1 << 24} and columns 1 to {1 << 20}")
        return cls(found["op"], Direction(found["direction"]), rows, cols, found["dtype"], weight_dtype)

    def __str__(self) -> str:
        mixed = "" if self.weight_dtype == self.dtype else f"-{self.weight_dtype}"
        return f"{self.key}.{self.rows}x{self.cols}.{self.dtype}{mixed}"

    @property
    def key(self) -> str:
        """`op.direction`, the key under which a provider is found."""
        return f"{self.op}.{self.direction}"

    @property
    def least_bytes(self) -> int:
        """Bytes any implementation must move: each input read once, each output written once."""
        op, size, weight_size = OPS[self.op], DTYPE_BYTES[self.dtype], DTYPE_BYTES[self.weight_dtype]
        elements = self.rows * self.cols
        if self.direction is Direction.FWD:
            return 2 * elements * size + len(op.weights) * self.cols * weight_size
        # x and dy in, dx out; the weight in, one gradient a weight out (fp32); the statistics in
        weights_in_and_out = self.cols * 4 * (1 + len(op.weights))
        return 3 * elements * size + weights_in_and_out + len(op.statistics) * self.rows * 4


@dataclass(frozen=True)
class Comparison:
    """Candidate against baseline at one case.  `ratio` is time over time: 1.05 means 5 % slower."""

    ratio: float
    low: float
    high: float
    rounds: int
    launches: int
