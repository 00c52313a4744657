"""FlagGems' norms in the shape of the adapter protocol, for its commits of September 2024 to August 2026.

RMSNorm has a backward pass since April 2025.  Before May 2025 LayerNorm was a class for autograd; its backward pass is
called with what it would have saved.  FlagGems launches kernels through a cache of its own, LibEntry, which passes too
few arguments to Triton 3.6 in the commits before February 2026; here the kernels are launched by Triton itself.
"""

import importlib
from functools import cache
from types import ModuleType, SimpleNamespace

from torch import Tensor


def launched_by_triton(module: ModuleType) -> None:
    """Replace each LibEntry of a module by the kernel that it wraps."""
    for name, value in list(vars(module).items()):
        if type(value).__name__ == "LibEntry":
            setattr(module, name, value.fn)


rms = importlib.import_module("flag_gems.ops.rms_norm")  # the package has functions of these names, too
layer = importlib.import_module("flag_gems.ops.layernorm")

launched_by_triton(rms)
launched_by_triton(layer)

_LAYER = getattr(layer, "LayerNorm", None)
_SAVES_BIAS = _LAYER is not None and "bias" in _LAYER.backward.__code__.co_varnames


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    y: Tensor = rms.rms_norm(x, [x.shape[1]], weight, eps)
    return y


def rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    if not hasattr(rms, "rms_norm_grad_dx_kernel"):
        raise NotImplementedError("this revision has no backward pass of RMSNorm")
    saved = SimpleNamespace(saved_tensors=(x, rstd, weight), normalized_shape=[x.shape[1]], eps=eps)
    dx, _shape, dweight, _eps = rms.RmsNorm.backward(saved, dy)
    return dx, dweight


def layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    y: Tensor = layer.layer_norm(x, [x.shape[1]], weight, bias, eps)[0]
    return y


def layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, _eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    # of the bias only shape and dtype are used
    if _LAYER is None:
        dx, dweight, dbias = layer.layer_norm_backward(
            dy, x, [x.shape[1]], mean, rstd, weight, weight, [True, True, True]
        )
        return dx, dweight, dbias
    tensors = (x, weight, weight, mean, rstd) if _SAVES_BIAS else (x, weight, mean, rstd)
    dx, _shape, dweight, dbias, *_ = _LAYER.backward(
        SimpleNamespace(saved_tensors=tensors, M=x.shape[0], N=x.shape[1]), dy, None, None
    )
    return dx, dweight, dbias


def fused_add_rms_norm(x: Tensor, residual: Tensor, weight: Tensor, eps: float) -> tuple[Tensor, Tensor]:
    y, residual_out = fused().fused_add_rms_norm(x, residual, [x.shape[1]], weight, eps)
    return y, residual_out


@cache
def fused() -> ModuleType:
    """Load the module of the fused norm, which not every revision has."""
    try:
        module = importlib.import_module("flag_gems.fused.fused_add_rms_norm")
    except ImportError as error:
        raise NotImplementedError("this revision has no fused_add_rms_norm") from error
    launched_by_triton(module)
    return module
