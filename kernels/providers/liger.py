"""Liger-Kernel 0.5 to 0.8: the operators below its autograd functions, whose signatures differ by release."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..cases import OPS, Case, Direction, Op
from .base import Bind, Broken, Provider, Unsupported, by_name, by_position, on_matrices, returned

# Computes in fp32 and rounds once at the end, as the other providers.  Liger's default mode ("llama") also rounds
# before the multiplication with the weight, which doubles the error.
CASTING = "gemma"
CASTING_NUMBER = 1
STAGES = 2  # of its fused kernels in the forward pass
MAX_COLS = 65536


class Liger(Provider):
    name = "liger"
    pinned = ("liger-kernel",)

    def warm(self) -> None:
        if torch.cuda.is_available():
            try:
                _operators(OPS["rmsnorm"])
            except (Unsupported, Broken):
                return  # raised again when a case needs it

    def supports(self, case: Case, device: torch.device) -> str | None:
        op = OPS[case.op]
        if op.norm not in ("rmsnorm", "layernorm"):
            return f"this provider does not use Liger for {op.norm}"
        if op.region:
            return f"Liger has no norm with {op.region.text}"
        if device.type != "cuda":
            return "Liger needs a GPU"
        if case.cols > MAX_COLS:
            return f"Liger takes at most {MAX_COLS} columns"
        if "fp64" in (case.dtype, case.weight_dtype):
            return "Liger computes in fp32"
        if op.norm == "layernorm" and (op.residual or not (op.weight and op.bias)):
            return "Liger's LayerNorm has a weight, a bias and no residual"
        if op.norm == "rmsnorm" and op.bias:
            return "Liger's RMSNorm has no bias"
        return "Liger's fused residual addition has a weight" if op.residual and not op.weight else None

    def ready(self, case: Case, device: torch.device) -> Bind:
        operators = self._liger(case, device)
        op = OPS[case.op]
        function = forward(operators, op) if case.direction is Direction.FWD else backward(operators, op)
        return by_name(on_matrices(case, function))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:
        return by_position(case, with_autograd(self._liger(case, device), OPS[case.op]))

    def _liger(self, case: Case, device: torch.device) -> Any:
        self.refuse(case, device)
        operators = _operators(OPS[case.op])
        if not OPS[case.op].weight and "elementwise_affine" not in operators._rms_norm_forward_kernel.arg_names:
            raise Unsupported("this release of Liger needs a weight")
        return operators


def _operators(op: Op) -> Any:
    """The module of an op.  Raises Unsupported if there is none, Broken if its import fails."""
    module = "layer_norm" if op.norm == "layernorm" else "fused_add_rms_norm" if op.residual else "rms_norm"
    try:
        return importlib.import_module(f"liger_kernel.ops.{module}")
    except ModuleNotFoundError as missing:
        raise Unsupported(f"a Liger-Kernel with {op.name} is not installed in this environment ({missing})") from None
    except Exception as error:
        raise Broken(f"cannot import liger_kernel.ops.{module}: {type(error).__name__}: {error}") from error


def forward(operators: Any, op: Op) -> Callable[..., Any]:
    if op.norm == "layernorm":
        return lambda x, weight, bias, eps: operators.layer_norm_forward(x, weight, bias, eps)[0]
    if op.residual:
        fused = operators.fused_add_rms_norm_forward
        return lambda x, residual, weight, eps: fused(x, residual, weight, eps, 0.0, CASTING)[:2]
    function = operators.rms_norm_forward
    more = _known(function, offset=0.0, casting_mode=CASTING, row_mode=None)  # row_mode came with 0.6
    return lambda x, eps, weight=None: function(x, weight, eps, **more)[0]


def backward(operators: Any, op: Op) -> Callable[..., Any]:
    def layer_norm(*, dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, **_: Any) -> Any:
        return operators.layer_norm_backward(dy, x, weight, weight, mean, rstd)  # only the dtype of the bias is used

    def fused(*, dy: Tensor, dresidual_out: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, **_: Any) -> Any:
        block, warps = operators.calculate_settings(x.shape[-1])
        dx, _dresidual, dweight = operators.fused_add_rms_norm_backward(
            dy, dresidual_out, x, weight, rstd, 0.0, CASTING_NUMBER, block, warps, STAGES, in_place=False
        )
        return dx, dweight

    def rms_norm(*, dy: Tensor, x: Tensor, rstd: Tensor, weight: Tensor | None = None, **_: Any) -> Any:
        function = operators.rms_norm_backward
        block, warps = operators.calculate_settings(x.shape[-1])
        # in place would overwrite dy
        more = _known(function, offset=0.0, casting_mode=CASTING_NUMBER, in_place=False, row_mode=None)
        dx, dweight, *_more = function(dy, x, weight, rstd, BLOCK_SIZE=block, num_warps=warps, **more)
        return returned(dx, dweight)

    return layer_norm if op.norm == "layernorm" else fused if op.residual else rms_norm


def with_autograd(operators: Any, op: Op) -> Callable[..., Any]:
    if op.norm == "layernorm":
        return lambda x, weight, bias, eps: operators.LigerLayerNormFunction.apply(x, weight, bias, eps)
    if op.residual:
        fused = operators.LigerFusedAddRMSNormFunction
        # offset, casting mode, not in place
        return lambda x, residual, weight, eps: fused.apply(x, residual, weight, eps, 0.0, CASTING, False)
    function = operators.LigerRMSNormFunction
    return lambda x, eps, weight=None: function.apply(x, weight, eps, 0.0, CASTING, False)


def _known(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """The arguments that this release accepts."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}
