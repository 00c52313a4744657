"""Is an output right?  Float64 from the rounded inputs decides; an output may err 1.5 times as much as honest rounding.

The error of a row is its largest difference from the exact row over the largest exact value of that row; of a weight
gradient likewise over the whole vector.  What is allowed is 1.5 times the error of an fp32 computation that is rounded
once, and never less than the rounding noise of a plain fp32 sum of that length and of one rounding to the dtype.
"""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import references
from .inputs import BY_ROW, DTYPES, Inputs, blocks
from .words import OPS, Case, Direction

ALLOWANCE = 1.5


@dataclass(frozen=True)
class Finding:
    """`reason` is None when the outputs are right.  `errors` are relative, by output."""

    reason: str | None
    errors: dict[str, float]


class WrongShape(Exception):
    """Not even the shape, the kind or the dtype is right.  The message says what was expected."""


def named(case: Case, returned: Any) -> dict[str, Tensor]:
    """What a function returned, by the name of each output.  Raises WrongShape."""
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
        shape = (case.rows, case.cols) if name in ("y", "dx") else (case.cols,)
        if tuple(tensor.shape) != shape:
            raise WrongShape(f"{name} has the shape {tuple(tensor.shape)} instead of {shape}")
        allowed = _dtypes(case, name)
        if tensor.dtype not in allowed:
            raise WrongShape(f"{name} is {_short(tensor.dtype)} instead of {' or '.join(map(_short, allowed))}")
    return outputs


class Oracle:
    """Knows what is allowed at one case, from the first inputs it is shown."""

    def __init__(self, inputs: Inputs) -> None:
        self.case = inputs.case
        self.limits = {name: ALLOWANCE * error for name, error in self._errors(inputs, None).items()}
        for name in self.limits:
            # Rounding errors of a sum wander by about the root of its length, those of the worst of many sums
            # twice as far; in short ones the half dozen roundings around the sum are more.
            wander = math.sqrt(self.case.cols) if name in ("y", "dx") else 2 * math.sqrt(self.case.rows)
            of_sum = 2.0**-24 * max(8.0, wander)
            # And the reference may be lucky where there are few numbers: any output is rounded once
            of_rounding = 1.01 * torch.finfo(_dtypes(self.case, name)[0]).eps / 2
            self.limits[name] = max(self.limits[name], of_sum, of_rounding)

    def judge(self, inputs: Inputs, outputs: dict[str, Tensor]) -> Finding:
        device = inputs["x"].device
        for name, tensor in outputs.items():
            if tensor.device != device:
                return Finding(f"{name} is on {tensor.device} instead of {device}", {})
            bad = int((~torch.isfinite(tensor)).sum())
            if bad:
                return Finding(f"{name} has {bad} {'value that is' if bad == 1 else 'values that are'} not finite", {})
        errors = self._errors(inputs, outputs)
        for name, error in errors.items():
            if not error <= self.limits[name]:
                allowed = f"{ALLOWANCE} times a rounded fp32 reference would be {self.limits[name]:.1e}"
                return Finding(f"{name} is wrong by {error:.1e}, {allowed}", errors)
        return Finding(None, errors)

    def _errors(self, inputs: Inputs, outputs: dict[str, Tensor] | None) -> dict[str, float]:
        """The error of `outputs`, or without any that of the reference: fp32, rounded once."""
        by_row, *by_column = self.case.outputs
        worst, exact_sums, sums = [], [], []
        for rows in blocks(self.case, inputs["x"].device):
            exact, *exact_parts = _computed(inputs, rows, torch.float64)
            exact_sums.append(exact_parts)
            if outputs is None:
                seen, *parts = _computed(inputs, rows, torch.float32)
                seen = seen.to(DTYPES[self.case.dtype])
                sums.append(parts)
            else:
                seen = outputs[by_row][rows]
            scale = exact.abs().amax(1).clamp_min_(torch.finfo(torch.float32).tiny)
            worst.append((exact.sub_(seen).abs_().amax(1) / scale).amax())
        errors = {by_row: float(torch.stack(worst).amax())}
        for number, name in enumerate(by_column):
            exact = torch.stack([parts[number] for parts in exact_sums]).sum(0)
            if outputs is None:
                seen = torch.stack([parts[number] for parts in sums]).sum(0).to(DTYPES[self.case.weight_dtype])
            else:
                seen = outputs[name]
            scale = exact.abs().amax().clamp_min_(torch.finfo(torch.float32).tiny)
            errors[name] = float((exact - seen).abs().amax() / scale)
        return errors


def _computed(inputs: Inputs, rows: slice, dtype: torch.dtype) -> tuple[Tensor, ...]:
    """All outputs for some rows, in `dtype`; weight gradients are sums over these rows only."""
    op = OPS[inputs.case.op]
    by_row = (*BY_ROW, "mean", "rstd")
    t = {name: (value[rows] if name in by_row else value).to(dtype) for name, value in inputs.tensors.items()}
    if inputs.case.direction is Direction.FWD:
        return (references.weighted(op, references.normalised(op, t["x"], inputs.eps)[0], t),)
    rstd = t["rstd"][:, None]
    normal = (t["x"] - t["mean"][:, None] if "mean" in t else t["x"]) * rstd
    dx = references.gradient(op, references.sloped(op, t["dy"], t), normal, rstd)
    return dx, *[((t["dy"] * normal) if name == "weight" else t["dy"]).sum(0) for name in op.weights]


def _dtypes(case: Case, name: str) -> tuple[torch.dtype, ...]:
    if name in ("y", "dx"):
        return (DTYPES[case.dtype],)
    weight = DTYPES[case.weight_dtype]  # a gradient may be kept more exactly than its weight
    return (weight,) if weight in (torch.float32, torch.float64) else (weight, torch.float32)


def _kind(value: Any) -> str:
    if isinstance(value, tuple | list):
        return f"a {type(value).__name__} of {len(value)}"
    return "nothing" if value is None else f"a {type(value).__name__}"


def _short(dtype: torch.dtype) -> str:
    return next((short for short, known in DTYPES.items() if known is dtype), str(dtype))
