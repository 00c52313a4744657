"""The norms as torch ops: differentiable, traced by torch.compile, and available on any device.

    kernelwatch::norm           y, and residual_out if there is a residual; differentiable through the two below
    kernelwatch::norm_forward   the same and, if `statistics` is set, mean and rstd; `forward` on a GPU
    kernelwatch::norm_backward  dx, and the gradients of weight and bias; `backward` on a GPU

The latter two are not differentiable.  `norm` is, once.  Forward-mode derivatives and torch.func's transforms (grad,
vmap, jvp) raise RuntimeError: an autograd.Function with them binds its arguments to names at each call, which takes
20 us; forward and backward together take 48 us of the host (torch 2.13, empty kernels, November 2026).

x is [..., columns], weight and bias [columns], the residual like x or in another dtype; statistics are [rows] in fp32.
Rows in a layout that the kernels do not take are copied first.  Other devices than NVIDIA GPUs compute the definition
in plain torch; the CPU runs the kernels if TRITON_INTERPRET=1 was set before this module was imported.
Under autocast nothing is cast: rows are computed in fp32 in any case, and y has the dtype of x.
"""

# torch's Library and Function have no types.
# mypy: allow-untyped-calls

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import implementations, tuned_plans
from .calls import native
from .calls.again import BACKWARD, FORWARD

# A contender may load this package twice, under two names; the ops of a namespace can be defined only once.
ROOT = __name__.partition(".")[0]
NAMESPACE = "kernelwatch" if ROOT == "kernels" else ROOT

