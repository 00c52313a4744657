"""The Triton kernels of kernels/norms."""

import importlib
from collections.abc import Callable
from functools import partial
from operator import itemgetter
from typing import Any

import torch

from ..cases import DROPOUT_P, OPS, Case, Direction, Op, Region
from ..checks.inputs import DTYPES, Inputs
from ..norms import launching
from ..norms.implementations import refusal
from .base import Bind, Call, Provider, by_position

FP8_CAPABILITY = (8, 9)  # the lowest with a conversion to float8_e4m3fn
TAKEN = tuple(short for short, dtype in DTYPES.items() if dtype in launching.DTYPES)


class Ours(Provider):
    name = "triton"

    def warm(self) -> None:
        if torch.cuda.is_available():
            _norm("forward")
            _norm("backward")

    def supports(self, case: Case, device: torch.device) -> str | None:
        if device.type != "cuda":
            return "Triton kernels need a GPU"
        if OPS[case.op].norm not in ("rmsnorm", "layernorm"):
            return f"kernelwatch has no Triton kernel for {case.op}"
        region = OPS[case.op].region
        if not {case.dtype, case.weight_dtype} <= {*TAKEN}:
            return f"these kernels take {', '.join(TAKEN)}"
        if region is Region.FP8 and torch.cuda.get_device_capability(device) < FP8_CAPABILITY:
            return f"fp8 codes need compute capability {'.'.join(map(str, FP8_CAPABILITY))}"
        return refusal(device)

    def ready(self, case: Case, device: torch.device) -> Bind:
        self.refuse(case, device)
        return forward(case) if case.direction is Direction.FWD else backward(case)

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        self.refuse(case, device)
        return differentiable(case)


def forward(case: Case) -> Bind:
    op = OPS[case.op]
    if op.region:
        return of_region(case)
    function = _norm("forward")
    outputs = _outputs(op)

    def bind(inputs: Inputs) -> Call:
        call = partial(function, **inputs.tensors, eps=inputs.eps, center=op.norm == "layernorm")
        return lambda: outputs(call())

    return bind


def of_region(case: Case) -> Bind:
    op = OPS[case.op]
    regions: Any = importlib.import_module("..norms.regions", __package__)
    linear: Any = importlib.import_module("..norms.linear", __package__)
    functions = {
        Region.FP8: partial(regions.quantised, dtype=torch.float8_e4m3fn),
        Region.INT8: partial(regions.quantised, dtype=torch.int8),
        Region.SILU_GATE: partial(regions.gated, activation="silu"),
        Region.GELU_GATE: partial(regions.gated, activation="gelu"),
        Region.LINEAR: linear.norm_linear,
        Region.DROPOUT: partial(regions.dropped, p=DROPOUT_P),
    }
    function = functions[op.region]

    def bind(inputs: Inputs) -> Call:
        call = partial(function, **inputs.tensors, eps=inputs.eps, center=op.norm == "layernorm")
        return (lambda: tuple(call()[: len(case.outputs)])) if len(case.outputs) > 1 else call

    return bind


def backward(case: Case) -> Bind:
    op = OPS[case.op]
    function = _norm("backward")
    gradients = _gradients(op)
    bias_dtype = DTYPES[case.weight_dtype] if op.bias else None

    def bind(inputs: Inputs) -> Call:
        call = partial(function, **{"weight": None, **inputs.tensors}, bias_dtype=bias_dtype)
        return lambda: gradients(call())

    return bind


def differentiable(case: Case) -> Callable[..., Any]:
    """The function that a model calls."""
    modules = importlib.import_module("..norms.modules", __package__)
    return by_position(case, modules.layer_norm if OPS[case.op].norm == "layernorm" else modules.rms_norm)


def _outputs(op: Op) -> Callable[[Any], Any]:
    """Select the outputs of the op from a `Forward`."""
    return itemgetter(0, 1) if op.residual else itemgetter(0)


def _gradients(op: Op) -> Callable[[Any], Any]:
    """Select the gradients of the op from a `Backward`; a single one without a tuple."""
    return itemgetter(*(number for number, present in enumerate((True, op.weight, op.bias)) if present))


def _norm(direction: str) -> Callable[..., Any]:
    """`forward` or `backward` of kernels/norms, which needs Triton."""
    function: Callable[..., Any] = getattr(importlib.import_module(f"..norms.{direction}", __package__), direction)
    return function
