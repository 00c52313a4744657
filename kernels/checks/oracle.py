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

from ..cases import BY_ROW_OUT, Case
from .error_bounds import errors, hidden_infinities, noise, partial_errors, rounding, roundings
from .inputs import DTYPES, Inputs

ALLOWANCE = 1.5
FAR = 16  # times the rounding of an output: no honest one is as far off


@dataclass(frozen=True)
class Finding:
    """`reason` is None when the outputs are right.  `errors` are relative, by output."""

    reason: str | None
    errors: dict[str, float]


class WrongShape(Exception):
    """An output has the wrong type, shape or dtype.  The message says what was expected."""


def named(case: Case, returned: Any) -> dict[str, Tensor]:
    """The outputs of a call by name.  Raises WrongShape."""
    names = case.outputs
    if len(names) == 1:
        outputs: dict[str, Any] = {names[0]: returned}
    else:
        if not isinstance(returned, tuple | list) or len(returned) != len(names):
            raise WrongShape(f"returned {_kind(returned)} instead of ({', '.join(names)})")
        outputs = dict(zip(names, returned, strict=True))
    for name, tensor in outputs.items():
        if not isinstance(tensor, Tensor):
            raise WrongShape(f"{name} is {_kind(tensor)} instead of a tensor")
        if type(tensor) not in (Tensor, torch.nn.Parameter):
            raise WrongShape(f"{name} is a {type(tensor).__name__}, not a plain tensor")
        shape = (case.rows, case.cols) if name in BY_ROW_OUT else (case.cols,)
        if tuple(tensor.shape) != shape:
            raise WrongShape(f"{name} has the shape {tuple(tensor.shape)} instead of {shape}")
        allowed = _dtypes(case, name)
        if tensor.dtype not in allowed:
            raise WrongShape(f"{name} is {_short(tensor.dtype)} instead of {' or '.join(map(_short, allowed))}")
    return outputs


class Oracle:
    """Judges outputs of one case; the first inputs determine the allowed errors."""

    def __init__(self, inputs: Inputs) -> None:
        self.case = inputs.case
        self._first = inputs
        self._limits: dict[str, float] | None = None

    @property
    def limits(self) -> dict[str, float]:
        if self._limits is None:
            self._limits = self._allowed(errors(self._first, [None])[0])
        return self._limits

    def judge(self, inputs: Inputs, outputs: dict[str, Tensor]) -> Finding:
        if finding := _on_wrong_device(inputs, outputs):
            return finding
        if self._limits is None and inputs is self._first:  # one exact computation serves for both
            honest, found = errors(inputs, [None, outputs])
            self._limits = self._allowed(honest)
        else:
            [found] = errors(inputs, [outputs])
        for name, error in found.items():
            if not math.isfinite(error):
                bad = int((~torch.isfinite(outputs[name])).sum())
                return Finding(f"{name} has {bad} {'value that is' if bad == 1 else 'values that are'} not finite", {})
        return self._compared(found)

    def judge_edges(self, inputs: Inputs, outputs: dict[str, Tensor]) -> Finding:
        """Judge outputs for `edge_inputs`: inf and nan must appear in their rows and nowhere else."""
        if finding := _on_wrong_device(inputs, outputs):
            return finding
        [found] = errors(inputs, [outputs])
        for name, error in found.items():
            if not math.isfinite(error):
                return Finding(f"{name} is not finite in a row without inf or nan in its inputs", {})
        if hidden := hidden_infinities(inputs, outputs):
            return Finding(f"{hidden[0]} is finite in a row with inf or nan in its inputs", found)
        return self._compared(found, "with rows of zeros, with a mean of 1000, with inf and with nan: ")

    def _compared(self, found: dict[str, float], when: str = "") -> Finding:
        for name, error in found.items():
            if not error <= self.limits[name]:
                allowed = f"{ALLOWANCE} times a rounded fp32 reference would be {self.limits[name]:.1e}"
                return Finding(f"{when}{name} is wrong by {error:.1e}, {allowed}", found)
        return Finding(None, found)

    def _allowed(self, honest: dict[str, float]) -> dict[str, float]:
        """With few numbers the reference can be exact by chance; one rounding is always allowed."""
        return {
            name: max(ALLOWANCE * error, noise(self.case, name), self._rounding_error(name))
            for name, error in honest.items()
        }

    def _rounding_error(self, name: str) -> float:
        return 1.01 * roundings(self.case, name) * rounding(_dtypes(self.case, name)[0])


def require_rows(inputs: Inputs, outputs: dict[str, Tensor], rows: Sequence[int]) -> str | None:
    """Why some rows are wrong by far more than rounding explains; None if they are not.  Sums need only be finite.

    Costs about a millisecond on a GPU, where a full comparison takes a hundred times as long.
    """
    case = inputs.case
    for name, tensor in outputs.items():
        if name not in BY_ROW_OUT:
            if not bool(torch.isfinite(tensor).all()):
                return f"{name} has values that are not finite"
            continue
        allowed = FAR * max(noise(case, name), roundings(case, name) * rounding(DTYPES[case.dtype]))
        error = partial_errors(inputs, name, tensor[list(rows)], rows)
        if not error <= allowed:
            return f"{name} is wrong by {error:.1e} in rows {', '.join(map(str, rows))}"
    return None


def _on_wrong_device(inputs: Inputs, outputs: dict[str, Tensor]) -> Finding | None:
    device = inputs["x"].device
    for name, tensor in outputs.items():
        if tensor.device != device:
            return Finding(f"{name} is on {tensor.device} instead of {device}", {})
    return None


def _dtypes(case: Case, name: str) -> tuple[torch.dtype, ...]:
    if name in BY_ROW_OUT:
        return (DTYPES[case.dtype],)
    weight = DTYPES[case.weight_dtype]  # a gradient may be more precise than its weight
    return (weight,) if weight is torch.float32 else (weight, torch.float32)


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _short(dtype: torch.dtype) -> str:
    return next((short for short, known in DTYPES.items() if known is dtype), str(dtype))
