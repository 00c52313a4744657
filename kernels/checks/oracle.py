"""Judge outputs by a float64 computation from the same rounded inputs.

The allowed error is 1.5 times that of an fp32 computation that is rounded once, and at least the rounding noise of a
plain fp32 sum of that length and of one rounding to the dtype.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..cases import Case, Rounding
from .error_bounds import (
    errors,
    has_rows,
    hidden_infinities,
    noise,
    partial_errors,
    rounding,
    roundings,
    rounds_in_between,
    worst_place,
)
from .inputs import ANY_DTYPE, DTYPES, Inputs, some_rows

ALLOWANCE = 1.5
_RIGHT_WITH = 'it is right with rounding = "{}" for this provider in the recipe (docs/adapters.md)'
AT_EDGES = "with rows of zeros, with a mean of 1000, with a large first or last element, with inf and with nan: "
MAX_OF_CODES = 1.0  # by the definition of their error
INPLACE = "a function that overwrites its inputs needs inplace = true in the recipe (docs/adapters.md)"
FAR = 16  # times the rounding of an output: no honest one is as far off

_is_finite = torch.isfinite  # referenced before any code of a target runs, which might replace it


@dataclass(frozen=True)
class Finding:
    """`reason` is None when the outputs are right.  `errors` are relative, by output."""

    reason: str | None
    errors: dict[str, float]


class WrongShape(Exception):
    """An output has the wrong type, shape or dtype, or is on another device.  The message says what was expected."""


def named(case: Case, returned: Any) -> dict[str, Tensor]:
    """The outputs of a call by name.  Raises WrongShape."""
    names = case.outputs
    if len(names) == 1:
        outputs: dict[str, Any] = {names[0]: returned}
    else:
        if not isinstance(returned, tuple | list) or len(returned) != len(names):
            hint = f"; {INPLACE}" if returned is None else ""
            raise WrongShape(f"returned {_kind(returned)} instead of ({', '.join(names)}){hint}")
        outputs = dict(zip(names, returned, strict=True))
    for name, tensor in outputs.items():
        if not isinstance(tensor, Tensor):
            hint = f"; {INPLACE}" if returned is None else ""
            raise WrongShape(f"{name} is {_kind(tensor)} instead of a tensor{hint}")
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            raise WrongShape(f"{name} is a {type(tensor).__name__}, not a plain tensor")
        shape = case.shape(name)
        if tuple(tensor.shape) != shape:
            raise WrongShape(f"{name} has the shape {tuple(tensor.shape)} instead of {shape}")
        allowed = tuple(ANY_DTYPE[dtype] for dtype in case.dtypes(name))
        if tensor.dtype not in allowed:
            raise WrongShape(f"{name} is {_short(tensor.dtype)} instead of {' or '.join(map(_short, allowed))}")
    return outputs


class Oracle:
    """Judges outputs of one case by a convention; the first inputs determine the allowed errors."""

    def __init__(self, inputs: Inputs, rounding: Rounding = Rounding.AFTER_WEIGHT) -> None:
        self.case = inputs.case
        self.rounding = rounding
        self._first = inputs
        self._limits: dict[str, float] | None = None

    @property
    def limits(self) -> dict[str, float]:
        if self._limits is None:
            self._limits = self._allowed(errors(self._first, [None], self.rounding)[0])
        return self._limits

    def judge(self, inputs: Inputs, outputs: dict[str, Tensor]) -> Finding:
        """Compare all outputs with float64.  Raises WrongShape if one is on another device."""
        _require_device(inputs, outputs)
        if self._limits is None and inputs is self._first:  # one exact computation serves for both
            honest, found = errors(inputs, [None, outputs], self.rounding)
            self._limits = self._allowed(honest)
        else:
            [found] = errors(inputs, [outputs], self.rounding)
        for name, error in found.items():
            if not math.isfinite(error):
                bad = int(not_numbers(outputs[name]).sum())
                return Finding(f"{name} has {bad} {'value that is' if bad == 1 else 'values that are'} not finite", {})
        finding = self._compared(inputs, outputs, found)
        if finding.reason and (other := self._other_convention()) and not other._wrong(inputs, outputs):
            return Finding(f"{finding.reason}; {_RIGHT_WITH.format(other.rounding)}", found)
        return finding

    def judge_edges(self, inputs: Inputs, outputs: dict[str, Tensor]) -> Finding:
        """Judge outputs for `edge_inputs`: inf and nan must appear in their rows and nowhere else.

        Raises WrongShape if an output is on another device.
        """
        _require_device(inputs, outputs)
        [found] = errors(inputs, [outputs], self.rounding)
        for name, error in found.items():
            if not math.isfinite(error):
                return Finding(f"{name} is not finite in a row without inf or nan in its inputs", {})
        if hidden := hidden_infinities(inputs, outputs):
            return Finding(f"{hidden[0]} is finite in a row with inf or nan in its inputs", found)
        return self._compared(inputs, outputs, found, AT_EDGES)

    def _compared(self, inputs: Inputs, outputs: dict[str, Tensor], found: dict[str, float], when: str = "") -> Finding:
        for name, error in found.items():
            if error > self.limits[name]:
                where = "row" if has_rows(name) else "column"
                where += f" {worst_place(inputs, name, outputs, self.rounding)}"
                reason = too_far(name, error, self.limits[name], where)
                return Finding(f"{when}{reason}", found)
        return Finding(None, found)

    def _other_convention(self) -> "Oracle | None":
        other = next(each for each in Rounding if each is not self.rounding)
        differs = rounds_in_between(self.case, Rounding.BEFORE_WEIGHT)
        return Oracle(self._first, other) if differs else None

    def _wrong(self, inputs: Inputs, outputs: dict[str, Tensor]) -> str | None:
        """An output that is wrong by this convention; None if all are right."""
        [found] = errors(inputs, [outputs], self.rounding)
        return next((name for name, error in found.items() if error > self.limits[name]), None)

    def _allowed(self, honest: dict[str, float]) -> dict[str, float]:
        """With few numbers the reference can be exact by chance; one rounding is always allowed."""
        return {
            name: MAX_OF_CODES
            if name == "q"
            else max(ALLOWANCE * error, noise(self.case, name), self._rounding_error(name))
            for name, error in honest.items()
        }

    def _rounding_error(self, name: str) -> float:
        """A scale is as exact as y, although it is fp32."""
        case = self.case
        dtype = case.weight_dtype if name.startswith(("dweight", "dbias")) else case.dtype
        return 1.01 * roundings(case, name) * rounding(DTYPES[dtype])


def too_far(name: str, error: float, allowed: float, where: str) -> str | None:
    """Why an output is wrong whose error is larger than allowed; None if it is not.  `where`: its row or column."""
    if error <= allowed:
        return None
    if name == "q":
        return f"q * scale is {error:.2g} times as far from y as a rounded code can be in {where}"
    of = f"the largest value in {where}" if has_rows(name) else f"its largest value, in {where}"
    most = f"{percent(allowed)} is allowed, {ALLOWANCE} times the error of a rounded fp32 computation"
    return f"{name} is wrong by {percent(error)} of {of}; {most}"


def percent(error: float) -> str:
    """A relative error as people read it: two digits."""
    return f"{100 * error:.0f} %" if error >= 0.1 else f"{100 * error:.2g} %"


def not_numbers(tensor: Tensor) -> Tensor:
    """Where a tensor is not finite; of integers, where it has the number that `poison` leaves."""
    if not tensor.is_floating_point():
        return tensor == torch.iinfo(tensor.dtype).min
    return ~_is_finite(tensor if tensor.element_size() > 1 else tensor.float())  # torch has no isfinite of fp8


def poison(dtype: torch.dtype) -> float:
    """What shows that an output was not written: nan, and for int8 a code that no row has, whose largest is 127."""
    if dtype.is_floating_point or dtype.is_complex:
        return math.nan
    return 0 if dtype is torch.bool else torch.iinfo(dtype).min


def require_rows(
    inputs: Inputs,
    outputs: dict[str, Tensor],
    rows: Sequence[int],
    convention: Rounding = Rounding.AFTER_WEIGHT,
) -> str | None:
    """Why some rows are wrong by far more than rounding explains; None if they are not.  Sums need only be finite.

    Costs about a millisecond on a GPU, where a full comparison takes a hundred times as long.
    """
    case = inputs.case
    some = {name: some_rows(tensor, rows) for name, tensor in outputs.items() if has_rows(name)}
    for name, tensor in outputs.items():
        if name not in some:
            if bool(not_numbers(tensor).any()):
                return f"{name} has values that are not finite"
            continue
        rounded = roundings(case, name) * rounding(DTYPES[case.dtype])
        allowed = MAX_OF_CODES if name == "q" else FAR * max(noise(case, name), rounded)
        error = partial_errors(inputs, name, some, rows, convention)
        if not error <= allowed:
            return f"{name} is wrong by {percent(error)} of the largest value in rows {', '.join(map(str, rows))}"
    return None


def _require_device(inputs: Inputs, outputs: dict[str, Tensor]) -> None:
    device = inputs["x"].device
    for name, tensor in outputs.items():
        if tensor.device != device:
            raise WrongShape(f"{name} is on {tensor.device} instead of {device}")


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _short(dtype: torch.dtype) -> str:
    return next((short for short, known in ANY_DTYPE.items() if known is dtype), str(dtype))
