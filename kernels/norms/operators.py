"""The norms as ops of torch: differentiable, seen through by torch.compile, and computed on any device.

    kernelwatch::norm           y, and residual_out where there is a residual; the gradients come from the two below
    kernelwatch::norm_forward   the same and, if asked for, the statistics, through `forward` on a GPU
    kernelwatch::norm_backward  dx, and the gradients of weight and bias, through `backward` on a GPU

The latter two are not differentiable by themselves.  Autograd goes back through `norm`, once.  Forward-mode derivatives
and torch.func's transforms (grad, vmap, jvp) are not supported: a Function that they can go through binds its arguments
to names at each call, 20 us where forward and backward take the host 60 (torch 2.13, empty kernels, November).

x is [..., columns], weight and bias [columns], the residual like x; statistics are [rows] in fp32.  Rows that lie in
no order that the kernels take are copied first.  Devices other than NVIDIA's compute the definition in plain torch; the
CPU goes through the kernels if TRITON_INTERPRET=1 was set before this module was imported.
Under autocast nothing is cast: rows are computed in fp32 whatever they are kept in, and y has the dtype of x.
"""

# torch's Library and Function have no types.
# mypy: allow-untyped-calls

from typing import Any

import torch
from torch import Tensor

from . import implementations

# A contender may hold two copies of this package, under two names; the ops of a namespace can be defined only once.
ROOT = __name__.partition(".")[0]
NAMESPACE = "kernelwatch" if ROOT == "kernels" else ROOT

_library: Any = torch.library.Library(NAMESPACE, "FRAGMENT")
_GIVEN = "Tensor x, Tensor? weight, Tensor? bias, Tensor? residual, float eps, bool center, float offset"
_library.define(f"norm({_GIVEN}) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
_library.define(f"norm_forward({_GIVEN}, bool statistics) -> Tensor[]", tags=torch.Tag.pt2_compliant_tag)
# What is new in a schema comes last and has a default: torch.compile's caches on disk call it as it was.
_library.define(
    "norm_backward(Tensor dy, Tensor x, Tensor? weight, Tensor rstd, Tensor? mean, Tensor? dresidual_out,"
    " ScalarType? bias_dtype, float offset, bool weight_wanted=True) -> Tensor[]",
    tags=torch.Tag.pt2_compliant_tag,
)
_ops = getattr(torch.ops, NAMESPACE)


def norm(
    x: Tensor,
    weight: Tensor | None,
    bias: Tensor | None,
    residual: Tensor | None,
    eps: float,
    center: bool,
    offset: float,
) -> tuple[Tensor, ...]:
    """(y,) or (y, residual_out), both like x and dense: `forward.forward` for any leading shape, differentiable once.

    Raises ValueError for tensors that do not fit together, or that the GPU's kernels do not take.
    """
    if torch.compiler.is_compiling():
        return tuple(_ops.norm.default(x, weight, bias, residual, eps, center, offset))
    return _norm(x, weight, bias, residual, eps, center, offset)  # what the op does, without its dispatch


def _norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, *how: Any
) -> tuple[Tensor, ...]:
    if torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, weight, bias, residual)
    ):
        outputs: tuple[Tensor, ...] = _Norm.apply(x, weight, bias, residual, *how)
        return outputs
    return tuple(_ops.norm_forward.default(x, weight, bias, residual, *how, False))


# Under a composite op, and not a formula registered for `norm_forward`: with empty kernels the host takes 48 us for
# forward and backward this way and 117 us that way, which dispatches again and walks through lists (torch 2.13).
class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, x: Tensor, weight: Any, bias: Any, residual: Any, eps: float, center: bool, offset: float
    ) -> Any:
        outputs = _ops.norm_forward.default(x, weight, bias, residual, eps, center, offset, True)
        normalised = x if residual is None else outputs[1]
        ctx.save_for_backward(normalised, weight, outputs[-2] if center else None, outputs[-1])
        ctx.bias_dtype = bias.dtype if ctx.needs_input_grad[2] else None
        ctx.offset = offset
        ctx.set_materialize_grads(False)  # no zeros for an output that nobody used
        return tuple(outputs[: 1 if residual is None else 2])

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dresidual_out: Tensor | None = None) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        if dy is None:
            dy = torch.zeros_like(x)
        _, wants_weight, _, wants_residual, *_ = ctx.needs_input_grad
        given = (dy, x, weight, rstd, mean, dresidual_out, ctx.bias_dtype, ctx.offset, wants_weight)
        # Only who asked for a graph of the gradients could differentiate them.
        gradients = _Last.apply(*given) if torch.is_grad_enabled() else _ops.norm_backward.default(*given)
        dx, dweight, dbias = gradients[0], None, None
        if wants_weight:
            dweight = gradients[1]
        if ctx.bias_dtype is not None:
            dbias = gradients[-1]
        return dx, dweight, dbias, dx if wants_residual else None, None, None, None


class _Last(torch.autograd.Function):
    """Gradients that cannot be differentiated again; left alone, torch would take them for constants."""

    @staticmethod
    def forward(ctx: Any, *given: Any) -> Any:  # noqa: ARG004
        return tuple(_ops.norm_backward.default(*given))

    @staticmethod
    def backward(ctx: Any, *_: Any) -> Any:
        raise NotImplementedError(
            "a norm of kernelwatch can be differentiated once; for second derivatives take torch.nn.functional's"
        )


_library.impl("norm", lambda *given: list(_norm(*given)), "CompositeImplicitAutograd")
for _name, _by_kernels, _by_definition, _fake in (
    (
        "norm_forward",
        implementations.forward_by_kernels,
        implementations.forward_by_definition,
        implementations.forward_fake,
    ),
    (
        "norm_backward",
        implementations.backward_by_kernels,
        implementations.backward_by_definition,
        implementations.backward_fake,
    ),
):
    _library.impl(_name, _by_definition, "CompositeExplicitAutograd")
    for _kind in implementations.THROUGH_KERNELS:
        _library.impl(_name, _by_kernels, _kind.upper())
    torch.library.register_fake(f"{NAMESPACE}::{_name}", _fake, lib=_library)
