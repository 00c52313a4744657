"""Errors of outputs against float64: the largest of each output, relative to its row or vector.

On a GPU this is bound by memory traffic.  Per element float64 moves about 100 bytes forwards and 230 backwards (passes
of 8 to 24 bytes that create, normalise and reduce it), each judged output 34 (the difference and its maximum), and the
fp32 reference half as much as float64: 18 and 35 GB for 32768x4096, which is 4 and 8 ms at the speed of a copy, and
half as much again with the reference.  Therefore the exact values are computed once for all outputs of the same
numbers, block by block, and the host waits for the device only at the end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..cases import BY_ROW_OUT, OPS, Case, Direction
from . import references
from .inputs import BY_ROW, DTYPES, Inputs, blocks

_BY_ROW = (*BY_ROW, "mean", "rstd")  # inputs
_SMALLEST = torch.finfo(torch.float32).tiny

Outputs = Mapping[str, Tensor]
Sum = Literal["exact", "rounded", "rounded for backward"]  # of x and residual


def noise(case: Case, name: str) -> float:
    """The error that a plain fp32 sum may have, relative to its terms.

    Rounding errors of a sum grow with about the square root of its length, and twice as much in the worst of many sums.
    In short sums the half dozen roundings around the sum dominate.
    """
    growth = math.sqrt(case.cols) if name in BY_ROW_OUT else 2 * math.sqrt(case.rows)
    return 2.0**-24 * max(8.0, growth)


def rounding(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def roundings(case: Case, name: str) -> int:
    """How often an honest implementation rounds an output: a residual's gradient is added to a rounded one."""
    return 2 if name == "dx" and _adds(case) else 1


@dataclass(frozen=True)
class Part:
    """Outputs of some rows, and their contribution to the sums over all rows.

    `terms` is the magnitude of the terms that cancel in an output: the largest of a row, the squares of a column.
    """

    outputs: dict[str, Tensor] = field(default_factory=dict)
    terms: dict[str, Tensor] = field(default_factory=dict)


def errors(inputs: Inputs, seen: Sequence[Outputs | None]) -> list[dict[str, float]]:
    """The error of each of `seen`, by output; None means an fp32 computation that is rounded once.

    For a row: the largest difference relative to the largest exact value; for a sum over rows: the same over the whole
    vector.  Where terms cancel (in a row of one column all do), the unavoidable noise of fp32 counts as much as one
    rounding of the output.  Rows and columns that are not finite in float64 are ignored.

    An implementation may normalise the exact sum of x and residual, or the rounded one, or compute the backward pass
    from the rounded sum with the statistics of the exact one (as Quack does).  With few columns that rounding can cause
    an error of any size, so float64 computes all variants, and the nearest counts.
    """
    found = torch.stack([_errors(inputs, seen, way) for way in _ways(inputs.case)]).amin(0)
    values = found.tolist()  # the only place that waits for the device
    return [dict(zip(inputs.case.outputs, each, strict=True)) for each in values]


def _ways(case: Case) -> list[Sum]:
    ways: list[Sum] = ["exact"]
    if _adds(case):
        ways.append("rounded")
        ways += ["rounded for backward"] * (case.direction is Direction.FWDBWD)
    return ways


def _adds(case: Case) -> bool:
    return OPS[case.op].residual and case.direction is not Direction.BWD


def _errors(inputs: Inputs, seen: Sequence[Outputs | None], way: Sum) -> Tensor:
    """[seen, outputs]; may still be being computed."""
    case = inputs.case
    device = inputs["x"].device
    none = torch.zeros(1, dtype=torch.float64, device=device)
    worst: list[dict[str, list[Tensor]]] = [{name: [none] for name in case.outputs} for _ in seen]
    exact_sums, sums = Part(), Part()
    for rows in blocks(case, device):
        exact = _part(inputs, rows, torch.float64, way)
        honest = _part(inputs, rows, torch.float32, "rounded") if None in seen else Part()
        for name in case.outputs:
            if name not in BY_ROW_OUT:
                _add(exact_sums, exact, name)
                _add(sums, honest, name)
                continue
            scale = _largest(exact.outputs[name])
            finite = scale.isfinite()
            scale = _scale(case, name, scale, exact.terms[name])
            for number, outputs in enumerate(seen):
                output = honest.outputs[name].to(DTYPES[case.dtype]) if outputs is None else outputs[name][rows]
                error = _largest(exact.outputs[name] - output) / scale
                worst[number][name].append(torch.where(finite, error, 0.0))
    for name in exact_sums.outputs:
        total, squares = exact_sums.outputs[name], exact_sums.terms[name]
        finite = total.isfinite()
        scale = _scale(case, name, torch.where(finite, total.abs(), 0.0), torch.where(finite, squares, 0.0).sqrt())
        for number, outputs in enumerate(seen):
            output = sums.outputs[name].to(DTYPES[case.weight_dtype]) if outputs is None else outputs[name]
            worst[number][name].append(torch.where(finite, (total - output).abs(), 0.0) / scale.amax())
    return torch.stack([torch.stack([torch.cat(each[name]).amax() for name in case.outputs]) for each in worst])


