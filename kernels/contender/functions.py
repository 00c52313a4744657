"""A function of a recipe at one of its cases: its bound calls, its clock and its checks (`kernels.functions`)."""

import math
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..arena.sizes import SETS_ON_CPU, calls_in_graph, sets_needed, stays_in_l2
from ..cases import FunctionCase, Metric
from ..checks.inputs import ANY_DTYPE
from ..checks.outputs import Wrong
from ..errors import format_exception
from ..facts import gather
from ..facts.texts import observed_text
from ..facts.timeline import KIND, timeline
from ..facts.trace import Seen
from ..functions import Form, Input, Values, evaluated
from ..metrics.bench import OTHER_NUMBERS, Bench, CpuAudit
from ..metrics.call import CallClock
from ..metrics.clocks import Clock, CpuClock, CudaClock, EagerClock, NotCaptured
from ..metrics.memory import MemoryClock
from ..providers import Broken
from ..providers.captured import Captured, captured_call, outputs_of
from ..providers.recipe import RecipeProvider

DTYPES = {**ANY_DTYPE, "int32": torch.int32, "int64": torch.int64, "bool": torch.bool}
# The error of an output that is allowed where the recipe has none: eight roundings, and in fp32 what TF32 loses.
ALLOWED = {torch.bfloat16: 0.06, torch.float16: 0.01, torch.float32: 2e-3, torch.float64: 1e-6}
ALLOWED_OF_CODES = 0.25  # of 8-bit floats
MAX_SETS_OF_TESTS = 8  # each costs a run of pytest
SAMPLED = 64  # elements of an output that the driver compares with those of another revision
AFTERWARDS = "after the timing, with other numbers in its inputs: "

_equal = torch.equal  # referenced before any code of a target runs, which might replace it


@dataclass(frozen=True)
class Bound:
    """A call on an input set of its own, the tensors of the set, and the same call of the reference."""

    call: Callable[[], Any]
    tensors: tuple[Tensor, ...]
    reference: Captured | None = None  # with the tensors of its own

    @property
    def bytes(self) -> int:
        return sum(tensor.nbytes for tensor in self.tensors)


def drawn(given: Input, numbers: Mapping[str, int], dtype: str | None, generator: torch.Generator) -> Tensor:
    """An input of the case with these sizes, on the device of the generator."""
    shape = [int(evaluated(size, numbers)) for size in given.shape]
    wanted, device = DTYPES[given.dtype or dtype or "fp32"], generator.device
    match given.values:
        case Values.INTEGERS:
            below = int(evaluated(given.below or 0, numbers))
            return torch.randint(max(1, below), shape, device=device, generator=generator).to(wanted)
        case Values.BOOLEANS:
            return torch.randint(2, shape, device=device, generator=generator).to(wanted)
        case Values.UNIFORM:
            values = torch.rand(shape, device=device, generator=generator)
        case Values.NORMAL:
            values = torch.randn(shape, device=device, generator=generator)
    return values.mul_(given.scale).to(wanted)


def differences(outputs: Sequence[Tensor], exact: Sequence[Tensor]) -> dict[str, float]:
    """The error of each output: its largest |out - ref| / (rms(ref) + |ref|).  Raises Wrong if they cannot be compared.

    An element that is not finite has to be so in both; the root mean square is of the finite ones.
    """
    if len(outputs) != len(exact):
        raise Wrong(f"returned {len(outputs)} outputs, and its reference {len(exact)}")
    errors = {}
    for number, (out, right) in enumerate(zip(outputs, exact, strict=True)):
        if out.shape != right.shape:
            raise Wrong(
                f"output {number} has the shape {tuple(out.shape)}, and that of its reference {tuple(right.shape)}"
            )
        out, right = out.double(), right.double()
        finite = right.isfinite()
        if not _equal(finite, out.isfinite()) or not _equal(right[~finite].isnan(), out[~finite].isnan()):
            raise Wrong(f"output {number} has other elements that are not finite than its reference")
        out, right = out[finite], right[finite]
        size = right.square().mean().sqrt() if right.numel() else torch.tensor(0.0)
        apart = (out - right).abs() / (size + right.abs()).clamp_min(torch.finfo(torch.float32).tiny)
        errors[f"output {number}"] = float(apart.max()) if apart.numel() else 0.0
    return errors


def allowed(tensor: Tensor) -> float:
    """The error that an output of this dtype may have; 0 of integers."""
    if not tensor.dtype.is_floating_point:
        return 0.0
    return ALLOWED.get(tensor.dtype, ALLOWED_OF_CODES)


