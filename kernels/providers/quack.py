"""Quack, the state of the art on Hopper and Blackwell (signatures of 0.6.5)."""

import importlib
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..cases import DTYPE_BYTES, OPS, Case, Direction, Op
from .base import Bind, Broken, Provider, Unsupported, by_name, by_position, on_matrices, returned
from .pair import Pair, differentiable

DTYPES = ("bf16", "fp16", "fp32")
MAX_FP32_BACKWARD_COLS = 131072
COPY_BYTES = 16


class Quack(Provider):
    name = "quack"
    pinned = ("quack-kernels", "nvidia-cutlass-dsl")

    def __init__(self) -> None:
        self._module: Any = None
        self._error: Exception | None = None

    def warm(self) -> None:
        if not torch.cuda.is_available() or self._module is not None:
            return
        try:
            # not `quack.rmsnorm`, which is the function
            self._module = importlib.import_module("quack.rmsnorm")
        except ModuleNotFoundError as missing:
            self._error = Unsupported(f"Quack is not installed in this environment ({missing})")
        except Exception as error:
            self._error = Broken(f"cannot import quack: {type(error).__name__}: {error}")

    def supports(self, case: Case, device: torch.device) -> str | None:
        if device.type != "cuda" or torch.cuda.get_device_capability(device)[0] < 9:
            return "Quack needs a Hopper or Blackwell GPU"
        return unsupported(case, OPS[case.op])

    def ready(self, case: Case, device: torch.device) -> Bind:
        module = self._quack(case, device)
        op = OPS[case.op]
        function = forward(module, op) if case.direction is Direction.FWD else backward(module, op)
        return by_name(on_matrices(case, function))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        module = self._quack(case, device)
        op = OPS[case.op]
        if op.norm == "layernorm":  # Quack has no autograd function for it
            pair = Pair(op, _layer_norm_with_statistics(module), backward(module, op))
            return on_matrices(case, differentiable(pair))
        return by_position(case, with_autograd(module))

    def _quack(self, case: Case, device: torch.device) -> Any:
        self.refuse(case, device)
        self.warm()
        if self._error is not None:
            raise self._error
        return self._module


def unsupported(case: Case, op: Op) -> str | None:
    """Why Quack supports this case on no GPU; None if it does on some."""
    backward = case.direction is not Direction.FWD
    if op.norm not in ("rmsnorm", "layernorm"):
        return f"this provider does not use Quack for {op.norm}"
    if op.region:
        return f"Quack has no norm with {op.region.text}"
    if not {case.dtype, case.weight_dtype} <= {*DTYPES}:
        return f"Quack takes {', '.join(DTYPES)}"
    if op.norm == "layernorm" and (op.residual or not op.weight):
        return "Quack's LayerNorm has a weight and no residual"
    if op.norm == "layernorm" and case.weight_dtype != "fp32":
        return "Quack's LayerNorm takes fp32 weights only"
    size = DTYPE_BYTES[case.dtype]
    if not case.heads and case.stride * size % (copy_bytes := math.gcd(COPY_BYTES, case.cols * size)):
        return f"Quack needs a row stride that is a multiple of {copy_bytes} bytes for rows of {case.cols} columns"
    if backward and op.bias and not op.weight:
        return "Quack's backward computes the gradient of a bias only together with that of a weight"
    if backward and case.dtype == "fp32" and case.cols > MAX_FP32_BACKWARD_COLS:
        return f"Quack's backward takes at most {MAX_FP32_BACKWARD_COLS} columns in fp32"
    return None


def forward(quack: Any, op: Op) -> Callable[..., Any]:
    def rms_norm(*, residual: Tensor | None = None, **given: Any) -> Any:
        y, added, _ = quack.rmsnorm_fwd(**given, residual=residual)
        return y if residual is None else (y, added)

    return rms_norm if op.norm == "rmsnorm" else quack.layernorm_fwd


def backward(quack: Any, op: Op) -> Callable[..., Any]:
    def rms_norm(
        *,
        dy: Tensor,
        x: Tensor,
        rstd: Tensor,
        weight: Tensor | None = None,
        dresidual_out: Tensor | None = None,
        **_: Any,
    ) -> Any:
        dx, dweight, dbias, _same = quack.rmsnorm_bwd(
            x, weight, dy, rstd, dresidual_out, has_bias=op.bias, has_residual=op.residual
        )
        return returned(dx, dweight, dbias)

    def layer_norm(*, dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, **_: Any) -> Any:
        return returned(*quack.layernorm_bwd(x, weight, dy, rstd, mean, has_bias=op.bias))

    return rms_norm if op.norm == "rmsnorm" else layer_norm


def with_autograd(quack: Any) -> Callable[..., Any]:
    def rms_norm(*, residual: Tensor | None = None, **given: Any) -> Any:
        return quack.rmsnorm(**given, residual=residual, prenorm=residual is not None)

    return rms_norm


def _layer_norm_with_statistics(quack: Any) -> Callable[..., Any]:
    def layer_norm(**given: Any) -> Any:
        y, rstd, mean = quack.layernorm_fwd(**given, return_rstd=True, return_mean=True)
        return (y,), (mean, rstd)

    return layer_norm
