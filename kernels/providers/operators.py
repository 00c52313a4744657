"""The ops by torch's own operators, with tensors by name."""

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..cases import OPS, Case, Direction, Op, Region
from ..checks import references
from .base import Unsupported, returned

Function = Callable[..., Any]


def forward_of(op: Op) -> Function:
    """f(x, [residual], [weight], [bias], [of the region], eps) by name: y, or (y, residual_out); differentiable.

    Of a quantised op q and scale instead of y.
    """
    _known(op)
    norm = _rms_norm if op.norm == "rmsnorm" else _layer_norm
    return partial(_with_region, op, norm) if op.region else norm


def backward_of(op: Op) -> Function:
    """f(dy, [dresidual_out], x, [weight], [mean], rstd, eps) by name: dx, or (dx, [dweight], [dbias])."""
    _known(op)
    return partial(_rms_norm_backward if op.norm == "rmsnorm" else _layer_norm_backward, has_bias=op.bias)


def _known(op: Op) -> None:
    """Raises Unsupported for a norm that torch does not have."""
    if op.norm not in ("rmsnorm", "layernorm"):
        raise Unsupported(f"there are no operators here for {op.norm}")


def rounds_twice(case: Case, op: Op) -> bool:
    """Would the operators round an intermediate result?  Below fp32 that exceeds the allowed error."""
    if case.dtype not in ("bf16", "fp16"):
        return False
    if op.region in (Region.SILU_GATE, Region.GELU_GATE, Region.DROPOUT):
        return True
    added_after = op.norm == "rmsnorm" and op.bias and case.direction is not Direction.BWD
    return added_after or (op.residual and case.direction is not Direction.FWD)


def too_coarse(case: Case, device: torch.device) -> bool:
    """Is autograd through the operators less precise than their dtype?

    On a CPU LayerNorm keeps its statistics in bf16 and sums weight gradients in bf16: an error of 6e-3 (2.13).
    """
    of_layernorm = OPS[case.op].norm == "layernorm" and case.direction is Direction.FWDBWD
    return of_layernorm and device.type == "cpu" and case.dtype in ("bf16", "fp16")


def in_fp32(function: Function) -> Function:
    """The function on fp32 copies of narrower tensors, rounded once; gradients of weights have their dtype.

    The matrix of a linear layer is not copied: its product takes rounded rows.  Codes and scales stay as they are.
    """

    def upcast(*, eps: float, has_bias: bool | None = None, **tensors: Tensor) -> Any:
        x = tensors["x"]
        weight = tensors.get("weight")
        wide = {
            name: tensor if tensor.dtype == torch.float64 or name == "matrix" else tensor.float()
            for name, tensor in tensors.items()
        }
        more = {} if has_bias is None else {"has_bias": has_bias}
        outputs = function(**wide, eps=eps, **more)
        outputs = outputs if isinstance(outputs, tuple) else (outputs,)
        # without a weight the dtype of the bias is unknown: its gradient is not rounded
        of_vectors = None if weight is None or has_bias is None else weight.dtype
        dtypes = (
            (x.dtype if output.dtype.itemsize > 1 else output.dtype) if output.ndim > 1 else of_vectors or output.dtype
            for output in outputs
        )
        return returned(*(output.to(dtype) for output, dtype in zip(outputs, dtypes, strict=True)))

    return upcast


def _rms_norm(
    *, x: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None
) -> Any:
    added = x if residual is None else x + residual
    y = F.rms_norm(added, (x.shape[-1],), weight, eps)
    y = y if bias is None else (y + bias).to(x.dtype)  # with an fp32 bias the sum is fp32
    return returned(y, None if residual is None else added)


def _layer_norm(
    *, x: Tensor, eps: float, weight: Tensor | None = None, bias: Tensor | None = None, residual: Tensor | None = None
) -> Any:
    added = x if residual is None else x + residual
    y = F.layer_norm(added, (x.shape[-1],), weight, bias, eps)
    return returned(y, None if residual is None else added)


def _with_region(
    op: Op,
    norm: Function,
    *,
    x: Tensor,
    gate: Tensor | None = None,
    mask: Tensor | None = None,
    matrix: Tensor | None = None,
    **given: Any,
) -> Any:
    kept = x if mask is None else x * mask * references.KEPT
    outputs = norm(x=kept, **given)
    y, *added = outputs if isinstance(outputs, tuple) else (outputs,)
    if op.quantised:
        return (*references.quantised(op, y.float() if y.dtype.itemsize < 4 else y), *added)
    if gate is not None:
        y = y * (F.silu(gate) if op.region is Region.SILU_GATE else F.gelu(gate))
    if matrix is not None:
        y = F.linear(y.to(matrix.dtype), matrix)
    return returned(y, *added)


def _rms_norm_backward(
    *,
    dy: Tensor,
    x: Tensor,
    rstd: Tensor,
    eps: float,  # noqa: ARG001
    weight: Tensor | None = None,
    dresidual_out: Tensor | None = None,
    has_bias: bool = False,
) -> Any:
    if weight is not None and weight.dtype != x.dtype:
        raise NotImplementedError("the fused operator takes one dtype")
    wanted, rstd = [True, weight is not None], references.of_rows(rstd, x)
    dx, dweight = torch.ops.aten._fused_rms_norm_backward(dy, x, [x.shape[-1]], rstd, weight, wanted)
    return returned(_with(dx, dresidual_out), dweight if wanted[1] else None, _summed(dy) if has_bias else None)


def _layer_norm_backward(
    *,
    dy: Tensor,
    x: Tensor,
    mean: Tensor,
    rstd: Tensor,
    eps: float,  # noqa: ARG001
    weight: Tensor | None = None,
    dresidual_out: Tensor | None = None,
    has_bias: bool = False,
) -> Any:
    if x.device.type == "cpu" and weight is not None and weight.dtype != x.dtype:
        # 2.13 sums the gradients of fp32 weights in bf16: an error of 8e-3 after 65 rows
        raise NotImplementedError("inexact for mixed dtypes on a CPU")
    # the operator needs any bias to compute its gradient, and ignores its values
    bias = weight if has_bias else None
    wanted = [True, weight is not None, bias is not None]
    statistics = (references.of_rows(mean, x), references.of_rows(rstd, x))
    backward = torch.ops.aten.native_layer_norm_backward
    dx, dweight, dbias = backward(dy, x, [x.shape[-1]], *statistics, weight, bias, wanted)
    if has_bias and bias is None:
        dbias = _summed(dy)
    return returned(_with(dx, dresidual_out), dweight if wanted[1] else None, dbias if has_bias else None)


def _summed(dy: Tensor) -> Tensor:
    return references.over_rows(dy, dtype=torch.promote_types(dy.dtype, torch.float32))


def _with(dx: Tensor, dresidual_out: Tensor | None) -> Tensor:
    return dx if dresidual_out is None else dx + dresidual_out
