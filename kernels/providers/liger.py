"""Liger-Kernel 0.5 to 0.8: its operators, below its autograd functions; their signatures grew over the releases."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from ..words import Case
from .base import Bind, Broken, Unsupported, plainly

# Everything in fp32 and one rounding at the end, as the other providers compute it.  Liger's default mode ("llama")
# rounds before the multiplication with the weight as well, and is twice as wrong.
CASTING = "gemma"
CASTING_NUMBER = 1
WIDEST = 65536  # columns; beyond it the kernels raise


class Liger:
    name = "liger"
    compiled = False
    pinned: tuple[str, ...] = ("liger-kernel",)

    def warm(self) -> None:
        if torch.cuda.is_available():
            try:
                _operators("rmsnorm")
            except (Unsupported, Broken):
                return  # said again where it matters

    def ready(self, case: Case, device: torch.device) -> Bind:
        if device.type != "cuda":
            raise Unsupported("Liger needs a GPU")
        if case.cols > WIDEST:
            raise Unsupported(f"Liger takes at most {WIDEST} columns")
        makers: dict[str, Callable[[Any], Callable[..., Any]]] = {
            "rmsnorm.fwd": rms_forward,
            "rmsnorm.bwd": rms_backward,
            "layernorm.fwd": layer_forward,
            "layernorm.bwd": layer_backward,
        }
        if case.key not in makers:
            raise Unsupported(f"Liger has no {case.key}")
        return plainly(makers[case.key](_operators(case.op)))

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:  # noqa: ARG002
        raise Unsupported(f"{self.name} has no {case.key}")


def _operators(op: str) -> Any:
    name = {"rmsnorm": "liger_kernel.ops.rms_norm", "layernorm": "liger_kernel.ops.layer_norm"}[op]
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as missing:
        raise Unsupported(f"Liger-Kernel is not installed in this environment ({missing})") from None
    except Exception as trouble:
        raise Broken(f"cannot import {name}: {type(trouble).__name__}: {trouble}") from trouble


def rms_forward(operators: Any) -> Callable[..., Any]:
    function = operators.rms_norm_forward
    more = _known(function, offset=0.0, casting_mode=CASTING, row_mode=None)  # row_mode came with 0.6

    def forward(x: Tensor, weight: Tensor, eps: float) -> Tensor:
        y: Tensor = function(x, weight, eps, **more)[0]
        return y

    return forward


def rms_backward(operators: Any) -> Callable[..., Any]:
    function, settings = operators.rms_norm_backward, operators.calculate_settings
    # in place would overwrite dy
    more = _known(function, offset=0.0, casting_mode=CASTING_NUMBER, in_place=False, row_mode=None)

    def backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
        block, warps = settings(x.shape[-1])
        dx, dweight, *_ = function(dy, x, weight, rstd, BLOCK_SIZE=block, num_warps=warps, **more)
        return dx, dweight

    return backward


def layer_forward(operators: Any) -> Callable[..., Any]:
    function = operators.layer_norm_forward

    def forward(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
        y: Tensor = function(x, weight, bias, eps)[0]
        return y

    return forward


def layer_backward(operators: Any) -> Callable[..., Any]:
    function = operators.layer_norm_backward

    def backward(
        dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, _eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        dx, dweight, dbias = function(dy, x, weight, weight, mean, rstd)  # of the bias only the dtype is read
        return dx, dweight, dbias

    return backward


def _known(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Those of the arguments that this release has."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}
