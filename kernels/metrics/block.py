"""The block metric: a step of a transformer block, forward and backward, with a provider's norm in both places."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..blocks import HEAD, MAX_SEQUENCE, Shape
from ..cases import OPS, Case, Direction
from ..checks.inputs import DTYPES, EPS, Inputs, bit_sums, fresh_values, make, refill
from ..checks.oracle import ALLOWANCE, Finding, percent
from ..checks.outputs import FAR_OFF, Wrong, fill_with_nan
from ..checks.references import BY_KEY
from ..facts import gather
from ..providers import Unsupported
from .bench import OTHER_NUMBERS, Bench
from .clocks import EagerClock
from .memory import memory_of

Norm = Callable[..., Any]  # x, the residual where the op has one, its weights, eps
Forward = Callable[..., tuple[Tensor, ...]]


def parameters(case: Case, shape: Shape, generator: torch.Generator) -> dict[str, Tensor]:
    """The matrices in the dtype of the case: normal, scaled so that activations keep their size."""
    return {
        name: torch.randn(size, generator=generator, device=generator.device, dtype=DTYPES[case.dtype])
        .mul_(size[1] ** -0.5)
        .requires_grad_(False)
        for name, size in shape.matrices.items()
    }


def names(case: Case, shape: Shape) -> tuple[str, ...]:
    """The arguments of the forward pass, in order."""
    op = OPS[case.op]
    norms = (f"{weight}_{which}" for which in (1, 2) for weight in op.weights)
    return ("x", *("residual",) * op.residual, *norms, *shape.matrices)


def transformer(case: Case, shape: Shape) -> Callable[[Norm], Forward]:
    """A function that builds the block's forward pass around a norm; the pass takes the tensors of `names`.

    For an op with a residual, the block takes and returns a residual, and its output is the sum of both results.
    """
    op = OPS[case.op]
    count = len(op.weights)

    def with_norm(norm: Norm) -> Forward:
        def plain(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            first, second, matrices = weights[:count], weights[count : 2 * count], weights[2 * count :]
            x = x + _attention(norm(x, *first, EPS), shape, *matrices[:2])
            return (x + _swiglu(norm(x, *second, EPS), *matrices[2:]),)

        def adding(x: Tensor, residual: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            first, second, matrices = weights[:count], weights[count : 2 * count], weights[2 * count :]
            y, residual = norm(x, residual, *first, EPS)
            y, residual = norm(_attention(y, shape, *matrices[:2]), residual, *second, EPS)
            return _swiglu(y, *matrices[2:]), residual

        return adding if op.residual else plain

    return with_norm


def _attention(y: Tensor, shape: Shape, qkv: Tensor, out: Tensor) -> Tensor:
    heads = F.linear(y, qkv).view(-1, shape.sequence, 3, shape.heads, HEAD)
    q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(mixed.transpose(1, 2).reshape(shape.tokens, shape.columns), out)


def _swiglu(y: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = F.linear(y, gate_up).chunk(2, -1)
    return F.linear(F.silu(gate) * up, down)


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


# Imported before any code of a target runs, which might replace it.


FEW_TOKENS = 128


class PreparedBlock:
    """A provider's norm in a transformer block; the counterpart of PreparedCase."""

    def __init__(self, bench: Bench, case: Case, seed: int, thorough: bool = True) -> None:
        self.bench = bench
        self.case = case
        self.seed = seed
        shape = Shape.of(case)
        if shape is None:
            raise Unsupported(f"{case.rows} tokens are not a whole number of sequences of {MAX_SEQUENCE}")
        provider = bench.provider
        on_gpu = bench.stream is not None
        forward = provider.block(case, bench.device, transformer(case, shape))
        self.inputs = BlockInputs.make(case, shape, bench.device, seed)
        self._step = step(forward, self.inputs.tensors, self.inputs.gradients)
        self._before = self.inputs.fingerprint()
        self.facts: dict[str, Any] = {"tokens": shape.tokens, "flops": shape.flops}
        if thorough:
            self.facts |= gather.gather(self._step, compiled=provider.compiled, pinned=provider.pinned, cuda=on_gpu)
            self.facts |= provider.facts()
            _, self.facts["peak_bytes"] = memory_of(self._step, on_gpu)
        self.oracle = BlockOracle(self.inputs)
        self.errors = self._check_outputs()
        bench.free()  # the temporaries of the oracle are larger than the block itself
        self.clock = EagerClock([self._step], bench.stream)

    def describe(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "errors": self.errors,
            "sets": 1,
            "calls": self.clock.calls,
            "l2_resident": None,
        }

    def turn(self, warm: int, timed: int) -> list[float]:
        with self.bench.working():
            return self.clock.turn(warm, timed)

    def check(self) -> None:
        """Raises Wrong, or what the provider raises."""
        self.bench.check_threads()
        with self.bench.working():
            self._check_inputs()
            self.inputs.change(self.seed, OTHER_NUMBERS)
            if "x" not in self.inputs.changed(self._before):
                raise Wrong("the checks were tampered with: new numbers in an input go unnoticed")
            self._before = self.inputs.fingerprint()
            try:
                self._check_outputs()
            except Wrong as wrong:
                raise Wrong(f"after the timing, with other numbers in its inputs: {wrong}") from None
            self._check_oracle()

    def _check_outputs(self) -> dict[str, float]:
        fill_with_nan(self.case, self.bench.device, 2)
        finding = self.oracle.judge(self._step())
        if finding.reason:
            raise Wrong(finding.reason)
        self._check_inputs()
        return finding.errors

    def _check_inputs(self) -> None:
        if names := self.inputs.changed(self._before):
            raise Wrong(f"changed the block's {' and '.join(names)}")

    def _check_oracle(self) -> None:
        """Raises Wrong if the oracle accepts grossly wrong outputs of a block of a few tokens."""
        few = replace(self.case, rows=min(self.case.rows, FEW_TOKENS))
        inputs = BlockInputs.make(few, Shape(few.rows, few.rows, few.cols), self.bench.device, self.seed)
        outputs = [inputs.tensors["x"]] * len(OPS[few.op].outputs(Direction.FWD))
        far_off = [torch.full_like(tensor, FAR_OFF) for tensor in (*outputs, *inputs.tensors.values())]
        if BlockOracle(inputs).judge(far_off).reason is None:
            raise Wrong("the checks were tampered with: a block that is wrong on purpose is called right")
