"""What a contender computes on: the same numbers for everybody who is given the same seed."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .words import OPS, Case, Direction

EPS = 1e-6
BY_ROW = ("dy", "dresidual_out", "x", "residual")  # [rows, columns], in the dtype of the case
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}

# Every so many rows one is a thousand times smaller: its mean square is about eps, so that a kernel which forgets eps,
# or takes another one, is wrong there and not by the last digit.  Of fewer rows it is the last; a lone one in every
# second set.
SMALL_ROW_EVERY = 61
SMALL = 2.0**-10


@dataclass(frozen=True)
class Inputs:
    """The tensors of one call in the order of the adapter protocol, then eps."""

    case: Case
    tensors: dict[str, Tensor]
    eps: float = EPS

    @property
    def arguments(self) -> tuple[Tensor | float, ...]:
        return (*self.tensors.values(), self.eps)

    @property
    def fresh(self) -> str:
        """The tensor that changes from call to call: dy backwards (statistics belong to x), x forwards."""
        return "dy" if self.case.direction is Direction.BWD else "x"

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


def make(case: Case, device: torch.device, seed: int, number: int = 0) -> Inputs:
    """Set `number` of the inputs of a case.  x and dy are normal, weights lie around one, statistics are those of x."""
    generator = torch.Generator(device).manual_seed(_seed(case, seed, number))
    dtype, weight_dtype = DTYPES[case.dtype], DTYPES[case.weight_dtype]
    op = OPS[case.op]

    def rows() -> Tensor:
        return torch.randn(case.rows, case.cols, dtype=dtype, device=device, generator=generator)

    tensors: dict[str, Tensor] = {}
    if case.direction is Direction.BWD:
        tensors["dy"] = rows()
    tensors["x"] = x = rows()
    if op.name == "layernorm":
        x += 0.5  # a mean worth subtracting
    if case.rows > 1 or number % 2:
        x[min(SMALL_ROW_EVERY, case.rows) - 1 :: SMALL_ROW_EVERY] *= SMALL
    for name in op.weights:
        values = torch.rand(case.cols, device=device, generator=generator) + (0.5 if name == "weight" else -0.5)
        tensors[name] = values.to(weight_dtype)
    if case.direction is Direction.BWD:
        tensors.pop("bias", None)  # its value does not matter backwards
        tensors |= _statistics(case, x)
    return Inputs(case, tensors)


def fresh_values(case: Case, like: Inputs, seed: int, number: int) -> Tensor:
    """Other numbers for the tensor of `like` that may change between calls."""
    return make(case, like["x"].device, seed, number)[like.fresh]


def refill(inputs: Inputs, values: Tensor) -> None:
    """Change the numbers in place, unseen: neither the address nor the version counter of the tensor changes."""
    inputs[inputs.fresh].data.copy_(values)


def blocks(case: Case, device: torch.device) -> Iterator[slice]:
    """The rows in pieces: float64 copies of one stay in a CPU's cache, and on a GPU small beside its memory."""
    step = max(1, (1 << 16 if device.type == "cpu" else 1 << 24) // case.cols)
    for first in range(0, case.rows, step):
        yield slice(first, min(first + step, case.rows))


def fingerprint(inputs: Inputs) -> dict[str, tuple[Tensor, ...]]:
    """Sums of the bits along rows and along columns, to see whether anybody wrote into an input."""
    prints: dict[str, tuple[Tensor, ...]] = {}
    for name, tensor in inputs.tensors.items():
        bits = tensor.view(_SAME_SIZE[tensor.element_size()])
        if bits.ndim == 1:
            prints[name] = (bits.clone(),)
            continue
        by_row, by_column = [], []
        for rows in blocks(inputs.case, bits.device):
            piece = bits[rows].long()
            by_row.append(piece.sum(1))
            by_column.append(piece.sum(0))
        prints[name] = (torch.cat(by_row), torch.stack(by_column).sum(0))
    return prints


def changed(inputs: Inputs, before: dict[str, tuple[Tensor, ...]]) -> list[str]:
    """Names of the inputs that are not what they were."""
    now = fingerprint(inputs)
    return [name for name in now if any(not torch.equal(a, b) for a, b in zip(now[name], before[name], strict=True))]


_SAME_SIZE = {2: torch.int16, 4: torch.int32, 8: torch.int64}


def _seed(case: Case, seed: int, number: int) -> int:
    return zlib.crc32(f"{case}/{seed}/{number}".encode())


def _statistics(case: Case, x: Tensor) -> dict[str, Tensor]:
    means, scales = [], []
    for rows in blocks(case, x.device):
        exact = x[rows].double()
        mean = exact.mean(1)
        centred = exact - mean[:, None] if case.op == "layernorm" else exact
        means.append(mean)
        scales.append((centred.square().mean(1) + EPS).rsqrt())
    found = {"mean": torch.cat(means).float(), "rstd": torch.cat(scales).float()}
    return {name: found[name] for name in OPS[case.op].statistics}