class PreparedFunction:
    """A function that is ready to be timed at one case.

    Input sets have different numbers.  The first outputs are compared with the reference; without one, the driver
    compares samples of them with those of the parent.  After the timing other numbers are written into a set, and its
    call has to follow.
    """

    def __init__(self, bench: Bench, case: FunctionCase, seed: int, *, thorough: bool, graph_s: float) -> None:
        if not isinstance(bench.provider, RecipeProvider):
            raise Broken(f"{bench.provider.name} has no functions of a recipe")
        self.bench = bench
        self.case = case
        self.seed = seed
        self.thorough = thorough
        self._function, self._callables = bench.provider.function(case)
        self._grad = self._function.form is not Form.CALL  # a benchmark may run a backward pass
        self._seen = Seen()
        self._audit = CpuAudit(bench)
        self.facts: dict[str, Any] = {"reference": self._function.reference or "the parent's result"}
        with self._gradients():
            first = self._bound(0)
            self.errors = self._check_first(first, self._sample(first))
            self._make_sets(first, graph_s)
            if thorough:
                self.facts |= gather.gather(
                    self.sets[0].call, compiled=False, pinned=(), cuda=bench.stream is not None, seen=self._seen
                )
            self.clock = self._make_clock()
        self.facts |= getattr(self.clock, "facts", {})

    def describe(self) -> dict[str, Any]:
        return {
            "facts": self.facts,
            "errors": self.errors,
            "sets": len(self.sets),
            "calls": self.clock.calls,
            "l2_resident": self._l2_resident,
            "sampled": self._sampled,
        }

    def text(self, kernel: int, kind: str) -> str:
        """The code of a kernel that the call launched, or the timeline of a few calls.

        Raises KeyError or IndexError where the code was not observed.
        """
        if kind == KIND:
            with self.bench.working(), self._gradients():
                return timeline(self.sets[0].call, self.bench.stream)
        return observed_text(self._seen, kernel, kind)

    def turn(self, warm: int, timed: int) -> list[float]:
        with self.bench.working(), self._gradients(), self._audit.counting(self.case.metric):
            return self.clock.turn(warm, timed)

    def check(self) -> None:
        """Raises Wrong, or what the function raises."""
        self.bench.check_threads()
        self._audit.check()
        with self.bench.working(), self._gradients():
            self._check_other_numbers()

    # -- calls and their inputs ---------------------------------------------------------------------------------------

    def _gradients(self) -> Any:
        return torch.set_grad_enabled(self._grad)

    def _bound(self, number: int) -> Bound:
        """The call on input set `number`: the same numbers in every process with this seed."""
        seed = zlib.crc32(f"{self.case.key}/{self.case.label}/{self.seed}/{number}".encode())
        if self._function.form is not Form.CALL:
            call = self._captured(self._function.line, seed)
            of_line = self._function.reference
            return Bound(call.run, call.tensors, self._captured(of_line, seed) if of_line else None)
        generator = torch.Generator(self.bench.device).manual_seed(seed)
        numbers, dtype = self._function.numbers(self.case.label)
        inputs = [drawn(given, numbers, dtype, generator) for given in self._function.inputs.values()]
        function, reference = self._callables
        constants = dict(self._function.constants)
        of_reference = None if reference is None else Captured(partial(reference, *inputs, **constants), tuple(inputs))
        return Bound(partial(function, *inputs, **constants), tuple(inputs), of_reference)

    def _captured(self, line: str | None, seed: int) -> Captured:
        torch.manual_seed(seed)
        return captured_call(self._function, line, self.case.label, self._callables[0], self.bench.device)

    def _make_sets(self, first: Bound, graph_s: float) -> None:
        l2_bytes, memory = self.bench.l2_bytes, self.bench.memory_bytes
        size = max(1, first.bytes)
        case = self.case if self.case.least_bytes else replace(self.case, least_bytes=size)
        count = SETS_ON_CPU
        if self.case.metric is Metric.KERNEL:
            count = sets_needed(case, size, l2_bytes, memory, graph_s)
            if self._function.form is Form.TEST:
                count = min(count, MAX_SETS_OF_TESTS)
        self.sets = [self._bound(number) for number in range(count)]
        self._calls = calls_in_graph(case, count, graph_s)
        self._l2_resident = None if l2_bytes is None else stays_in_l2(size, count, l2_bytes)

    def _make_clock(self) -> Clock:
        calls, stream = [bound.call for bound in self.sets], self.bench.stream
        for call in calls:
            call()
        match self.case.metric:
            case Metric.CALL:
                return CallClock(calls, stream)
            case Metric.MEMORY:
                return MemoryClock(lambda bound: bound.call, self.sets, calls, on_gpu=stream is not None)
            case _ if stream is None:
                return CpuClock(calls)
            case _ if self._function.graph:
                try:
                    return CudaClock(calls, stream, self._calls)
                except NotCaptured as error:
                    raise NotCaptured(f"{error}; write graph = false to time it eagerly") from error
            case _:
                return EagerClock(calls, stream)

    # -- checks -------------------------------------------------------------------------------------------------------

    def _outputs(self, call: Callable[[], Any], tensors: Sequence[Tensor]) -> list[Tensor]:
        """Copies of what a call returns; of one that returns nothing, of its inputs and their gradients."""
        returned = outputs_of(call())
        written = returned or [*tensors, *(tensor.grad for tensor in tensors if tensor.grad is not None)]
        return [tensor.detach().clone() for tensor in written]

    def _check_first(self, first: Bound, outputs: Sequence[Tensor]) -> dict[str, float]:
        """Compare with the reference on an equal set, as calls may write into their inputs."""
        if first.reference is None:
            return {}
        reference = self._bound(0).reference or first.reference
        try:
            right = self._outputs(reference.run, reference.tensors)
            right_again = self._outputs(reference.run, reference.tensors) if self._varies else []
        except Exception as error:
            raise Broken(f"its reference {self._function.reference} raised {format_exception(error)}") from error
        if not self._varies:
            return self._compared(outputs, right, "")
        if self._alike(right, right_again):  # a race, and no random numbers
            raise Wrong("its outputs vary from call to call, and those of its reference do not")
        return {}

    def _sample(self, first: Bound) -> list[Tensor]:
        """The outputs of the first call; draws elements of them by the seed, as other revisions do."""
        before = [_summed(tensor) for tensor in first.tensors]
        outputs = self._outputs(first.call, first.tensors)
        writes = repr(before) != repr([_summed(tensor) for tensor in first.tensors])  # as text, NaN equals NaN
        again = [tensor.detach().clone() for tensor in outputs_of(first.call())]
        # A result that is cached is the same each time, so that this leaves no cached result unchecked.
        self._varies = bool(again) and not self._alike(outputs, again)
        self._in_place = not again or (self._varies and writes)
        if self._varies and writes:  # then the second call had other inputs
            equal = self._bound(0)
            self._varies = not self._alike(outputs, self._outputs(equal.call, equal.tensors))
        if self._varies:
            self.facts["outputs"] = "vary from call to call"
        generator = torch.Generator().manual_seed(self.seed)
        samples = [_sampled(output, self._limit(output), generator) for output in outputs]
        self._sampled = {"inputs": before, "outputs": None if self._varies else samples}
        return outputs

    def _check_other_numbers(self) -> None:
        """Write the numbers of other sets into those that were timed: the clock's calls must give what they give.

        Not where a call writes into its inputs, which change from call to call, where it draws random numbers, or where
        its graph for gradients holds numbers of its own.
        """
        timed = self.sets[0].tensors
        if self._in_place or self._varies or any(tensor.requires_grad for tensor in timed):
            return
        if _forms(timed) != _forms(self._bound(OTHER_NUMBERS).tensors):  # a benchmark that draws its shapes
            return
        expected: dict[int, list[Tensor]] = {}

        def renew(number: int) -> None:
            other = self._bound(OTHER_NUMBERS + number)
            for tensor, values in zip(self.sets[number].tensors, other.tensors, strict=True):
                tensor.data.copy_(values.data)
            expected[number] = self._outputs(other.call, other.tensors)

        for number, output in self.clock.again(renew):
            self._compared(outputs_of(output), expected[number], AFTERWARDS)

    def _compared(self, outputs: Sequence[Tensor], right: Sequence[Tensor], when: str) -> dict[str, float]:
        """The errors as shares of what is allowed.  Raises Wrong."""
        try:
            errors = differences(outputs, right)
        except Wrong as wrong:
            raise Wrong(f"{when}{wrong}") from None
        for (name, error), output in zip(errors.items(), outputs, strict=True):
            limit = self._limit(output)
            if not error <= limit:
                raise Wrong(f"{when}{name} differs from its reference by {error:.3g}; {limit:g} is allowed")
            errors[name] = error / limit if limit else 0.0
        return errors

    def _alike(self, outputs: Sequence[Tensor], others: Sequence[Tensor]) -> bool:
        """Whether two calls gave the same outputs, within what is allowed."""
        try:
            self._compared(outputs, others, "")
        except Wrong:
            return False
        return True

    def _limit(self, output: Tensor) -> float:
        return self._function.error if self._function.error is not None else allowed(output)


def _forms(tensors: Sequence[Tensor]) -> list[tuple[torch.Size, torch.dtype]]:
    return [(tensor.shape, tensor.dtype) for tensor in tensors]


def _summed(tensor: Tensor) -> float:
    return float(tensor.double().sum())


def _sampled(tensor: Tensor, limit: float, generator: torch.Generator) -> dict[str, Any]:
    flat = tensor.flatten()
    places = torch.randint(max(1, flat.numel()), (min(SAMPLED, flat.numel()),), generator=generator)
    numbers = flat.double()
    finite = numbers[numbers.isfinite()]  # as in `differences`: masked scores are -inf
    size = float(finite.square().mean().sqrt()) if finite.numel() else 0.0
    return {
        "shape": list(tensor.shape),
        "dtype": str(tensor.dtype).removeprefix("torch."),
        "size": size if math.isfinite(size) else 0.0,
        "limit": limit,
        "values": numbers[places.to(flat.device)].tolist(),
    }
