"""What must hold of outputs besides their numbers: memory of their own, inputs left alone, and checks that still check.

The target's code shares this process, so it could replace what the checks are made of.  What they need of torch is
taken here, before the target is imported, and after the timing the checks themselves are put to the test.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from ..cases import Case, Metric
from .error_bounds import BY_ROW_OUT
from .inputs import DTYPES, INTEGERS, Inputs, bit_sums, changed, fingerprint, make
from .oracle import Finding, Oracle, named

Outputs = dict[str, Tensor]
Span = tuple[int, int]  # first byte and the one after the last

FEW_ROWS = 16
FAR_OFF = 3e4  # larger than any honest output and any term of one (|dy * w * rstd| reaches 4e3), and still fp16

_equal, _clone, _all, _is_finite = torch.equal, Tensor.clone, Tensor.all, torch.isfinite


class Wrong(Exception):
    """An output that is not what it should be.  The message is the reason shown to people."""


def snapshot(case: Case, returned: Any) -> Outputs:
    """The outputs as they are now: what is finished later, or written over by the next call, is not in it.

    Raises WrongShape.
    """
    return {name: _clone(tensor) for name, tensor in named(case, returned).items()}


def bits(tensor: Tensor) -> Tensor:
    """The same memory as integers: every NaN equals itself, and minus zero is not zero."""
    return tensor.view(INTEGERS[tensor.element_size()])


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Bit by bit."""
    return all(_equal(bits(one[name]), bits(other[name])) for name in one)


def digest(tensor: Tensor) -> Tensor:
    """One number, still being computed, of all the bits: int64, the same for equal bits and hardly ever for others.

    Sums along rows and along columns, each weighted by its place: sums alone would miss what is swapped.
    """
    dense = tensor.detach().contiguous()
    parts = bit_sums(dense.clone() if dense.storage_offset() else dense)  # an odd offset has no view as wider integers
    return torch.stack([(part.long() * _weights(part.numel(), part.device)).sum() for part in parts]).sum()


@functools.lru_cache(8)
def _weights(count: int, device: torch.device) -> Tensor:
    """Odd numbers without a pattern; products and sums of them wrap around."""
    places = torch.arange(1, count + 1, device=device)
    return ((places * 0x5851F42D4C957F2D) ^ ((places << 17) * 0x2545F4914F6CDD1D)) | 1


def poison(case: Case, device: torch.device, count: int) -> None:
    """Leave NaN in the memory that `count` outputs are likely to get: what a kernel forgets to write looks wrong."""
    nowhere = [
        torch.full(_shape(case, name), math.nan, dtype=_dtype(case, name), device=device)
        for name in case.outputs
        for _ in range(count)
    ]
    nowhere.clear()


# -- memory ----------------------------------------------------------------------------------------------------------


def own_memory(case: Case, pairs: Sequence[tuple[Inputs, Any]]) -> None:
    """Raises Wrong where an output lies in its inputs, or in what a call on another input set returned.

    Returning the buffer of the call before is faster for the timing and useless to whoever needs both results.
    """
    taken: list[tuple[str, Span]] = []
    for inputs, returned in pairs:
        places = [(f"its input {name}", _span(tensor)) for name, tensor in inputs.tensors.items()]
        mine = {name: _span(output) for name, output in named(case, returned).items()}
        for name, span in mine.items():
            for what, other in (*places, *taken):
                if span[0] < other[1] and other[0] < span[1]:
                    raise Wrong(f"{name} lies in the memory of {what}")
        taken += [(f"the {name} that an earlier call returned", span) for name, span in mine.items()]


def _span(tensor: Tensor) -> Span:
    if not tensor.numel():
        return 0, 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


# -- inputs ----------------------------------------------------------------------------------------------------------


class Untouched:
    """Remembers what some input sets contain."""

    def __init__(self, sets: Sequence[Inputs], numbers: Iterable[int]) -> None:
        self._sets = sets
        self._prints = {number: fingerprint(sets[number]) for number in numbers}

    @property
    def numbers(self) -> list[int]:
        return list(self._prints)

    def check(self) -> None:
        """Raises Wrong when anybody wrote into them."""
        for number, before in self._prints.items():
            if names := changed(self._sets[number], before):
                raise Wrong(f"changed its input {' and '.join(names)}")

    def notices(self, number: int) -> None:
        """Raises Wrong unless it is seen that set `number` was given other numbers."""
        inputs = self._sets[number]
        if inputs.fresh not in changed(inputs, self._prints[number]):
            raise Wrong("the checks were tampered with: new numbers in an input go unnoticed")


# -- the oracle ------------------------------------------------------------------------------------------------------


def judged(oracle: Oracle, inputs: Inputs, outputs: Outputs, when: str = "") -> Finding:
    """Raises Wrong unless the outputs are right; `when` goes before the reason."""
    finding = oracle.judge(inputs, outputs)
    if finding.reason:
        raise Wrong(f"{when}{finding.reason}")
    return finding


def finite(outputs: Outputs, when: str) -> None:
    """Raises Wrong where an output has a value that is not."""
    for name, tensor in outputs.items():
        if not bool(_all(_is_finite(tensor))):
            raise Wrong(f"{when}{name} has values that are not finite")


def still_judges(case: Case, device: torch.device, seed: int) -> None:
    """Raises Wrong when what is wrong by far is called right, at a few rows of this case.

    Whoever replaces the oracle by something that knows this test is not seen.
    """
    small = replace(case, rows=min(case.rows, FEW_ROWS), metric=Metric.KERNEL)
    inputs = make(small, device, seed)
    outputs = {
        name: torch.full(_shape(small, name), FAR_OFF, dtype=_dtype(small, name), device=device)
        for name in small.outputs
    }
    if Oracle(inputs).judge(inputs, outputs).reason is None:
        raise Wrong("the checks were tampered with: an output that is wrong on purpose is called right")


def _shape(case: Case, name: str) -> tuple[int, ...]:
    return (case.rows, case.cols) if name in BY_ROW_OUT else (case.cols,)


def _dtype(case: Case, name: str) -> torch.dtype:
    return DTYPES[case.dtype if name in BY_ROW_OUT else case.weight_dtype]
