"""Combine a forward function that returns statistics and a backward function into one for autograd."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..cases import Direction, Op

_Function: Any = torch.autograd.Function  # not typed


@dataclass(frozen=True)
class Pair:
    """A forward and a backward function, with arguments by name.

    `forward(x, [residual], [weight], [bias], eps)` returns a tuple of the op's outputs and a tuple of its statistics.
    `backward(dy, [dresidual_out], x, [weight], *statistics, eps)` returns the gradients of the op.
    """

    op: Op
    forward: Callable[..., tuple[tuple[Tensor, ...], tuple[Tensor, ...]]]
    backward: Callable[..., Any]


def differentiable(pair: Pair) -> Callable[..., Any]:
    """A differentiable function of the forward inputs and eps, in the order of the op."""

    def function(*arguments: Any) -> Any:
        *tensors, eps = arguments
        return _PairFunction.apply(pair, eps, *tensors)

    return function


class _PairFunction(_Function):  # type: ignore[misc]
    @staticmethod
    def forward(ctx: Any, pair: Pair, eps: float, *tensors: Tensor) -> Any:
        given = dict(zip(pair.op.inputs(Direction.FWD), tensors, strict=True))
        outputs, statistics = pair.forward(**given, eps=eps)
        ctx.pair, ctx.eps = pair, eps
        norm_input = outputs[1] if pair.op.residual else given["x"]  # the second output is x + residual
        ctx.save_for_backward(norm_input, *((given["weight"],) if pair.op.weight else ()), *statistics)
        return outputs if len(outputs) > 1 else outputs[0]

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        op = ctx.pair.op
        names = op.inputs(Direction.BWD)
        dense = (gradient if gradient.stride(-1) == 1 else gradient.contiguous() for gradient in gradients)
        given = dict(zip(names, (*dense, *ctx.saved_tensors), strict=True))
        found = ctx.pair.backward(**given, eps=ctx.eps)
        dx, *of_weights = found if isinstance(found, tuple) else (found,)
        return None, None, dx, *((dx,) if op.residual else ()), *of_weights
