"""The norms as torch ops: differentiable, traced by torch.compile, and available on any device.

    kernelwatch::norm           y, and residual_out if there is a residual; differentiable through the two below
    kernelwatch::norm_forward   the same and, if `statistics` is set, mean and rstd; `forward` on a GPU
    kernelwatch::norm_backward  dx, and the gradients of weight and bias; `backward` on a GPU

The latter two are not differentiable.  `norm` is, once.  Forward-mode derivatives and torch.func's transforms (grad,
vmap, jvp) raise RuntimeError: an autograd.Function with them binds its arguments to names at each call, which takes
20 us; forward and backward together take 48 us of the host (torch 2.13, empty kernels, November 2026).

x is [..., columns], weight and bias [columns], the residual like x; statistics are [rows] in fp32.  Rows in a layout
that the kernels do not take are copied first.  Other devices than NVIDIA GPUs compute the definition in plain torch;
the CPU runs the kernels if TRITON_INTERPRET=1 was set before this module was imported.
Under autocast nothing is cast: rows are computed in fp32 in any case, and y has the dtype of x.
"""

# torch's Library and Function have no types.
# mypy: allow-untyped-calls

from typing import Any

import torch
from torch import Tensor
from torch.autograd import forward_ad

from . import implementations

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

    Arguments as of `forward.forward`.  Raises ValueError if the tensors do not fit together, or for a dtype that the
    kernels do not take.
    """
    if torch.compiler.is_compiling():
        return tuple(_ops.norm.default(x, weight, bias, residual, eps, center, offset))
    return _norm(x, weight, bias, residual, eps, center, offset)  # as the op does, without its dispatch


def _norm(
    x: Tensor, weight: Tensor | None, bias: Tensor | None, residual: Tensor | None, *others: Any
) -> tuple[Tensor, ...]:
    wanted = torch.is_grad_enabled() and any(
        tensor is not None and tensor.requires_grad for tensor in (x, weight, bias, residual)
    )
    # In forward mode `_Norm` raises, because it has no jvp; `norm_forward` would return a result without a tangent.
    if wanted or forward_ad._current_level >= 0:
        outputs: tuple[Tensor, ...] = _Norm.apply(x, weight, bias, residual, *others)
        return outputs
    return tuple(_ops.norm_forward.default(x, weight, bias, residual, *others, False))


# Under a composite op instead of an autograd formula of `norm_forward`, which dispatches again and walks through lists:
# forward and backward take 48 us of the host instead of 117 (torch 2.13, empty kernels, November 2026).
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
        ctx.set_materialize_grads(False)  # no zeros for an unused output
        return tuple(outputs[: 1 if residual is None else 2])

    @staticmethod
    def backward(ctx: Any, dy: Tensor | None, dresidual_out: Tensor | None = None) -> Any:
        x, weight, mean, rstd = ctx.saved_tensors
        if dy is None:
            dy = torch.zeros_like(x)
        _, weight_wanted, _, residual_wanted, *_ = ctx.needs_input_grad
        given = (dy, x, weight, rstd, mean, dresidual_out, ctx.bias_dtype, ctx.offset, weight_wanted)
        # With gradients enabled (create_graph), the result must refuse to be differentiated.
        gradients = _Gradients.apply(*given) if torch.is_grad_enabled() else _ops.norm_backward.default(*given)
        dx, dweight, dbias = gradients[0], None, None
        if weight_wanted:
            dweight = gradients[1]
        if ctx.bias_dtype is not None:
            dbias = gradients[-1]
        return dx, dweight, dbias, dx if residual_wanted else None, None, None, None


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