def partial_errors(inputs: Inputs, name: str, output: Tensor, rows: Sequence[int]) -> float:
    """The error of one output as in `errors`; inf if a value is nan.

    `output`: these rows [len(rows), columns], or a sum over all rows [1, columns].
    """
    case = inputs.case
    found = []
    for way in _ways(case):
        if name in BY_ROW_OUT:
            some = Inputs(
                case, {key: value[list(rows)] if key in _BY_ROW else value for key, value in inputs.tensors.items()}
            )
            exact = _part(some, slice(None), torch.float64, way)
            scale = _scale(case, name, _largest(exact.outputs[name]), exact.terms[name])
            error = (_largest(exact.outputs[name] - output) / scale).amax()
        else:
            sums = Part()
            for block in blocks(case, inputs["x"].device):
                _add(sums, _part(inputs, block, torch.float64, way), name)
            total = sums.outputs[name]
            error = (total - output[0]).abs().amax() / _scale(case, name, total.abs(), sums.terms[name].sqrt()).amax()
        found.append(math.inf if error.isnan() else float(error))
    return min(found)


def hidden_infinities(inputs: Inputs, outputs: Outputs) -> list[str]:
    """Names of the outputs that are finite where float64 has inf or nan."""
    hidden: dict[str, list[Tensor]] = {name: [] for name in outputs}
    exact_sums = Part()
    for rows in blocks(inputs.case, inputs["x"].device):
        exact = _part(inputs, rows, torch.float64, "exact")
        for name, output in outputs.items():
            if name in BY_ROW_OUT:
                hidden[name].append((output[rows].isfinite() & ~exact.outputs[name].isfinite()).any())
            else:
                _add(exact_sums, exact, name)
    for name, total in exact_sums.outputs.items():
        hidden[name].append((outputs[name].isfinite() & ~total.isfinite()).any())
    flags = torch.stack([torch.stack(each).any() for each in hidden.values()]).tolist()
    return [name for name, flag in zip(hidden, flags, strict=True) if flag]


def _part(inputs: Inputs, rows: slice, dtype: torch.dtype, way: Sum) -> Part:
    """The definition for some rows; `way` says how the sum of x and residual is rounded."""
    op = OPS[inputs.case.op]
    direction = inputs.case.direction
    t = {name: (value[rows] if name in _BY_ROW else value).to(dtype) for name, value in inputs.tensors.items()}
    part = Part()
    x = t["x"]
    narrow = DTYPES[inputs.case.dtype]

    if direction is Direction.BWD:
        rstd = t["rstd"][:, None]
        mean = t["mean"][:, None] if "mean" in t else None
        normal = (x if mean is None else x - mean) * rstd
    else:
        if op.residual:
            x = x + t["residual"]
            part.outputs["residual_out"] = x
            part.terms["residual_out"] = torch.zeros_like(x[:, 0])
            x = x.to(narrow).to(dtype) if way == "rounded" else x
        normal, rstd, mean = references.normalised(op, x, inputs.eps)
        part.outputs["y"] = references.weighted(op, normal, t)
        part.terms["y"] = _largest(x) * rstd[:, 0]
        if op.weight:
            part.terms["y"] = part.terms["y"] * t["weight"].abs().amax()
        if op.bias:
            part.terms["y"] = part.terms["y"] + t["bias"].abs().amax()
    if direction is Direction.FWD:
        return part
    if direction is Direction.FWDBWD and op.residual and way == "rounded for backward":
        x = x.to(narrow).to(dtype)
        normal = (x if mean is None else x - mean) * rstd
    dy = t["dy"]
    slope = references.sloped(op, dy, t)
    dx = references.gradient(op, slope, normal, rstd)
    terms = _largest(slope) * rstd[:, 0]
    # x * rstd - mean * rstd, as torch computes it on a CPU, has the rounding errors of both products
    shift = None if mean is None else (mean * rstd).abs()
    if shift is not None:
        terms = terms * (1.0 + shift[:, 0])
    if op.residual:
        if direction is Direction.FWDBWD and dtype is torch.float32:
            dx = dx.to(narrow).to(dtype)  # autograd rounds gradients before it adds them
        dx = dx + t["dresidual_out"]
        terms = terms + _largest(t["dresidual_out"])
    part.outputs["dx"] = dx
    part.terms["dx"] = terms
    if op.weight:
        product = dy * normal
        part.outputs["dweight"] = product.sum(0)
        cancelling = product if shift is None else dy * (normal.abs() + shift)
        part.terms["dweight"] = cancelling.square().sum(0)
    if op.bias:
        part.outputs["dbias"] = dy.sum(0)
        part.terms["dbias"] = dy.square().sum(0)
    return part


def _largest(values: Tensor) -> Tensor:
    """The largest absolute value of each row; nan if the row contains nan.

    Two passes without writes; torch's inf norm, in one pass, took eight times as long on a CPU.
    """
    return torch.maximum(values.amax(1), -values.amin(1))


def _scale(case: Case, name: str, largest: Tensor, terms: Tensor) -> Tensor:
    """The reference of a relative error: the output, plus the terms, weighted so that fp32 noise counts as a rounding.

    In fp32 the rounding is part of the noise; in a narrower dtype it is added.  A gradient that is rounded before it is
    added has an error of its own size, however small the sum is.
    """
    dtype = DTYPES[case.dtype if name in BY_ROW_OUT else case.weight_dtype]
    counted = noise(case, name) / rounding(dtype)
    if counted >= 1.0 or roundings(case, name) > 1:
        return torch.maximum(largest, terms).clamp_min(_SMALLEST)
    return (largest + terms * counted).clamp_min(_SMALLEST)


def _add(sums: Part, part: Part, name: str) -> None:
    if name not in part.outputs:
        return
    for total, share in ((sums.outputs, part.outputs), (sums.terms, part.terms)):
        total[name] = total[name] + share[name] if name in total else share[name]
