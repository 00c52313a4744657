"""Liger-Kernel's norms in the shape of the adapter protocol, for releases 0.5 to 0.8 and the commits between them."""

import importlib
import inspect
from collections.abc import Callable
from typing import Any

from torch import Tensor

liger = importlib.import_module("liger_kernel.ops.rms_norm")  # the package also has a function of that name in reach
layers = importlib.import_module("liger_kernel.ops.layer_norm")

# Liger's "gemma" mode computes in fp32 and rounds once, as every other provider here does.  Its default, "llama", also
# rounds before the multiplication with the weight: half the accuracy, and not the same work.
CASTING = "gemma"
CASTING_NUMBER = 1  # what the forward pass returns for "gemma", and the backward pass takes


def _known(function: Callable[..., Any], **arguments: Any) -> dict[str, Any]:
    """Those of the arguments that this release has: `row_mode` came with 0.6."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


_FORWARD = _known(liger.rms_norm_forward, offset=0.0, casting_mode=CASTING, row_mode=None)
_BACKWARD = _known(
    liger.rms_norm_backward,
    offset=0.0,
    casting_mode=CASTING_NUMBER,
    in_place=False,  # in place would write dx over dy
    row_mode=None,
)


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y: Tensor = liger.rms_norm_forward(x, weight, eps, **_FORWARD)[0]
    return y


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
    block, warps = liger.calculate_settings(x.shape[-1])
    dx, dweight = liger.rms_norm_backward(dy, x, weight, rstd, BLOCK_SIZE=block, num_warps=warps, **_BACKWARD)
    return dx, dweight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    y: Tensor = layers.layer_norm_forward(x, weight, bias, eps)[0]
    return y


def layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    # of the bias only the dtype is used
    dx, dweight, dbias = layers.layer_norm_backward(dy, x, weight, weight, mean, rstd)
    return dx, dweight, dbias
