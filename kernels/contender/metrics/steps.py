"""A step of a block, forward and backward, and whether what it computed is right."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...blocks import Shape
from ...cases import OPS, Case, Direction
from ...checks.inputs import DTYPES, Inputs, bit_sums, fresh_values, make, refill
from ...checks.oracle import ALLOWANCE, Finding
from ...checks.references import BY_KEY
from .transformer import Forward, names, parameters, transformer

Step = Callable[[], tuple[Tensor, ...]]
BY_ROW = ("y", "residual_out", "dx", "dresidual")
_equal = torch.equal  # before any code of a target is loaded, which might replace it

# Of fp32 roundings: where everything is in fp32, an error below so many is a matter of who sums in which order.
FLOOR_ROUNDINGS = 32


@dataclass(frozen=True)
class BlockInputs:
    """What a block takes, by the names of `names`, and the gradients of what it returns."""

    case: Case
    shape: Shape
    of_norm: Inputs
    tensors: dict[str, Tensor]

    @classmethod
    def make(cls, case: Case, shape: Shape, device: torch.device, seed: int) -> "BlockInputs":
        """x, the residual and the gradients are those of the case, so the same for everybody of the same seed."""
        first, second = make(case, device, seed, 0), make(case, device, seed, 1)
        generator = torch.Generator(device).manual_seed(seed)
        given: dict[str, Tensor] = {name: first[name] for name in ("x", "residual") if name in first.tensors}
        for name in OPS[case.op].weights:
            given |= {f"{name}_1": first[name], f"{name}_2": second[name]}
        given |= parameters(case, shape, generator)
        return cls(case, shape, first, {name: given[name] for name in names(case, shape)})

    @property
    def gradients(self) -> tuple[Tensor, ...]:
        return tuple(tensor for name, tensor in self.of_norm.tensors.items() if name.startswith("d"))

    def in_dtype(self, dtype: torch.dtype) -> tuple[dict[str, Tensor], tuple[Tensor, ...]]:
        return {name: each.to(dtype) for name, each in self.tensors.items()}, tuple(g.to(dtype) for g in self.gradients)

    def change(self, seed: int, number: int) -> None:
        """Other numbers for x, where it lies."""
        refill(self.of_norm, fresh_values(self.case, self.of_norm, seed, number))

    def print(self) -> dict[str, tuple[Tensor, ...]]:
        """Sums of the bits of each tensor, to see whether anybody wrote into one."""
        tensors = {**self.tensors, **{f"gradient {number}": g for number, g in enumerate(self.gradients)}}
        return {name: bit_sums(each) for name, each in tensors.items()}

    def changed(self, before: dict[str, tuple[Tensor, ...]]) -> list[str]:
        """Names of the tensors that are not what they were."""
        now = self.print()
        return [name for name in now if any(not _equal(a, b) for a, b in zip(now[name], before[name], strict=True))]


def step(forward: Forward, tensors: dict[str, Tensor], gradients: Sequence[Tensor]) -> Step:
    """Forward and backward once: the outputs, then the gradients of all tensors."""
    leaves = tuple(tensor.detach().requires_grad_() for tensor in tensors.values())  # aliases, or they themselves would

    def call() -> tuple[Tensor, ...]:
        with torch.enable_grad():
            outputs = forward(*leaves)
            found = torch.autograd.grad(outputs, leaves, gradients)
        return (*(output.detach() for output in outputs), *found)

    return call


class BlockOracle:
    """Knows what is right of one block: the norm by its definition, everything in fp32 (of an fp32 block, in fp64).

    The error of y and dx is that of the worst row, against its own size or that of the middle one; the error of a
    weight's gradient that of the whole: both as roots of sums of squares.  What is allowed is 1.5 times the error of
    the same block in the case's own dtype with the norm by its definition, on the same numbers.
    """

    def __init__(self, inputs: BlockInputs) -> None:
        self.inputs = inputs
        case = inputs.case
        own = DTYPES[case.dtype]
        self._forward = transformer(case, inputs.shape)(BY_KEY[case.key])
        self._exact = torch.float32 if own in (torch.bfloat16, torch.float16) else torch.float64
        self._floor = max(torch.finfo(own).eps / 2, FLOOR_ROUNDINGS * 2.0**-24)
        outputs = OPS[case.op].outputs(Direction.FWD)
        self._names = (*outputs, *(f"d{name}" for name in inputs.tensors))

    def judge(self, returned: Sequence[Tensor]) -> Finding:
        """Of the step with the inputs as they are now."""
        if reason := self._of_another_kind(returned):
            return Finding(reason, {})
        for name, tensor in zip(self._names, returned, strict=True):
            if not bool(torch.isfinite(tensor).all()):
                return Finding(f"{name} of the block has values that are not finite", {})
        with full_precision():
            exact = step(self._forward, *self.inputs.in_dtype(self._exact))()
        errors = self._errors(exact, returned)
        honest = self._errors(exact, step(self._forward, self.inputs.tensors, self.inputs.gradients)())
        for name, error in errors.items():
            limit = max(self._floor, ALLOWANCE * honest[name])
            if not error <= limit:
                allowed = f"{ALLOWANCE} times one with the norm by its definition would be {limit:.1e}"
                return Finding(f"{name} of the block is wrong by {error:.1e}, {allowed}", errors)
        return Finding(None, errors)

    def _of_another_kind(self, returned: Sequence[Tensor]) -> str | None:
        """Outputs are tensors like x, and gradients like what they are of."""
        tensors = self.inputs.tensors
        like = [tensors["x"]] * (len(self._names) - len(tensors)) + list(tensors.values())
        for name, tensor, other in zip(self._names, returned, like, strict=True):
            if type(tensor) is not Tensor:
                return f"{name} of the block is a {type(tensor).__name__}, not a plain tensor"
            here, there = ((each.dtype, tuple(each.shape), each.device) for each in (tensor, other))
            if here != there:
                was, wanted = (f"{dtype} {shape} on {device}" for dtype, shape, device in (here, there))
                return f"{name} of the block is {was} instead of {wanted}"
        return None

    def _errors(self, exact: Sequence[Tensor], returned: Sequence[Tensor]) -> dict[str, float]:
        errors = [
            _of_rows(right, seen) if name in BY_ROW else _of_all(right, seen)
            for name, right, seen in zip(self._names, exact, returned, strict=True)
        ]
        return dict(zip(self._names, torch.stack(errors).tolist(), strict=True))


def _of_rows(right: Tensor, seen: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(right, dim=1)
    scale = torch.maximum(size, size.median()).clamp_min_(torch.finfo(right.dtype).tiny)
    worst: Tensor = (torch.linalg.vector_norm(seen - right, dim=1) / scale).amax()
    return worst


def _of_all(right: Tensor, seen: Tensor) -> Tensor:
    scale = torch.linalg.vector_norm(right).clamp_min(torch.finfo(right.dtype).tiny)
    error: Tensor = torch.linalg.vector_norm(seen - right) / scale
    return error


@contextmanager
def full_precision() -> Iterator[None]:
    """No TF32, if the target has asked for it: in torch's older words, or in its newer ones, which exclude them."""
    newer: Any = torch.backends.cuda.matmul
    before = newer.fp32_precision
    if before in ("none", "ieee"):
        yield
        return
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # of who used the newer ones alone
        older = None
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        else:
            newer.fp32_precision = before
