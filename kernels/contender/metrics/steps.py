"""A step of a block (forward and backward), and the oracle that checks its results."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...blocks import Shape
from ...cases import OPS, Case, Direction
from ...checks.inputs import DTYPES, Inputs, bit_sums, fresh_values, make, refill
from ...checks.oracle import ALLOWANCE, Finding, percent
from ...checks.references import BY_KEY
from .transformer import Forward, names, parameters, transformer

Step = Callable[[], tuple[Tensor, ...]]
BY_ROW = ("y", "residual_out", "dx", "dresidual")
_equal = torch.equal  # referenced before any code of a target runs, which might replace it

FLOOR_ROUNDINGS = 32  # of fp32: a smaller error only reflects the order of summation


@dataclass(frozen=True)
class BlockInputs:
    """The inputs of a block, by the names of `names`, and the gradients of its outputs."""

    case: Case
    shape: Shape
    of_norm: Inputs
    tensors: dict[str, Tensor]

    @classmethod
    def make(cls, case: Case, shape: Shape, device: torch.device, seed: int) -> "BlockInputs":
        """x, the residual and the gradients are those of the case: the same for every contender with the same seed."""
        first = make(case, device, seed, 0)
        second = make(case, device, seed, 1)
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
        tensors = {name: tensor.to(dtype) for name, tensor in self.tensors.items()}
        return tensors, tuple(gradient.to(dtype) for gradient in self.gradients)

    def change(self, seed: int, number: int) -> None:
        """Write other numbers into x in place."""
        refill(self.of_norm, fresh_values(self.case, self.of_norm, seed, number))

    def fingerprint(self) -> dict[str, tuple[Tensor, ...]]:
        """Sums of the bits of each tensor, to detect writes."""
        tensors = {**self.tensors, **{f"gradient {number}": g for number, g in enumerate(self.gradients)}}
        return {name: bit_sums(each) for name, each in tensors.items()}

    def changed(self, before: dict[str, tuple[Tensor, ...]]) -> list[str]:
        """Names of the tensors whose fingerprint differs."""
        now = self.fingerprint()
        return [name for name in now if any(not _equal(a, b) for a, b in zip(now[name], before[name], strict=True))]


def step(forward: Forward, tensors: dict[str, Tensor], gradients: Sequence[Tensor]) -> Step:
    """Forward and backward once: the outputs, then the gradients of all tensors."""
    leaves = tuple(tensor.detach().requires_grad_() for tensor in tensors.values())  # aliases keep the tensors as is

    def call() -> tuple[Tensor, ...]:
        with torch.enable_grad():
            outputs = forward(*leaves)
            found = torch.autograd.grad(outputs, leaves, gradients)
        return (*(output.detach() for output in outputs), *found)

    return call


class BlockOracle:
    """Compares a block with one whose norm is the definition, computed in fp32 (for an fp32 block in fp64).

    Errors are l2 norms.  For y and dx: of the worst row, relative to the row or to the median row, whichever is larger;
    for the gradient of a weight: of the whole tensor.  Allowed is 1.5 times the error of the same block in the dtype of
    the case with the norm by its definition, on the same numbers.
    """

    def __init__(self, inputs: BlockInputs) -> None:
        self.inputs = inputs
        case = inputs.case
        dtype = DTYPES[case.dtype]
        self._forward = transformer(case, inputs.shape)(BY_KEY[case.key])
        self._exact = torch.float32 if dtype in (torch.bfloat16, torch.float16) else torch.float64
        self._floor = max(torch.finfo(dtype).eps / 2, FLOOR_ROUNDINGS * 2.0**-24)
        outputs = OPS[case.op].outputs(Direction.FWD)
        self._names = (*outputs, *(f"d{name}" for name in inputs.tensors))

    def judge(self, returned: Sequence[Tensor]) -> Finding:
        """Judge what a step returned for the current inputs."""
        if reason := self._wrong_kind(returned):
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
                allowed = f"{percent(limit)} is allowed, {ALLOWANCE} times the error of the norm by its definition"
                return Finding(f"{name} of the block is wrong by {percent(error)}; {allowed}", errors)
        return Finding(None, errors)

    def _wrong_kind(self, returned: Sequence[Tensor]) -> str | None:
        """Outputs must be like x, gradients like their tensors; None if they are."""
        tensors = self.inputs.tensors
        like = [tensors["x"]] * (len(self._names) - len(tensors)) + list(tensors.values())
        for name, tensor, other in zip(self._names, returned, like, strict=True):
            if type(tensor) is not Tensor:
                return f"{name} of the block is a {type(tensor).__name__}, not a plain tensor"
            actual, expected = (f"{each.dtype} {tuple(each.shape)} on {each.device}" for each in (tensor, other))
            if actual != expected:
                return f"{name} of the block is {actual} instead of {expected}"
        return None

    def _errors(self, exact: Sequence[Tensor], returned: Sequence[Tensor]) -> dict[str, float]:
        errors = [
            _row_error(right, seen) if name in BY_ROW else _tensor_error(right, seen)
            for name, right, seen in zip(self._names, exact, returned, strict=True)
        ]
        return dict(zip(self._names, torch.stack(errors).tolist(), strict=True))


def _row_error(right: Tensor, seen: Tensor) -> Tensor:
    size = torch.linalg.vector_norm(right, dim=1)
    scale = torch.maximum(size, size.median()).clamp_min_(torch.finfo(right.dtype).tiny)
    worst: Tensor = (torch.linalg.vector_norm(seen - right, dim=1) / scale).amax()
    return worst


def _tensor_error(right: Tensor, seen: Tensor) -> Tensor:
    scale = torch.linalg.vector_norm(right).clamp_min(torch.finfo(right.dtype).tiny)
    error: Tensor = torch.linalg.vector_norm(seen - right) / scale
    return error


@contextmanager
def full_precision() -> Iterator[None]:
    """Disable TF32 that the target has enabled, through torch's old or its new setting, which exclude each other."""
    newer: Any = torch.backends.cuda.matmul
    before = newer.fp32_precision
    if before in ("none", "ieee"):
        yield
        return
    try:
        older = torch.get_float32_matmul_precision()
    except RuntimeError:  # the target used only the new setting
        older = None
    torch.set_float32_matmul_precision("highest")
    try:
        yield
    finally:
        if older is not None:
            torch.set_float32_matmul_precision(older)
        else:
            newer.fp32_precision = before
