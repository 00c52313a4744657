"""Errors of outputs against float64: the largest of each output, relative to its row or vector.

On a GPU this is bound by memory traffic.  Per element float64 moves about 100 bytes forwards and 230 backwards (passes
of 8 to 24 bytes that create, normalise and reduce it), each judged output 34 (the difference and its maximum), and the
fp32 reference half as much as float64: 18 and 35 GB for 32768x4096, which is 4 and 8 ms at the speed of a copy, and
half as much again with the reference.  Therefore the exact values are computed once for all outputs of the same
numbers, block by block, and the host waits for the device only at the end.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

import torch
from torch import Tensor

from ..cases import BY_ROW_OUT, OPS, Case, Direction, Op, Region, Rounding
from . import references
from .inputs import BY_ROW, DTYPES, Inputs, blocks, by_rows, some_rows

_BY_ROW = (*BY_ROW, "mean", "rstd", "mask")  # inputs
_WITH_ROWS = (*BY_ROW_OUT, "scale")  # outputs that have a part for each row; the others are sums over all rows
_SMALLEST = torch.finfo(torch.float32).tiny
_FEW_ROUNDINGS = 2.0**-23  # relative error of a product in fp32

Outputs = Mapping[str, Tensor]
Sum = Literal["exact", "rounded", "rounded for backward"]  # of x and residual

# Where the product with the weight is the last step before y is rounded.  Codes and a matrix product take rounded rows
# in any convention (`roundings`).
_WEIGHT_LAST = (Region.NONE, Region.SILU_GATE, Region.GELU_GATE, Region.DROPOUT)


def has_rows(name: str) -> bool:
    """Does an output have a part for each row?  Otherwise it is a sum over all rows."""
    return name in _WITH_ROWS


def noise(case: Case, name: str) -> float:
    """The error that a plain fp32 sum may have, relative to its terms.

    Rounding errors of a sum grow with about the square root of its length, and twice as much in the worst of many sums.
    In short sums the half dozen roundings around the sum dominate.
    """
    growth = math.sqrt(case.cols) if name in _WITH_ROWS else 2 * math.sqrt(case.rows)
    return 2.0**-24 * max(8.0, growth)


def rounding(dtype: torch.dtype) -> float:
    return torch.finfo(dtype).eps / 2


def roundings(case: Case, name: str) -> int:
    """How often an honest implementation rounds an output to the dtype of the case.

    A residual's gradient is added to a rounded one.  vLLM's kernels round the normalised row before the product with
    the weight and after it, and then quantise.  A matrix product takes rounded rows.  What dropout keeps is not exact
    in fp32, so that its rounded sum may be the next number.
    """
    before = OPS[case.op].region in (Region.LINEAR, Region.DROPOUT) if name == "y" else name in ("q", "scale")
    return 2 if before or _rounds_before_adding(case, name) else 1


def _rounds_before_adding(case: Case, name: str) -> bool:
    return name == "dx" and _adds(case)


@dataclass(frozen=True)
class Way:
    """What an implementation rounds to the dtype of the case before it goes on."""

    sum: Sum = "exact"
    normal: bool = False  # the normalised rows, of which y is computed
    slope: bool = False  # dy * weight, of which dx is computed, and the normalised rows of which dweight is
    product: bool = False  # the products with dy that dweight sums


@dataclass(frozen=True)
class Part:
    """Outputs of some rows, and their contribution to the sums over all rows.

    `terms` is the magnitude of the terms that cancel in an output: the largest of a row, the squares of a column.
    `slack` is how far an output may be off because a number that is rounded in between lies, up to the noise of fp32,
    in the middle of two numbers: [rows, columns], or [columns] of a sum.
    """

    outputs: dict[str, Tensor] = field(default_factory=dict)
    terms: dict[str, Tensor] = field(default_factory=dict)
    slack: dict[str, Tensor] = field(default_factory=dict)


def rounds_in_between(case: Case, rounding: Rounding) -> bool:
    """Do the conventions differ at this case by more than the noise of fp32?"""
    op = OPS[case.op]
    narrow = DTYPES[case.dtype].itemsize < 4
    return rounding is Rounding.BEFORE_WEIGHT and op.weight and op.region in _WEIGHT_LAST and narrow


def errors(
    inputs: Inputs, seen: Sequence[Outputs | None], rounding: Rounding = Rounding.AFTER_WEIGHT
) -> list[dict[str, float]]:
    """The error of each of `seen`, by output; None means an fp32 computation that follows the same convention.

    For a row: the largest difference relative to the largest exact value; for a sum over rows: the same over the whole
    vector.  Where terms cancel (in a row of one column all do), the unavoidable noise of fp32 counts as much as one
    rounding of the output.  Rows and columns that are not finite in float64 are ignored.

    An implementation may normalise the exact sum of x and residual, or the rounded one, or compute the backward pass
    from the rounded sum with the statistics of the exact one (as Quack does).  With few columns that rounding can cause
    an error of any size, so float64 computes all variants, and the nearest counts.

    Where the normalised rows are rounded before the product with the weight, float64 rounds them as well.  A backward
    pass may round what autograd then rounds (dy * weight; of dweight the normalised rows and their products with dy),
    or not.

    The error of codes `q` is not relative: it is the largest |q * scale - y|, divided by half a step between codes at y
    plus what rounding y may add, so that it must not exceed 1.
    """
    inputs, flat = _by_rows(inputs), [None if outputs is None else _matrices(outputs) for outputs in seen]
    found = torch.stack([_errors(inputs, flat, way) for way in _ways(inputs.case, rounding)]).amin(0)
    values = found.tolist()  # the only place that waits for the device
    return [dict(zip(inputs.case.outputs, each, strict=True)) for each in values]


def _ways(case: Case, rounding: Rounding) -> list[Way]:
    sums: list[Sum] = ["exact"]
    if _adds(case):
        sums.append("rounded")
        sums += ["rounded for backward"] * (case.direction is Direction.FWDBWD)
    if not rounds_in_between(case, rounding):
        return [Way(each) for each in sums]
    ways = [Way(each, normal=True) for each in sums]
    if case.direction is not Direction.FWD:
        ways += [Way(each, normal=True, slope=True, product=product) for each in sums for product in (False, True)]
    return ways


def _adds(case: Case) -> bool:
    return OPS[case.op].residual and case.direction is not Direction.BWD


def _errors(inputs: Inputs, seen: Sequence[Outputs | None], way: Way) -> Tensor:
    """[seen, outputs]; may still be being computed."""
    case = inputs.case
    device = inputs["x"].device
    none = torch.zeros(1, dtype=torch.float64, device=device)
    worst: list[dict[str, list[Tensor]]] = [{name: [none] for name in case.outputs} for _ in seen]
    exact_sums, sums = Part(), Part()
    by_row = [name for name in case.outputs if name in _WITH_ROWS]
    for rows in blocks(case, device):
        exact = _part(inputs, rows, torch.float64, way)
        honest = _part(inputs, rows, torch.float32, replace(way, sum="rounded")) if None in seen else Part()
        rounded = _rounded(case, honest)
        for name in case.outputs:
            if name not in _WITH_ROWS:
                _add(exact_sums, exact, name)
                _add(sums, honest, name)
                continue
            finite = _largest(exact.outputs[name]).isfinite()
            for number, outputs in enumerate(seen):
                some = rounded if outputs is None else {key: outputs[key][rows] for key in by_row}
                worst[number][name].append(torch.where(finite, _errors_of_rows(case, name, exact, some), 0.0))
    for name in exact_sums.outputs:
        total, squares = exact_sums.outputs[name], exact_sums.terms[name]
        finite = total.isfinite()
        scale = _scale(case, name, torch.where(finite, total.abs(), 0.0), torch.where(finite, squares, 0.0).sqrt())
        for number, outputs in enumerate(seen):
            output = sums.outputs[name].to(DTYPES[case.weight_dtype]) if outputs is None else outputs[name]
            off = _beyond(total - output, exact_sums.slack.get(name))
            worst[number][name].append(torch.where(finite, off, 0.0) / scale.amax())
    return torch.stack([torch.stack([torch.cat(each[name]).amax() for name in case.outputs]) for each in worst])


def partial_errors(
    inputs: Inputs, name: str, outputs: Outputs, rows: Sequence[int], rounding: Rounding = Rounding.AFTER_WEIGHT
) -> float:
    """The error of output `name` as in `errors`; inf if a value is nan.

    `outputs`: the output, and `scale` for `q`: these rows [len(rows), ...], or a sum over all rows [columns].
    """
    some = inputs
    if name in _WITH_ROWS:
        drawn = {key: some_rows(value, rows) if key in _BY_ROW else value for key, value in inputs.tensors.items()}
        some = Inputs(inputs.case, drawn)
    error = _each_error(some, name, outputs, rounding).amax(1).amin()
    return math.inf if error.isnan() else float(error)


def worst_place(inputs: Inputs, name: str, outputs: Outputs, rounding: Rounding = Rounding.AFTER_WEIGHT) -> int:
    """The row where output `name` is furthest off; of a sum over all rows, the column."""
    return int(_each_error(inputs, name, outputs, rounding).amin(0).nan_to_num(0.0, posinf=0.0).argmax())


def _each_error(inputs: Inputs, name: str, outputs: Outputs, rounding: Rounding) -> Tensor:
    """[ways, rows], or [ways, columns] of a sum: the errors of an output as in `errors`; nan for nan."""
    inputs, outputs, case = _by_rows(inputs), _matrices(outputs), inputs.case
    count = len(inputs["x"])
    pieces = [rows for rows in blocks(case, inputs["x"].device) if rows.start < count]
    found = []
    for way in _ways(case, rounding):
        if name in _WITH_ROWS:
            by_row = {key: value for key, value in outputs.items() if key in _WITH_ROWS}
            parts = [
                _errors_of_rows(
                    case,
                    name,
                    _part(inputs, rows, torch.float64, way),
                    {key: value[rows] for key, value in by_row.items()},
                )
                for rows in pieces
            ]
            found.append(torch.cat(parts))
        else:
            sums = Part()
            for rows in pieces:
                _add(sums, _part(inputs, rows, torch.float64, way), name)
            total = sums.outputs[name]
            scale = _scale(case, name, total.abs(), sums.terms[name].sqrt()).amax()
            found.append(_beyond(total - outputs[name], sums.slack.get(name)) / scale)
    return torch.stack(found)


def hidden_infinities(inputs: Inputs, outputs: Outputs) -> list[str]:
    """Names of the outputs that are finite where float64 has inf or nan.

    Codes count with their scale.  Those of int8 may be anything: they have no nan, and vLLM's maximum of a row skips
    nan, so that the scale is finite.
    """
    inputs, outputs = _by_rows(inputs), _matrices(outputs)
    hidden: dict[str, list[Tensor]] = {name: [] for name in outputs}
    exact_sums = Part()
    for rows in blocks(inputs.case, inputs["x"].device):
        exact = _part(inputs, rows, torch.float64, Way())
        for name, output in outputs.items():
            if name in _WITH_ROWS:
                if name != "scale" and output.dtype is not torch.int8:
                    seen = dequantised(output[rows], outputs["scale"][rows]) if name == "q" else output[rows]
                    hidden[name].append((seen.isfinite() & ~exact.outputs[name].isfinite()).any())
            else:
                _add(exact_sums, exact, name)
    for name, total in exact_sums.outputs.items():
        hidden[name].append((outputs[name].isfinite() & ~total.isfinite()).any())
    checked = {name: torch.stack(each).any() for name, each in hidden.items() if each}
    flags = torch.stack([*checked.values()]).tolist() if checked else []
    return [name for name, flag in zip(checked, flags, strict=True) if flag]


def _by_rows(inputs: Inputs) -> Inputs:
    """The same with matrices where the case has heads, whose rows have two strides in the inputs."""
    return replace(inputs, tensors=_matrices(inputs.tensors)) if inputs.case.heads else inputs


def _matrices(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: by_rows(tensor) for name, tensor in tensors.items()}


def dequantised(q: Tensor, scale: Tensor) -> Tensor:
    """[rows, columns] in float64."""
    return q.double() * scale.double()[:, None]


def _errors_of_rows(case: Case, name: str, exact: Part, outputs: Outputs) -> Tensor:
    """[rows]: the error of an output as in `errors`; nan for nan."""
    expected, terms, output = exact.outputs[name], exact.terms[name], outputs[name]
    if name == "q":
        return _largest((expected - dequantised(output, outputs["scale"])) / _tolerance(case, exact))
    size = _largest(expected)
    if name == "y" and "rounded" in exact.terms:
        size = torch.maximum(size, exact.terms["rounded"])
    off = expected - output
    if name in exact.slack:
        off = _beyond(off, exact.slack[name])
    error = _largest(off) / _scale(case, name, size, terms)
    if name == "scale":  # of a row of zeros it may be any finite number
        is_zero = expected <= references.SMALLEST_MAX / references.MAX_CODE[OPS[case.op].region]
        return torch.where(is_zero, output.double() * 0.0, error)
    return error


def _tolerance(case: Case, exact: Part) -> Tensor:
    """[rows, columns]: half a step between the codes at y, and what its roundings may add."""
    y, scale = exact.outputs["q"].abs(), exact.outputs["scale"][:, None]
    if OPS[case.op].region is Region.FP8:  # three bits of mantissa down to 2^-6, and below that steps of 2^-9
        _, exponent = torch.frexp(y / scale)
        half = torch.ldexp(torch.ones_like(y), exponent.clamp_min(-5) - 5) * scale
    else:
        half = 0.5 * scale
    relative = 1.01 * roundings(case, "q") * rounding(DTYPES[case.dtype])
    return (half * 1.001 + relative * y + noise(case, "q") * exact.terms["q"][:, None]).clamp_min(_SMALLEST)


def _rounded(case: Case, part: Part) -> dict[str, Tensor]:
    """The outputs of some rows as a call returns them."""
    found = {name: part.outputs[name].to(DTYPES[case.dtype]) for name in BY_ROW_OUT if name in part.outputs}
    if "q" in found:
        found["q"], found["scale"] = references.quantised(OPS[case.op], part.outputs["q"])
    return found


def _beyond(off: Tensor, slack: Tensor | None) -> Tensor:
    """How far values are off beyond their slack."""
    return off.abs() if slack is None else (off.abs() - slack).clamp_min(0.0)


def _part(inputs: Inputs, rows: slice, dtype: torch.dtype, way: Way) -> Part:
    """The definition for some rows; `way` says what is rounded in between."""
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
            x = references.summed(op, x, t)
            part.outputs["residual_out"] = x
            part.terms["residual_out"] = torch.zeros_like(x[:, 0])
            x = x.to(narrow).to(dtype) if way.sum == "rounded" else x
        normal, rstd, mean = references.normalised(op, x, inputs.eps)
        terms = _largest(x) * rstd[:, 0]
        if way.normal:
            kept, unsure = _rounded_in_between(normal, noise(inputs.case, "y") * terms[:, None], narrow)
            y = references.weighted(op, kept, t)
            slack = unsure * t["weight"].abs()
            gates = op.region in (Region.SILU_GATE, Region.GELU_GATE)
            part.slack["y"] = references.gated(op, slack, t).abs() if gates else slack
        else:
            y = references.weighted(op, normal, t)
        if op.weight:
            terms = terms * t["weight"].abs().amax()
        if op.bias:
            terms = terms + t["bias"].abs().amax()
        _put_through_region(part, op, y, terms, t, narrow)
    if direction is Direction.FWD:
        return part
    if direction is Direction.FWDBWD and op.residual and way.sum == "rounded for backward":
        x = x.to(narrow).to(dtype)
        normal = (x if mean is None else x - mean) * rstd
    dy = t["dy"]
    slope = references.sloped(op, dy, t)
    product = dy * normal if op.weight else dy
    if way.slope:
        slope, unsure = _rounded_in_between(slope, _FEW_ROUNDINGS * slope.abs(), narrow)
        loose = unsure + normal.abs() * (normal.abs() * unsure).mean(1, keepdim=True)
        if op.norm == "layernorm":
            loose = loose + unsure.mean(1, keepdim=True)
        part.slack["dx"] = loose * rstd
        kept, unsure = _rounded_in_between(normal, noise(inputs.case, "y") * _largest(x)[:, None] * rstd, narrow)
        product, unsure = dy * kept, dy.abs() * unsure
        if way.product:
            product, unsure = _rounded_in_between(product, unsure + _FEW_ROUNDINGS * product.abs(), narrow)
        part.slack["dweight"] = unsure.sum(0)
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
        part.outputs["dweight"] = product.sum(0)
        cancelling = product if shift is None else dy * (normal.abs() + shift)
        part.terms["dweight"] = cancelling.square().sum(0)
    if op.bias:
        part.outputs["dbias"] = dy.sum(0)
        part.terms["dbias"] = dy.square().sum(0)
    return part


def _put_through_region(
    part: Part, op: Op, y: Tensor, terms: Tensor, t: Mapping[str, Tensor], narrow: torch.dtype
) -> None:
    """Add the outputs of the region, and the size of their terms, to a part."""
    match op.region:
        case Region.FP8 | Region.INT8:
            part.outputs.update(q=y, scale=references.scale_of(op, y)[:, 0])
            part.terms.update(q=terms, scale=terms / references.MAX_CODE[op.region])
        case Region.SILU_GATE | Region.GELU_GATE:
            part.outputs["y"] = references.gated(op, y, t)
            part.terms["y"] = terms * _largest(t["gate"])  # both functions are at most |gate|
        case Region.LINEAR:
            rows = y.to(narrow).to(y.dtype) if y.dtype is torch.float32 else y
            longest = t["matrix"].norm(dim=1).amax()
            part.outputs["y"] = rows @ t["matrix"].T
            part.terms["y"] = terms * longest
            part.terms["rounded"] = _largest(rows) * longest  # where terms cancel, their roundings do not
        case _:
            part.outputs["y"], part.terms["y"] = y, terms


def _rounded_in_between(values: Tensor, noise: Tensor, narrow: torch.dtype) -> tuple[Tensor, Tensor]:
    """`values` as rounded to `narrow`, and how far another computation of them may come out from that."""
    lowest, highest = (values - noise).to(narrow), (values + noise).to(narrow)
    return values.to(narrow).to(values.dtype), highest.to(values.dtype) - lowest.to(values.dtype)


def _largest(values: Tensor) -> Tensor:
    """The largest absolute value of each row, [rows]; nan if the row contains nan.  Of one value, its absolute value.

    Two passes without writes; torch's inf norm, in one pass, took eight times as long on a CPU.
    """
    if values.ndim == 1:
        return values.abs()
    return torch.maximum(values.amax(1), -values.amin(1))


def _scale(case: Case, name: str, largest: Tensor, terms: Tensor) -> Tensor:
    """The reference of a relative error: the output, plus the terms, weighted so that fp32 noise counts as a rounding.

    In fp32 the rounding is part of the noise; in a narrower dtype it is added.  A gradient that is rounded before it is
    added has an error of its own size, however small the sum is.
    """
    dtype = DTYPES[case.dtype if name in _WITH_ROWS else case.weight_dtype]
    counted = noise(case, name) / rounding(dtype)
    if counted >= 1.0 or _rounds_before_adding(case, name):
        return torch.maximum(largest, terms).clamp_min(_SMALLEST)
    return (largest + terms * counted).clamp_min(_SMALLEST)


def _add(sums: Part, part: Part, name: str) -> None:
    if name not in part.outputs:
        return
    for total, share in ((sums.outputs, part.outputs), (sums.terms, part.terms), (sums.slack, part.slack)):
        if name in share:
            total[name] = total[name] + share[name] if name in total else share[name]
