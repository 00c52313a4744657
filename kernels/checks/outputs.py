"""Checks of outputs besides their numbers: own memory, unchanged inputs, and an oracle that still works.

Code of the target runs in the same process and could replace what the checks call.  The torch functions that they need
are therefore referenced here, before the target is imported, and after the timing the checks themselves are tested.
"""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cases import Case
from .inputs import ANY_DTYPE, BY_ROW, INTEGERS, Inputs, bit_sums, by_rows, changed, fingerprint, make
from .oracle import INPLACE, Finding, Oracle, named, not_numbers, poison

Outputs = dict[str, Tensor]
Span = tuple[int, int]  # first byte and the one after the last

FEW_ROWS = 16
FAR_OFF = 3e4  # larger than any honest output and any term of one (|dy * w * rstd| reaches 4e3); fits into fp16

_equal, _clone, _any = torch.equal, Tensor.clone, Tensor.any


class Wrong(Exception):
    """An output is wrong, or a check detected cheating.  The message is the reason that people see."""


class Inexact(Wrong):
    """The numbers of an output are further from float64 than allowed.  `errors` as in `Finding`."""

    def __init__(self, reason: str, errors: Mapping[str, float]) -> None:
        super().__init__(reason)
        self.errors = dict(errors)


def snapshot(case: Case, returned: Any) -> Outputs:
    """A copy of the outputs: work finished later, and the next call, do not change it.  Raises WrongShape."""
    return {name: _clone(tensor) for name, tensor in named(case, returned).items()}


def bits(tensor: Tensor) -> Tensor:
    """The same memory as integers, so that a NaN equals itself and minus zero differs from zero."""
    return tensor.view(INTEGERS[tensor.element_size()])


def same(one: Mapping[str, Tensor], other: Mapping[str, Tensor]) -> bool:
    """Are all outputs of `one` equal to those of `other`, bit by bit?"""
    return all(_equal(bits(one[name]), bits(other[name])) for name in one)


def digest(tensor: Tensor) -> Tensor:
    """A hash of all bits, as an int64 tensor that may still be being computed.

    Hashes the sums along rows and along columns, weighted by position: plain sums would miss swapped values.
    """
    dense = by_rows(tensor.detach()).contiguous()
    parts = bit_sums(dense.clone() if dense.storage_offset() else dense)  # an odd offset has no view as wider integers
    return torch.stack([(part.long() * _weights(part.numel(), part.device)).sum() for part in parts]).sum()


@functools.lru_cache(8)
def _weights(count: int, device: torch.device) -> Tensor:
    """Pseudo-random odd numbers; products and sums with them wrap around."""
    places = torch.arange(1, count + 1, device=device)
    return ((places * 0x5851F42D4C957F2D) ^ ((places << 17) * 0x2545F4914F6CDD1D)) | 1


def fill_with_nan(case: Case, device: torch.device, count: int) -> None:
    """Leave NaN in the memory that `count` outputs are likely to get, to show what a kernel does not write.

    Integers get the number that `poison` says.
    """
    freed = [
        torch.full(case.shape(name), poison(_dtype(case, name)), dtype=_dtype(case, name), device=device)
        for name in case.outputs
        for _ in range(count)
    ]
    freed.clear()


# -- memory ----------------------------------------------------------------------------------------------------------


def require_own_memory(case: Case, pairs: Sequence[tuple[Inputs, Any]]) -> None:
    """Raises Wrong if an output overlaps its inputs, or an output of a call on another input set.

    Returning the previous call's buffer makes the timing faster and is useless to a caller who needs both results.
    """
    overwrites = f"; {INPLACE}"
    taken: list[tuple[str, Span]] = []
    for inputs, returned in pairs:
        own_inputs = [
            (f"its input {name}{overwrites * (name in BY_ROW)}", _span(tensor))
            for name, tensor in inputs.tensors.items()
        ]
        spans = {name: _span(output) for name, output in named(case, returned).items()}
        for name, span in spans.items():
            for what, other in (*own_inputs, *taken):
                if span[0] < other[1] and other[0] < span[1]:
                    raise Wrong(f"{name} shares memory with {what}")
        taken += [(f"the {name} that an earlier call returned", span) for name, span in spans.items()]


def _span(tensor: Tensor) -> Span:
    if not tensor.numel():
        return 0, 0
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    return tensor.data_ptr(), tensor.data_ptr() + (reach + 1) * tensor.element_size()


# -- inputs ----------------------------------------------------------------------------------------------------------


class Untouched:
    """Detects writes to some of the input sets."""

    def __init__(self, sets: Sequence[Inputs], numbers: Iterable[int]) -> None:
        self._sets = sets
        self._prints = {number: fingerprint(sets[number]) for number in numbers}

    @property
    def numbers(self) -> list[int]:
        return list(self._prints)

    def check(self) -> None:
        """Raises Wrong if one of them was changed."""
        for number, before in self._prints.items():
            if names := changed(self._sets[number], before):
                hint = f"; {INPLACE}" if set(names) <= set(BY_ROW) else ""
                raise Wrong(f"changed its input {' and '.join(names)}{hint}")

    def require_change(self, number: int) -> None:
        """Raises Wrong unless the change of numbers in set `number` is detected: the check itself works."""
        inputs = self._sets[number]
        if inputs.fresh not in changed(inputs, self._prints[number]):
            raise Wrong("the checks were tampered with: new numbers in an input go unnoticed")


# -- the oracle ------------------------------------------------------------------------------------------------------


def require_correct(oracle: Oracle, inputs: Inputs, outputs: Outputs, when: str = "") -> Finding:
    """Raises Inexact unless the outputs are right; `when` is the prefix of the reason."""
    return _exact(oracle.judge(inputs, outputs), when)


def require_correct_edges(oracle: Oracle, inputs: Inputs, outputs: Outputs) -> Finding:
    """The same for `edge_inputs`."""
    return _exact(oracle.judge_edges(inputs, outputs))


def _exact(finding: Finding, when: str = "") -> Finding:
    if finding.reason:
        raise Inexact(f"{when}{finding.reason}", finding.errors)
    return finding


def require_finite(outputs: Outputs, when: str) -> None:
    """Raises Wrong if an output has a value that is not finite; `when` is the prefix of the reason."""
    for name, tensor in outputs.items():
        if bool(_any(not_numbers(tensor))):
            raise Wrong(f"{when}{name} has values that are not finite")


def require_working_oracle(case: Case, device: torch.device, seed: int) -> None:
    """Raises Wrong if the oracle accepts grossly wrong outputs at a few rows of this case.

    A replaced oracle that recognises this test is not detected.
    """
    small = case.of_tokens(min(case.tokens, FEW_ROWS))
    inputs = make(small, device, seed)
    outputs = {
        name: torch.full(small.shape(name), _far_off(_dtype(small, name)), dtype=_dtype(small, name), device=device)
        for name in small.outputs
    }
    if Oracle(inputs).judge(inputs, outputs).reason is None:
        raise Wrong("the checks were tampered with: an output that is wrong on purpose is called right")


def _far_off(dtype: torch.dtype) -> float:
    """FAR_OFF, or the largest number of a narrow dtype; its scale is then far off."""
    return min(FAR_OFF, torch.finfo(dtype).max if dtype.is_floating_point else torch.iinfo(dtype).max)


def _dtype(case: Case, name: str) -> torch.dtype:
    return ANY_DTYPE[case.dtypes(name)[0]]