_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")
_GIVEN = "Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, float eps, bool center, float offset"
_library.define(f"norm({_GIVEN}) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
_library.define(f"norm_forward({_GIVEN}, bool statistics) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
# New arguments of a schema come last, with a default: torch.compile's caches on disk call the old schema.
_library.define(
    "norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor rstd, Tensor? mean, Tensor? dresidual_out,"
    " ScalarType? bias_dtype, float offset, bool weight_wanted=True) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)
_ops = getattr(torch.ops, NAMESPACE)

Norm = Callable[..., tuple[Tensor, ...]]


def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    eps: float,
    center: bool,
    offset: float,
) -> tuple[Tensor, ...]:
    """(y,) or (y, residual_out), contiguous and like x, [..., columns]; differentiable once.

    residual_out has the dtype of x + residual.  x and residual may be jagged, and all tensors distributed.  Arguments
    as of `forward.forward`.  Raises ValueError if the tensors do not fit together, or for a dtype that the kernels do
    not take.
    """
    given = (x, weight, bias, residual, eps, center, offset)
    if not torch.compiler.is_compiling():
        if native.norm is not None and forward_ad._current_level < 0:
            outputs = native.norm(*given, tuned_plans.choices)
            if outputs is not None:
                return outputs
        return _norm(*given)  # as the op does, without its dispatch
    if _has_rows_inside(x):
        return _norm_inside(norm, *given)
    return tuple(_ops.norm.default(*given))


def _norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    eps: float,
    center: bool,
    offset: float,
) -> tuple[Tensor, ...]:
    if _has_rows_inside(x):
        return _norm_inside(_norm, x, weight, bias, residual, eps, center, offset)
    wanted = torch.is_grad_enabled() and (
        x.requires_grad
        or (weight is not None and weight.requires_grad)
        or (bias is not None and bias.requires_grad)
        or (residual is not None and residual.requires_grad)
    )
    # In forward mode `_Norm` raises, because it has no jvp; `norm_forward` would return a result without a tangent.
    if wanted or forward_ad._current_level >= 0:
        outputs: tuple[Tensor, ...] = _Norm.apply(x, weight, bias, residual, eps, center, offset)
        return outputs
    y, residual_out, *_ = _forward(x, weight, bias, residual, eps, center, offset, False)
    return (y,) if residual_out is None else (y, residual_out)


def _forward(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    eps: float,
    center: bool,
    offset: float,
    statistics: bool,
) -> tuple[Any, ...]:
    """(y, residual_out, mean, rstd) by the op `norm_forward`, without its dispatch where that changes nothing."""
    if not _observed():
        again = FORWARD.again((x, weight, bias, residual), eps, center, offset, statistics, tuned_plans.choices)
        if again is not None:
            return again  # type: ignore[no-any-return]
    outputs = _ops.norm_forward.default(x, weight, bias, residual, eps, center, offset, statistics)
    residual_out = None if residual is None else outputs[1]
    return outputs[0], residual_out, outputs[-2] if statistics and center else None, outputs[-1] if statistics else None


def _backward(
    dy: Tensor,
    x: Tensor,
    weight: Tensor | None,
    rstd: Tensor,
    mean: Tensor | None,
    dresidual_out: Tensor | None,
    bias_dtype: torch.dtype | None,
    offset: float,
    weight_wanted: bool,
) -> tuple[Any, ...]:
    """(dx, dweight, dbias, narrow_dx) by the op `norm_backward`, without its dispatch where that changes nothing."""
    if not (_observed() or torch.is_grad_enabled()):
        narrow_dx = None if dy.dtype is x.dtype else torch.empty_like(dy)
        tensors = (dy, x, weight, rstd, mean, dresidual_out, narrow_dx)
        again = BACKWARD.again(tensors, bias_dtype, weight_wanted, offset, tuned_plans.choices)
        if again is not None:
            return (*again, narrow_dx)
    given = (dy, x, weight, rstd, mean, dresidual_out, bias_dtype, offset, weight_wanted)
    # With gradients enabled (create_graph), the result must refuse to be differentiated.
    gradients = _Gradients.apply(*given) if torch.is_grad_enabled() else _ops.norm_backward.default(*given)
    dx, *others = gradients
    narrow_dx = None if dy.dtype is x.dtype else others.pop()
    dbias = None if bias_dtype is None else others.pop()
    return dx, others[0] if others else None, dbias, narrow_dx


def _observed() -> bool:
    """Whether torch must see the ops: a mode, a transform, a tracer, the profiler."""
    return bool(
        torch._C._len_torch_dispatch_stack()
        or torch._C._len_torch_function_stack()
        or torch._C._are_functorch_transforms_active()
        or torch._C._get_tracing_state()
        or torch.autograd._profiler_enabled()  # type: ignore[attr-defined]
    )


# Under a composite op instead of an autograd formula of `norm_forward`, which dispatches again and walks through lists:
# forward and backward take 48 us of the host instead of 117 (torch 2.13, empty kernels, November 2026).
class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Any, bias: Any, residual: Any, eps: float, center: bool, offset: float
    ) -> Any:
        y, residual_out, mean, rstd = _forward(x, weight, bias, residual, eps, center, offset, True)
        ctx.save_for_backward(x if residual is None else residual_out, weight, mean, rstd)
        ctx.bias_dtype = bias.dtype if ctx.needs_input_grad[2] else None
        ctx.offset, ctx.y_dtype = offset, x.dtype
        ctx.set_materialize_grads(False)  # no zeros for an unused output
        return (y,) if residual is None else (y, residual_out)

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dresidual_out: Tensor | None = None) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        if dy is None:
            dy = torch.zeros_like(x, dtype=ctx.y_dtype)
        _, weight_wanted, _, residual_wanted, *_ = ctx.needs_input_grad
        given = (dy, x, weight, rstd, mean, dresidual_out, ctx.bias_dtype, ctx.offset, weight_wanted)
        dx, dweight, dbias, narrow_dx = _backward(*given)
        # torch casts the gradient of a residual that is narrower than the sum
        return dx if narrow_dx is None else narrow_dx, dweight, dbias, dx if residual_wanted else None, None, None, None


