"""How far outputs are from float64: the largest error of each, relative to the row or vector that it stands in.

On a GPU this is memory traffic.  Per element float64 moves about 100 bytes forwards and 230 backwards (it is made,
normalised and reduced in passes of 8 to 24 bytes), an output that is judged 34 (the difference, and the largest of it),
and the fp32 reference half as much as float64: 18 and 35 GB for 32768x4096, so 4 and 8 ms at the speed of a copy, and
half as much again where the reference is asked for.  What is exact is therefore computed once for all that is judged
on the same numbers, block by block, and nothing waits for the device before the end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch
from torch import Tensor

from ..cases import OPS, Case, Direction
from . import references
from .inputs import BY_ROW, DTYPES, Inputs, blocks

BY_ROW_OUT = ("y", "residual_out", "dx")  # outputs of [rows, columns], in the dtype of the case
_SMALLEST = torch.finfo(torch.float32).tiny

Outputs = Mapping[str, Tensor]
Sum = Literal["whole", "rounded", "rounded for the way back"]  # of x and residual


def noise(case: Case, name: str) -> float:
    """What a plain fp32 sum may be off by, relative to its terms.

    Rounding errors of a sum wander by about the root of its length, those of the worst of many sums twice as far; in
    short ones the half dozen roundings around the sum are more.
    """
    wander = math.sqrt(case.cols) if name in BY_ROW_OUT else 2 * math.sqrt(case.rows)
    return 2.0**-24 * max(8.0, wander)


def rounding(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def roundings(case: Case, name: str) -> int:
    """How often an honest implementation rounds an output: the residual is added to the norm's rounded gradient."""
    return 2 if name == "dx" and _adds(case) else 1


@dataclass(frozen=True)
class Part:
    """Some rows: their outputs, and their share in the sums over all rows.

    `terms` are as large as what cancels in an output: the largest of a row, the squares of a column.
    """

    outputs: dict[str, Tensor] = field(default_factory=dict)
    terms: dict[str, Tensor] = field(default_factory=dict)


def errors(inputs: Inputs, seen: Sequence[Outputs | None]) -> list[dict[str, float]]:
    """The error of each of `seen`, by output; None stands for fp32, rounded once.

    Of a row, the largest difference over the largest exact value; of a sum over rows likewise, over the whole vector.
    Where terms cancel, as all do in a row of one column, the unavoidable noise of fp32 counts like one rounding of the
    output.  Rows and columns that are not finite in float64 are left out.

    An implementation may keep the sum of x and residual as it is, round it as it is handed on, or go back from the
    rounded one with the statistics of the other (as Quack does).  Few columns turn that rounding into any error, so
    float64 does it in all these ways, and the nearest counts.
    """
    ways: list[Sum] = ["whole"]
    if _adds(inputs.case):
        ways.append("rounded")
        ways += ["rounded for the way back"] * (inputs.case.direction is Direction.FWDBWD)
    found = torch.stack([_errors(inputs, seen, way) for way in ways]).amin(0)
    values = found.tolist()  # the device is waited for here, and only here
    return [dict(zip(inputs.case.outputs, each, strict=True)) for each in values]


def _adds(case: Case) -> bool:
    return OPS[case.op].residual and case.direction is not Direction.BWD


def _errors(inputs: Inputs, seen: Sequence[Outputs | None], way: Sum) -> Tensor:
    """[seen, outputs]; still being computed."""
    case, device = inputs.case, inputs["x"].device
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


def finite_where_it_should_not_be(inputs: Inputs, outputs: Outputs) -> list[str]:
    """Names of the outputs that hide an inf or nan which float64 has."""
    hidden: dict[str, list[Tensor]] = {name: [] for name in outputs}
    exact_sums = Part()
    for rows in blocks(inputs.case, inputs["x"].device):
        exact = _part(inputs, rows, torch.float64, "whole")
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
    """The definition for some rows; `way` says what of the sum of x and residual is normalised."""
    op, direction = OPS[inputs.case.op], inputs.case.direction
    by_row = (*BY_ROW, "mean", "rstd")
    t = {name: (value[rows] if name in by_row else value).to(dtype) for name, value in inputs.tensors.items()}
    part, x, narrow = Part(), t["x"], DTYPES[inputs.case.dtype]

    if direction is Direction.BWD:
        rstd, mean = t["rstd"][:, None], t["mean"][:, None] if "mean" in t else None
        normal = (x if mean is None else x - mean) * rstd
    else:
        if op.residual:
            x = x + t["residual"]
            part.outputs["residual_out"], part.terms["residual_out"] = x, torch.zeros_like(x[:, 0])
            x = x.to(narrow).to(dtype) if way == "rounded" else x
        normal, rstd, mean = references.normalised(op, x, inputs.eps)
        part.outputs["y"] = references.weighted(op, normal, t)
        largest_weight, largest_bias = (t[name].abs().amax() if name in t else None for name in ("weight", "bias"))
        part.terms["y"] = _largest(x) * rstd[:, 0]
        if largest_weight is not None:
            part.terms["y"] = part.terms["y"] * largest_weight
        if largest_bias is not None:
            part.terms["y"] = part.terms["y"] + largest_bias
    if direction is Direction.FWD:
        return part
    if direction is Direction.FWDBWD and op.residual and way == "rounded for the way back":
        x = x.to(narrow).to(dtype)
        normal = (x if mean is None else x - mean) * rstd
    dy = t["dy"]
    slope = references.sloped(op, dy, t)
    dx, terms = references.gradient(op, slope, normal, rstd), _largest(slope) * rstd[:, 0]
    # x * rstd - mean * rstd, as torch computes it on a CPU, is off by a rounding of the two
    off = None if mean is None else (mean * rstd).abs()
    if off is not None:
        terms = terms * (1.0 + off[:, 0])
    if op.residual:
        if direction is Direction.FWDBWD and dtype is torch.float32:
            dx = dx.to(narrow).to(dtype)  # between autograd functions gradients are rounded, and added then
        dx = dx + t["dresidual_out"]
        terms = terms + _largest(t["dresidual_out"])
    part.outputs["dx"], part.terms["dx"] = dx, terms
    if op.weight:
        product = dy * normal
        part.outputs["dweight"] = product.sum(0)
        cancelling = product if off is None else dy * (normal.abs() + off)
        part.terms["dweight"] = cancelling.square().sum(0)
    if op.bias:
        part.outputs["dbias"] = dy.sum(0)
        part.terms["dbias"] = dy.square().sum(0)
    return part


def _largest(values: Tensor) -> Tensor:
    """Of each row, its largest absolute value; nan where the row has one.

    Two passes that write nothing; the norm that is this in one pass took eight times as long on a CPU.
    """
    return torch.maximum(values.amax(1), -values.amin(1))


def _scale(case: Case, name: str, largest: Tensor, terms: Tensor) -> Tensor:
    """What an error is relative to: the output, and the terms so that their noise in fp32 counts like its rounding.

    In fp32 the rounding is part of the noise, beside a narrower one it comes on top.  A gradient that is rounded before
    it is added has the error of its own size, however small the sum is.
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
