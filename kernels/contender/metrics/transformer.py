"""A transformer block around a norm: norm, causal self-attention, norm, SwiGLU."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ...blocks import HEAD, Shape
from ...cases import OPS, Case
from ...checks.inputs import DTYPES, EPS

Norm = Callable[..., Any]  # x, the residual where the op has one, its weights, eps
Forward = Callable[..., tuple[Tensor, ...]]


def parameters(case: Case, shape: Shape, generator: torch.Generator) -> dict[str, Tensor]:
    """The matrices in the dtype of the case: normal, scaled so that activations keep their size."""
    return {
        name: torch.randn(size, generator=generator, device=generator.device, dtype=DTYPES[case.dtype])
        .mul_(size[1] ** -0.5)
        .requires_grad_(False)
        for name, size in shape.matrices.items()
    }


def names(case: Case, shape: Shape) -> tuple[str, ...]:
    """The arguments of the forward pass, in order."""
    op = OPS[case.op]
    norms = (f"{weight}_{which}" for which in (1, 2) for weight in op.weights)
    return ("x", *("residual",) * op.residual, *norms, *shape.matrices)


def transformer(case: Case, shape: Shape) -> Callable[[Norm], Forward]:
    """A function that builds the block's forward pass around a norm; the pass takes the tensors of `names`.

    For an op with a residual, the block takes and returns a residual, and its output is the sum of both results.
    """
    op = OPS[case.op]
    count = len(op.weights)

    def with_norm(norm: Norm) -> Forward:
        def plain(x: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            first, second, matrices = weights[:count], weights[count : 2 * count], weights[2 * count :]
            x = x + _attention(norm(x, *first, EPS), shape, *matrices[:2])
            return (x + _swiglu(norm(x, *second, EPS), *matrices[2:]),)

        def adding(x: Tensor, residual: Tensor, *weights: Tensor) -> tuple[Tensor, ...]:
            first, second, matrices = weights[:count], weights[count : 2 * count], weights[2 * count :]
            y, residual = norm(x, residual, *first, EPS)
            y, residual = norm(_attention(y, shape, *matrices[:2]), residual, *second, EPS)
            return _swiglu(y, *matrices[2:]), residual

        return adding if op.residual else plain

    return with_norm


def _attention(y: Tensor, shape: Shape, qkv: Tensor, out: Tensor) -> Tensor:
    heads = F.linear(y, qkv).view(-1, shape.sequence, 3, shape.heads, HEAD)
    q, k, v = heads.permute(2, 0, 3, 1, 4).unbind(0)
    mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
    return F.linear(mixed.transpose(1, 2).reshape(shape.tokens, shape.columns), out)


def _swiglu(y: Tensor, gate_up: Tensor, down: Tensor) -> Tensor:
    gate, up = F.linear(y, gate_up).chunk(2, -1)
    return F.linear(F.silu(gate) * up, down)
