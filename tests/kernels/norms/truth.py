"""What the norms must compute, for tests on a CPU and on a GPU: torch's LayerNorm, RMSNorm written out, and autograd.

All in float64.  Torch's own RMSNorm is held against ours in rows that are finite; where it differs in others, what is
written out counts.

The inputs are the rounded ones.  An output may err 1.5 times as much as the same computation in fp32 that is rounded
once, and never has to be better than one rounding to its dtype or fp32's noise in the terms that it is made of.  The
noise of a sum over rows is that of a plain fp32 sum of that length (`kernels.checks.error_bounds.noise`).
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from torch.nn import functional

from kernels.checks.inputs import DTYPES
from kernels.norms.backward import backward
from kernels.norms.forward import forward
from kernels.norms.plans import BackwardPlan, ForwardPlan

EPS = 1e-6
NOISE = 2.0**-21  # of fp32: eight roundings
OVER_ROWS = ("dweight", "dbias")
ALLOWANCE = 1.5
MEAN = 1e3
# Rows at the edges of the definition, and what becomes of a row of normal numbers there.
EDGES = {
    "zeros": lambda row: row * 0,
    "constant": lambda row: row * 0 + 3,
    "far from zero": lambda row: row + MEAN,
    "huge": lambda row: row * 2.0**50,
    "denormal": lambda row: row * torch.finfo(row.dtype).smallest_normal / 8,
    "nan": lambda row: _with(row, float("nan")),
    "inf": lambda row: _with(row, float("inf")),
    "-inf": lambda row: _with(row, float("-inf")),
}
POISON = ("nan", "inf", "-inf")


@dataclass(frozen=True)
class Trial:
    """One call of forward and one of backward.  `given` names the optional inputs: weight, bias, residual, offset."""

    rows: int
    cols: int
    norm: str = "rmsnorm"
    dtypes: str = "fp32"  # of x, and after a hyphen of weight and bias
    given: str = "weight"
    layout: str = "dense"
    edges: tuple[str, ...] = ()  # the first rows
    forward: ForwardPlan | None = None
    backward: BackwardPlan | None = None

    def __str__(self) -> str:
        said = [f"{self.norm} {self.rows}x{self.cols} {self.dtypes}", self.given or "bare"]
        said += [self.layout] if self.layout != "dense" else []
        said += [", ".join(self.edges)] if self.edges else []
        said += [_short(plan) for plan in (self.forward, self.backward) if plan]
        return "; ".join(said)

    @property
    def center(self) -> bool:
        return self.norm == "layernorm"

    @property
    def offset(self) -> float:
        return 1.0 if "offset" in self.given else 0.0


def inputs(trial: Trial, device: str = "cpu", seed: int = 1) -> dict[str, Tensor]:
    """Normal numbers, and a gradient of each output."""
    drawn = torch.Generator(device).manual_seed(seed)
    x_dtype, _, weight_dtype = trial.dtypes.partition("-")

    def normal(*shape: int) -> Tensor:
        return torch.randn(shape, generator=drawn, device=device)

    named = {}
    for name in ("x", "dy", *(("residual", "dresidual_out") if "residual" in trial.given else ())):
        named[name] = laid_out(normal(trial.rows, trial.cols).to(DTYPES[x_dtype]), trial.layout)
    for row, edge in zip(named["x"], trial.edges, strict=False):
        row.copy_(EDGES[edge](row))
    dtype = DTYPES[weight_dtype or x_dtype]
    if "weight" in trial.given:
        named["weight"] = (1 - trial.offset + 0.2 * normal(trial.cols)).to(dtype)
    if "bias" in trial.given:
        named["bias"] = normal(trial.cols).to(dtype)
    return named


def laid_out(values: Tensor, layout: str) -> Tensor:
    """The values with rows in another layout; "expanded": all rows are the first one, with a stride of 0."""
    rows, cols = values.shape
    if layout == "expanded":
        return values[:1].contiguous().expand(rows, cols)
    first, stride = {
        "dense": (0, cols),
        "apart": (0, cols + 16),
        "odd": (0, cols + 3),
        "unaligned": (1, cols + 8),
        "aligned": (0, -(-cols // 16) * 16),
        "column": (0, 1),  # of a matrix that is transposed: for a single row
    }[layout]
    memory = torch.full((first + rows * max(stride, cols) + 1,), 1e4, device=values.device).to(values.dtype)
    return memory.as_strided((rows, cols), (stride, 1), first).copy_(values)


def ours(trial: Trial, given: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """What our kernels give, by the names of `Forward` and `Backward`."""
    weight, bias, residual = (given.get(name) for name in ("weight", "bias", "residual"))
    there = forward(
        given["x"], weight, bias, residual,
        eps=EPS, center=trial.center, offset=trial.offset, statistics=True, plan=trial.forward,
    )  # fmt: skip
    back = backward(
        given["dy"],
        given["x"] if there.residual_out is None else there.residual_out,
        weight,
        there.rstd,
        there.mean,
        given.get("dresidual_out"),
        bias_dtype=None if bias is None else bias.dtype,
        offset=trial.offset,
        plan=trial.backward,
    )
    outputs = {**there._asdict(), **back._asdict()}
    return {name: output for name, output in outputs.items() if output is not None}


def lone_rows_differ(trial: Trial, device: str = "cpu") -> list[str]:
    """Outputs of a single row that have other bits where its stride, which means nothing, is not its width."""
    dense, differ = ours(trial, inputs(trial, device)), []
    for layout in ("column", "odd"):
        outputs = ours(trial, inputs(replace(trial, layout=layout), device))
        differ += [f"{name}, {layout}" for name in dense if not torch.equal(outputs[name], dense[name])]
    return differ


def wrong_by(
    trial: Trial, given: Mapping[str, Tensor], outputs: Mapping[str, Tensor], *, cuts_off: bool = False
) -> dict[str, float]:
    """Of each output the largest error over what is allowed; infinite where the two differ in what is not finite.

    `cuts_off`: bf16 is not rounded but cut off, as Triton's interpreter does.
    """
    found = {}
    normalised = given["x"]
    if "residual" in given:  # the norm is taken of the sum as it is handed on, once that is seen to be right
        total = given["x"].double() + given["residual"].double()
        normalised = outputs["residual_out"]
        allowed = total.abs().nan_to_num(0, 0, 0) * (_unit(normalised, cuts_off) + 2.0**-24)
        found["residual_out"] = excess(normalised, total, allowed)
    exact, honest = (_defined(trial, given, normalised, dtype) for dtype in (torch.float64, torch.float32))
    terms = _terms(trial, given, normalised.double(), exact["rstd"])
    over_rows = max(NOISE, 2.0**-23 * trial.rows**0.5)  # twice 2^-24 * sqrt(rows), in the worst of many columns
    for name, truth in exact.items():
        output = outputs[name]
        noise = over_rows if name in OVER_ROWS else NOISE
        allowed = torch.maximum(
            ALLOWANCE * _largest(name, honest[name].to(output.dtype).double() - truth),
            1.01 * _unit(output, cuts_off) * _largest(name, truth) + noise * terms[name],
        )
        smallest = torch.finfo(output.dtype).smallest_normal * torch.finfo(output.dtype).eps
        found[name] = excess(_table(name, output), _table(name, truth), allowed + smallest)
    return found


def _defined(trial: Trial, given: Mapping[str, Tensor], normalised: Tensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """All outputs in `dtype`."""
    x = normalised.detach().to(dtype).requires_grad_()
    weight, bias = (
        given[name].detach().to(dtype).requires_grad_() if name in given else None for name in ("weight", "bias")
    )
    scale = None if weight is None else weight + trial.offset
    if trial.center:
        y = functional.layer_norm(x, x.shape[1:], scale, bias, EPS)
    else:
        y = x * torch.rsqrt(x.square().mean(1, keepdim=True) + EPS)
        y = y if scale is None else y * scale
        if dtype is torch.float64:
            finite = x.isfinite().all(1)
            torch.testing.assert_close(y[finite], functional.rms_norm(x[finite], x.shape[1:], scale, EPS))
        y = y if bias is None else y + bias
    outputs, gradients = [y], [given["dy"].to(dtype)]
    if "residual" in given:
        outputs.append(x.clone())
        gradients.append(given["dresidual_out"].to(dtype))
    asked = {name: of for name, of in {"dx": x, "dweight": weight, "dbias": bias}.items() if of is not None}
    found = dict(zip(asked, torch.autograd.grad(outputs, [*asked.values()], gradients), strict=True))
    found["y"], x = y.detach(), x.detach()
    if trial.center:
        found["mean"] = x.mean(1)
        x = x - found["mean"][:, None]
    found["rstd"] = torch.rsqrt(x.square().mean(1) + EPS)
    return found


def _terms(trial: Trial, given: Mapping[str, Tensor], x: Tensor, rstd: Tensor) -> dict[str, Tensor]:
    """How large is what an output is the sum of: [rows, 1], or of sums over rows [1, 1]."""
    dy, rstd = given["dy"].double(), rstd[:, None].nan_to_num(0, 0, 0)
    x = _largest("x", x)
    n = x * rstd  # before the mean is taken away: what is left may be much smaller
    weight = _largest("weight", given["weight"].double() + trial.offset) if "weight" in given else 1.0
    others = _largest("dx", given["dresidual_out"].double()) if "residual" in given else 0.0
    return {
        "y": n * weight + (_largest("bias", given["bias"].double()) if "bias" in given else 0.0),
        "mean": x,
        "rstd": rstd * (n.clamp(min=1) if trial.center else 1.0),
        "dx": n.clamp(min=1) * _largest("dy", dy) * weight * rstd + others,
        "dweight": (dy * n).nan_to_num(0, 0, 0).square().sum(0).amax().sqrt(),
        "dbias": dy.nan_to_num(0, 0, 0).square().sum(0).amax().sqrt(),
    }


def excess(output: Tensor, truth: Tensor, allowed: Tensor) -> float:
    """Where both are NaN or the same infinity, that is no error."""
    output, finite = output.double(), truth.isfinite()
    assert allowed.expand_as(truth)[finite].isfinite().all()
    same = (output == truth) | (output.isnan() & truth.isnan())
    if not torch.where(finite, output.isfinite(), same).all():
        return float("inf")
    error = torch.where(finite, output - truth, 0.0).abs()
    return float((error / allowed.clamp(min=1e-300)).amax()) if error.numel() else 0.0


def _largest(name: str, values: Tensor) -> Tensor:
    """Of each row, or of all columns; what is not finite is left out."""
    return _table(name, values).abs().nan_to_num(0, 0, 0).amax(1, keepdim=True)


def _table(name: str, values: Tensor) -> Tensor:
    """A value of each row is a row of one, and what there is one of is a single row."""
    if values.ndim == 2:
        return values
    return values[:, None] if name in ("mean", "rstd") else values[None]


def _unit(output: Tensor, cuts_off: bool) -> float:
    """The largest error of one rounding, relative to the value."""
    return torch.finfo(output.dtype).eps / (1 if cuts_off and output.dtype is torch.bfloat16 else 2)


def _with(row: Tensor, value: float) -> Tensor:
    row = row.clone()
    row[row.numel() // 2] = value
    return row


def _short(plan: ForwardPlan) -> str:
    """What a plan says that is not the default."""
    said = {
        field.name: getattr(plan, field.name) for field in fields(plan) if getattr(plan, field.name) != field.default
    }
    return f"{type(plan).__name__}({', '.join(f'{name}={value}' for name, value in said.items())})"
