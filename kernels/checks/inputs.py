"""What a contender computes on: the same numbers for everybody who is given the same seed."""

import math
import zlib
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import cases
from ..cases import OPS, Case, Direction
from .references import normalised

EPS = 1e-6
BY_ROW = cases.BY_ROW
INTEGERS = {2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}

# Every so many rows one is a thousand times smaller: its mean square is about eps, so that a kernel which forgets eps,
# or takes another one, is wrong there and not by the last digit.  Of fewer rows it is the last; a lone one in every
# second set.
SMALL_ROW_EVERY = 61
SMALL = 2.0**-10
# Of one tensor, in all the sets that are made together on a GPU: ten launches a set would be more than the rest of
# getting ready where 200 small sets rotate.
POOLED = 1 << 24


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
        """The tensor that changes from call to call: dy backwards (statistics belong to x), else x."""
        return "dy" if self.case.direction is Direction.BWD else "x"

    def __getitem__(self, name: str) -> Tensor:
        return self.tensors[name]


def make(case: Case, device: torch.device, seed: int, number: int = 0) -> Inputs:
    """Set `number` of the inputs of a case.  Rows are normal, weights lie around one, statistics are those of x."""
    size = _pool_size(case, device)
    [inputs] = _sets(
        case, _pool(case, device, seed, number // size * size, size), slice(number % size, number % size + 1)
    )
    return inputs


def make_sets(case: Case, device: torch.device, seed: int, count: int) -> list[Inputs]:
    """The sets 0 to count - 1 as `make` gives them one by one, in few launches."""
    size = _pool_size(case, device)
    sets: list[Inputs] = []
    for first in range(0, count, size):
        sets += _sets(case, _pool(case, device, seed, first, size), slice(0, min(size, count - first)))
    return sets


def fresh_values(case: Case, like: Inputs, seed: int, number: int) -> Tensor:
    """Other numbers for the tensor of `like` that may change between calls."""
    device = like["x"].device
    values = torch.randn(
        (1, case.rows, case.cols),
        dtype=DTYPES[case.dtype],
        device=device,
        generator=_generator(device, f"{case}/{seed}/{number}/fresh"),
    )
    return _shaped(case, like.fresh, values, number)[0]


def refill(inputs: Inputs, values: Tensor) -> None:
    """Change the numbers in place, unseen: neither the address nor the version counter of the tensor changes."""
    inputs[inputs.fresh].data.copy_(values)


def blocks(case: Case, device: torch.device) -> Iterator[slice]:
    """The rows in pieces: float64 copies of one stay in a CPU's cache, and on a GPU small beside its memory."""
    return _pieces(case.rows, case.cols, device)


def statistics(case: Case, x: Tensor) -> dict[str, Tensor]:
    """Those that the op hands from forward to backward, of x [rows, columns]: fp32, [rows]."""
    op, means, scales = OPS[case.op], [], []
    for rows in _pieces(x.shape[0], x.shape[1], x.device):
        _, rstd, mean = normalised(op, x[rows].double(), EPS)
        scales.append(rstd[:, 0].float())
        means += [] if mean is None else [mean[:, 0].float()]
    return {name: torch.cat({"mean": means, "rstd": scales}[name]) for name in op.statistics}


def fingerprint(inputs: Inputs) -> dict[str, tuple[Tensor, ...]]:
    """Sums of the bits along rows and along columns, to see whether anybody wrote into an input or between its rows."""
    prints: dict[str, tuple[Tensor, ...]] = {}
    for name, tensor in inputs.tensors.items():
        stride = inputs.case.stride or inputs.case.cols
        prints[name] = bit_sums(
            tensor if tensor.ndim == 1 else tensor.as_strided((inputs.case.rows, stride), (stride, 1))
        )
    return prints


def bit_sums(tensor: Tensor) -> tuple[Tensor, ...]:
    """Of a dense matrix the sums of its bits along rows and along columns; of a vector its bits."""
    if tensor.ndim == 1:
        return (tensor.view(INTEGERS[tensor.element_size()]).clone(),)
    # as the widest integers that fit: those of 8 bytes are summed as they are, others copied to such first
    bits = tensor.view(INTEGERS[math.gcd(8, tensor.shape[1] * tensor.element_size())])
    return bits.sum(1), bits.sum(0)


def changed(inputs: Inputs, before: dict[str, tuple[Tensor, ...]]) -> list[str]:
    """Names of the inputs that are not what they were."""
    now = fingerprint(inputs)
    return [name for name in now if any(not torch.equal(a, b) for a, b in zip(now[name], before[name], strict=True))]


def _pool_size(case: Case, device: torch.device) -> int:
    """How many sets are made together; the numbers of a set must not depend on how many somebody wants."""
    return 1 if device.type == "cpu" else max(1, POOLED // max(1, case.rows * (case.stride or case.cols)))


def _pool(case: Case, device: torch.device, seed: int, first: int, size: int) -> dict[str, Tensor]:
    """Every input of the sets from `first`, one set after the other in the first dimension."""
    generator = _generator(device, f"{case}/{seed}/{first}")
    pool: dict[str, Tensor] = {}
    for name in case.inputs:
        if name in BY_ROW:
            shape = (size, case.rows, case.stride or case.cols)
            rows = torch.randn(shape, dtype=DTYPES[case.dtype], device=device, generator=generator)
            pool[name] = _shaped(case, name, rows, first)
            pool[name][..., case.cols :] = math.nan  # between the rows: whoever reads on is wrong
        elif name in OPS[case.op].weights:
            values = torch.rand(size, case.cols, device=device, generator=generator)
            pool[name] = values.add_(0.5 if name == "weight" else -0.5).to(DTYPES[case.weight_dtype])
    if case.direction is Direction.BWD:
        every_row = pool["x"].flatten(0, 1)[:, : case.cols]
        pool |= {name: values.view(size, case.rows) for name, values in statistics(case, every_row).items()}
    return pool


def _shaped(case: Case, name: str, values: Tensor, first: int) -> Tensor:
    """What is added before the norm: some rows small, and with a mean where that is taken away; in place."""
    if name == "x" and OPS[case.op].norm == "layernorm":
        values += 0.5
    if name in ("x", "residual"):
        alone = case.rows == 1
        values[
            (first + 1) % 2 if alone else 0 :: 1 + alone, min(SMALL_ROW_EVERY, case.rows) - 1 :: SMALL_ROW_EVERY
        ] *= SMALL
    return values


def _sets(case: Case, pool: dict[str, Tensor], wanted: slice) -> list[Inputs]:
    """The sets apart, each tensor in memory of its own: a part of a larger one is compiled for its place in it."""
    apart: dict[str, list[Tensor]] = {}
    for name, values in pool.items():
        parts = list(values[wanted].unbind())
        if len(values) > 1:
            apart[name] = [torch.empty_like(part) for part in parts]
            torch._foreach_copy_(apart[name], parts)
        else:
            apart[name] = parts
        if name in BY_ROW and case.stride:
            apart[name] = [whole[:, : case.cols] for whole in apart[name]]
    return [Inputs(case, {name: apart[name][number] for name in case.inputs}) for number in range(len(apart["x"]))]


def _pieces(rows: int, cols: int, device: torch.device) -> Iterator[slice]:
    step = max(1, (1 << 16 if device.type == "cpu" else 1 << 24) // cols)
    for first in range(0, max(rows, 1), step):
        yield slice(first, min(first + step, rows))


def _generator(device: torch.device, text: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(zlib.crc32(text.encode()))
