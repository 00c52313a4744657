"""Inputs of the contenders: the same seed gives every contender the same numbers."""

import math
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .. import cases
from ..cases import DROPOUT_P, OPS, Case, Direction
from .references import normalised

EPS = 1e-6
BY_ROW = cases.BY_ROW
INTEGERS = {1: torch.int8, 2: torch.int16, 4: torch.int32, 8: torch.int64}  # by bytes
DTYPES = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32, "fp64": torch.float64}
# Of any tensor of a case, by the names of `Case.dtypes`.
ANY_DTYPE = {**DTYPES, "fp8": torch.float8_e4m3fn, "int8": torch.int8, "uint8": torch.uint8}

# Every 61st row is a thousand times smaller: its mean square is about eps, so that a kernel without eps, or with
# another eps, is clearly wrong there.  With fewer rows it is the last one; a single row is small in every second set.
SMALL_ROW_EVERY = 61
SMALL = 2.0**-10
# Elements of one tensor in all sets that are generated together on a GPU: with 200 small sets, ten launches for each
# would take longer than the rest of the preparation.
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
    """Input set `number` of a case.  Rows are normal, weights around one, statistics those of x."""
    size = _pool_size(case, device)
    [inputs] = _sets(
        case, _pool(case, device, seed, number // size * size, size), slice(number % size, number % size + 1)
    )
    return inputs


def make_sets(case: Case, device: torch.device, seed: int, count: int) -> list[Inputs]:
    """The sets 0 to count - 1, equal to those of `make`, in few launches."""
    size = _pool_size(case, device)
    sets: list[Inputs] = []
    for first in range(0, count, size):
        sets += _sets(case, _pool(case, device, seed, first, size), slice(0, min(size, count - first)))
    return sets


def fresh_values(case: Case, like: Inputs, seed: int, number: int) -> Tensor:
    """Other numbers for the tensor of `like` that may change between calls."""
    device = like["x"].device
    values = torch.randn(
        (1, case.tokens, case.width),
        dtype=DTYPES[case.dtype],
        device=device,
        generator=_generator(device, f"{case}/{seed}/{number}/fresh"),
    )
    return _shaped(case, like.fresh, values, number).view(case.shape(like.fresh))


def refill(inputs: Inputs, values: Tensor) -> None:
    """Change the numbers in place: neither the address nor the version counter of the tensor changes."""
    inputs[inputs.fresh].data.copy_(values)


def by_rows(tensor: Tensor) -> Tensor:
    """[rows, columns] of a tensor of [tokens, heads, columns], copied where it has two strides; any other as it is."""
    return tensor.flatten(0, 1) if tensor.ndim == 3 else tensor


def some_rows(tensor: Tensor, rows: Sequence[int]) -> Tensor:
    """[len(rows), columns] of a tensor of [rows, columns] or [tokens, heads, columns]; of a vector its elements."""
    if tensor.ndim < 3:
        return tensor[list(rows)]
    return torch.stack([tensor[divmod(row, tensor.shape[1])] for row in rows])


def blocks(case: Case, device: torch.device) -> Iterator[slice]:
    """Slices of rows whose float64 copies fit into a CPU's cache, and use little memory on a GPU."""
    return _pieces(case.rows, case.cols, device)


def statistics(case: Case, x: Tensor) -> dict[str, Tensor]:
    """The statistics of x, [rows, columns] or with heads, that the op passes from forward to backward: fp32, [rows]."""
    op, x = OPS[case.op], by_rows(x)
    means = []
    scales = []
    for rows in _pieces(x.shape[0], x.shape[1], x.device):
        _, rstd, mean = normalised(op, x[rows].double(), EPS)
        scales.append(rstd[:, 0].float())
        means += [] if mean is None else [mean[:, 0].float()]
    return {name: torch.cat({"mean": means, "rstd": scales}[name]) for name in op.statistics}


def fingerprint(inputs: Inputs) -> dict[str, tuple[Tensor, ...]]:
    """Sums of the bits along rows and along columns, to detect writes into an input or between its rows."""
    prints: dict[str, tuple[Tensor, ...]] = {}
    for name, tensor in inputs.tensors.items():
        stride = inputs.case.stride or inputs.case.cols
        whole = tensor.as_strided((inputs.case.tokens, stride), (stride, 1)) if name in BY_ROW else tensor
        prints[name] = bit_sums(whole)
    return prints


def laid_out(case: Case, whole: Tensor) -> Tensor:
    """An input of [rows, columns], or with heads, in memory of [rows or tokens, elements from one to the next]."""
    return whole[:, : case.width].view(case.shape("x")) if case.stride else whole


def bit_sums(tensor: Tensor) -> tuple[Tensor, ...]:
    """The sums of the bits of a dense matrix along rows and along columns; for a vector its bits."""
    if tensor.ndim == 1:
        return (tensor.view(INTEGERS[tensor.element_size()]).clone(),)
    # as the widest integers that fit: torch sums 8 bytes directly, and converts narrower ones first
    bits = tensor.view(INTEGERS[math.gcd(8, tensor.shape[1] * tensor.element_size())])
    return bits.sum(1), bits.sum(0)


def changed(inputs: Inputs, before: dict[str, tuple[Tensor, ...]]) -> list[str]:
    """Names of the inputs whose fingerprint differs."""
    now = fingerprint(inputs)
    return [name for name in now if any(not torch.equal(a, b) for a, b in zip(now[name], before[name], strict=True))]


def _pool_size(case: Case, device: torch.device) -> int:
    """How many sets are generated together; independent of how many a caller wants, as the numbers depend on it."""
    longest = max(case.rows, case.cols) if "matrix" in case.inputs else case.rows
    return 1 if device.type == "cpu" else max(1, POOLED // max(1, longest * (case.stride or case.cols)))


def _pool(case: Case, device: torch.device, seed: int, first: int, size: int) -> dict[str, Tensor]:
    """Every input of `size` sets from `first` on; the first dimension counts the sets."""
    generator = _generator(device, f"{case}/{seed}/{first}")
    pool: dict[str, Tensor] = {}
    for name in case.inputs:
        if name in BY_ROW:
            shape = (size, case.tokens, case.stride or case.cols)
            rows = torch.randn(shape, dtype=DTYPES[case.dtype], device=device, generator=generator)
            pool[name] = _shaped(case, name, rows, first)
            pool[name][..., case.width :] = math.nan  # between the rows: a kernel that reads past a row is wrong
        elif name in OPS[case.op].weights:
            values = torch.rand(size, case.cols, device=device, generator=generator)
            pool[name] = values.add_(0.5 if name == "weight" else -0.5).to(DTYPES[case.weight_dtype])
        elif name == "mask":
            values = torch.rand(size, *case.shape(name), device=device, generator=generator)
            pool[name] = (values >= DROPOUT_P).to(ANY_DTYPE["uint8"])
        elif name == "matrix":  # y then has the size of the normalised rows
            values = torch.randn(size, *case.shape(name), dtype=DTYPES[case.dtype], device=device, generator=generator)
            pool[name] = values.mul_(case.cols**-0.5)
    if case.direction is Direction.BWD:
        every_row = pool["x"][..., : case.width].reshape(-1, case.cols)
        pool |= {name: values.view(size, case.rows) for name, values in statistics(case, every_row).items()}
    return pool


def _shaped(case: Case, name: str, values: Tensor, first: int) -> Tensor:
    """Make some rows of x and residual small, and give x a mean for layernorm; in place.

    values: [sets, rows or tokens, elements from one to the next]; each row is multiplied by its factor.
    """
    if name == "x" and OPS[case.op].norm == "layernorm":
        values += 0.5
    if name in ("x", "residual"):
        sets = slice((first + 1) % 2, None, 2) if case.rows == 1 else slice(None)
        factors = torch.ones(case.rows, dtype=values.dtype, device=values.device)
        factors[min(SMALL_ROW_EVERY, case.rows) - 1 :: SMALL_ROW_EVERY] = SMALL
        rows = values[sets, :, : case.width]
        shape = case.tokens, case.heads or 1
        rows.view(len(rows), *shape, case.cols).mul_(factors.view(*shape, 1))
    return values


def _sets(case: Case, pool: dict[str, Tensor], wanted: slice) -> list[Inputs]:
    """Separate sets, each tensor with its own memory: compilers specialise on offsets into a larger tensor."""
    apart: dict[str, list[Tensor]] = {}
    for name, values in pool.items():
        parts = list(values[wanted].unbind())
        if len(values) > 1:
            apart[name] = [torch.empty_like(part) for part in parts]
            torch._foreach_copy_(apart[name], parts)
        else:
            apart[name] = parts
        if name in BY_ROW:
            apart[name] = [laid_out(case, whole) for whole in apart[name]]
    return [Inputs(case, {name: apart[name][number] for name in case.inputs}) for number in range(len(apart["x"]))]


def _pieces(rows: int, cols: int, device: torch.device) -> Iterator[slice]:
    step = max(1, (1 << 16 if device.type == "cpu" else 1 << 24) // cols)
    for first in range(0, max(rows, 1), step):
        yield slice(first, min(first + step, rows))


def _generator(device: torch.device, text: str) -> torch.Generator:
    return torch.Generator(device).manual_seed(zlib.crc32(text.encode()))
