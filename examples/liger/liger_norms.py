"""Liger-Kernel's norms in the shape of the adapter protocol, for releases 0.5 to 0.8 and the commits between them."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

liger = importlib.import_module("liger_kernel.ops.rms_norm")  # the package also has a function of that name in reach
layers = importlib.import_module("liger_kernel.ops.layer_norm")

# Liger's "gemma" mode computes in fp32 and rounds once, as built-in providers do.  Its default, "llama", also rounds
# before the multiplication with the weight, and its backward pass writes dx over dy: the recipe says so for each.
# The numbers are what the forward pass returns for a mode, and the backward pass takes.
CASTING = {"gemma": 1, "llama": 0}


def _known(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Those of the arguments that this release has: `row_mode` came with 0.6."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


_FORWARD = {mode: _known(liger.rms_norm_forward, offset=0.0, casting_mode=mode, row_mode=None) for mode in CASTING}
_BACKWARD = {
    mode: _known(liger.rms_norm_backward, offset=0.0, casting_mode=number, in_place=mode == "llama", row_mode=None)
    for mode, number in CASTING.items()
}


def rms_norm(x: Tensor, weight: Tensor, eps: float, mode: str = "gemma") -> Tensor:
    y: Tensor = liger.rms_norm_forward(x, weight, eps, **_FORWARD[mode])[0]
    return y


def rms_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, _eps: float, mode: str = "gemma"
) -> tuple[Tensor, Tensor]:
    block, warps = liger.calculate_settings(x.shape[-1])
    dx, dweight = liger.rms_norm_backward(dy, x, weight, rstd, BLOCK_SIZE=block, num_warps=warps, **_BACKWARD[mode])
    return dx, dweight


def rms_norm_default(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return rms_norm(x, weight, eps, "llama")


def rms_norm_default_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    return rms_norm_backward(dy, x, weight, rstd, eps, "llama")


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    y: Tensor = layers.layer_norm_forward(x, weight, bias, eps)[0]
    return y


def layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    # of the bias only the dtype is used
    dx, dweight, dbias = layers.layer_norm_backward(dy, x, weight, weight, mean, rstd)
    return dx, dweight, dbias