class _Gradients(torch.autograd.Function):
    """Gradients that raise if they are differentiated again; otherwise torch would treat them as constants."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:  # noqa: ARG004
        return tuple(_ops.norm_backward.default(*given))

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "a norm of kernelwatch can be differentiated once; for second derivatives use torch.nn.functional's"
        )


# Tensors whose rows lie in tensors inside: nested ones (jagged) and distributed ones (DTensor).  Rows may be cut and
# spread, their elements may not.


def _has_rows_inside(x: Tensor) -> bool:
    return x.is_nested or _is_distributed(x)


def _norm_inside(
    norm: Norm, x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, *others: Any
) -> tuple[Tensor, ...]:
    """`norm` of the rows inside x and the residual; outputs are like x.

    Raises ValueError if some tensors are nested or distributed where others are not.
    """
    apply = _nested if x.is_nested else _distributed
    return apply(norm, x, weight, bias, residual, *others)


def _nested(
    norm: Norm, x: Any, weight: Tensor | None, bias: Tensor | None, residual: Any, *others: Any
) -> tuple[Tensor, ...]:
    if x.layout is not torch.jagged:
        raise ValueError("x is a nested tensor in the strided layout: make it with layout=torch.jagged")
    if x._ragged_idx == x.dim() - 1:
        raise ValueError("the columns of x are ragged: a row must have as many as the weight")
    if residual is not None and (not residual.is_nested or residual.shape != x.shape):
        raise ValueError(
            f"residual must be like x, {tuple(x.shape)}, and have its offsets, not {tuple(residual.shape)}"
        )
    outputs = norm(x.values(), weight, bias, None if residual is None else residual.values(), *others)
    return tuple(
        torch.nested.nested_tensor_from_jagged(output, x.offsets(), x.lengths(), jagged_dim=x._ragged_idx)
        for output in outputs
    )


def _distributed(norm: Norm, x: Any, weight: Any, bias: Any, residual: Any, *others: Any) -> tuple[Tensor, ...]:
    """Rows stay where they are; what cuts rows, or is not yet summed, is collected first, as torch's norms do."""
    from torch.distributed.tensor import DTensor, Partial, Replicate, Shard

    for name, tensor in (("weight", weight), ("bias", bias), ("residual", residual)):
        if tensor is not None and not (_is_distributed(tensor) and tensor.device_mesh == x.device_mesh):
            raise ValueError(f"x is a DTensor: distribute the {name} over the same mesh")
    mesh, columns = x.device_mesh, x.ndim - 1
    rows = [
        placement if isinstance(placement, Shard) and placement.dim != columns else Replicate()
        for placement in x.placements
    ]
    everywhere = [Replicate()] * mesh.ndim
    of_parts = [Partial() if isinstance(placement, Shard) else placement for placement in rows]

    def inside(tensor: Any, placements: Any, of_gradient: Any) -> Any:
        if tensor is None:
            return None
        if list(tensor.placements) != placements:
            tensor = tensor.redistribute(mesh, placements)
        return tensor.to_local(grad_placements=of_gradient)

    outputs = norm(
        inside(x, rows, rows),
        inside(weight, everywhere, of_parts),
        inside(bias, everywhere, of_parts),
        inside(residual, rows, rows),
        *others,
    )
    stride = torch.empty(x.shape, device="meta").stride()
    return tuple(
        DTensor.from_local(output, mesh, rows, run_check=False, shape=x.shape, stride=stride) for output in outputs
    )


def _is_distributed(tensor: Any) -> bool:
    module = getattr(torch.distributed, "tensor", None)  # not imported as long as nothing is distributed
    return module is not None and isinstance(tensor, module.DTensor)


def _checked(arguments: Any, compute: Any) -> Any:
    """An implementation that takes the op's arguments one by one.  Raises ValueError if they do not fit together."""

    def call(*positional: Any, **named: Any) -> Any:
        given = arguments(*positional, **named)
        given.check()
        return compute(given)

    return call


_library.impl("norm", lambda *given: list(_norm(*given)), "CompositeImplicitAutograd")
for _name, (_arguments, *_ways) in implementations.OPS.items():
    _by_kernels, _by_definition, _fake = (_checked(_arguments, way) for way in _ways)
    _library.impl(_name, _by_definition, "CompositeExplicitAutograd")
    for _device in implementations.THROUGH_KERNELS:
        _library.impl(_name, _by_kernels, _device.upper())
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_library)

native.begin(_backward)
