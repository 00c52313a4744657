"""Autograd's backward pass in Python, over the real nodes of the graph.

Torch's engine needs an accelerator to add gradients of CUDA tensors ("Cannot access accelerator device when none is
available", 2.13), and here is none.
"""

from collections import Counter, defaultdict
from collections.abc import Sequence
from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor

from .operators import unobserved

Edge = tuple[Any, int]  # a node and the number of its input


def install() -> None:
    """Replace `torch.autograd.grad` for the rest of this process; hooks of nodes and tensors are not called."""
    autograd: Any = torch.autograd
    autograd.grad = grad
    core: Any = torch._C
    core._autograd._get_current_graph_task_keep_graph = lambda: False  # otherwise AOTAutograd refuses to reuse buffers


def grad(
    outputs: Tensor | Sequence[Tensor],
    inputs: Tensor | Sequence[Tensor],
    grad_outputs: Tensor | Sequence[Tensor | None] | None = None,
    retain_graph: bool | None = None,  # noqa: ARG001
    create_graph: bool = False,
    allow_unused: bool | None = None,
    **_: Any,
) -> tuple[Tensor | None, ...]:
    """As `torch.autograd.grad`."""
    outputs, inputs = _several(outputs), _several(inputs)
    given = _several(grad_outputs) if grad_outputs is not None else (None,) * len(outputs)
    wanted = [_edge(tensor) for tensor in inputs]
    arrived: dict[Edge, Tensor] = {}
    with torch.set_grad_enabled(create_graph):
        for output, gradient in zip(outputs, given, strict=True):
            _add(arrived, _edge(output), torch.ones_like(output) if gradient is None else gradient)
        for node in _in_order([_edge(output)[0] for output in outputs]):
            for edge, gradient in zip(_next(node), _through(node, arrived), strict=True):
                if edge is not None and gradient is not None:
                    _add(arrived, edge, gradient)
    found = tuple(arrived.get(edge) for edge in wanted)
    if None in found and not allow_unused:
        raise RuntimeError("One of the differentiated Tensors appears to not have been used in the graph.")
    return found


def _several(tensors: Any) -> tuple[Any, ...]:
    return (tensors,) if isinstance(tensors, Tensor) else tuple(tensors)


def _edge(tensor: Tensor) -> Edge:
    found: Any = torch.autograd.graph.get_gradient_edge(tensor)
    return found.node, int(found.output_nr)


def _next(node: Any) -> list[Edge | None]:
    return [None if after is None else (after, number) for after, number in node.next_functions]


def _add(arrived: dict[Edge, Tensor], edge: Edge, gradient: Tensor) -> None:
    arrived[edge] = arrived[edge] + gradient if edge in arrived else gradient


def _in_order(starts: Sequence[Any]) -> list[Any]:
    """The nodes in topological order."""
    waits: Counter[Any] = Counter()
    seen = set(starts)
    stack = list(dict.fromkeys(starts))
    after = defaultdict(list)
    while stack:
        node = stack.pop()
        for edge in _next(node):
            if edge is not None:
                after[node].append(edge[0])
                waits[edge[0]] += 1
                if edge[0] not in seen:
                    seen.add(edge[0])
                    stack.append(edge[0])
    ready = [node for node in dict.fromkeys(starts) if not waits[node]]
    order = []
    while ready:
        node = ready.pop()
        order.append(node)
        for one in after[node]:
            waits[one] -= 1
            if not waits[one]:
                ready.append(one)
    return order


def _through(node: Any, arrived: dict[Edge, Tensor]) -> list[Tensor | None]:
    """The gradients that a node passes on, one for each of its edges."""
    edges = _next(node)
    metadata = node._input_metadata
    gradients = [arrived.get((node, number)) for number in range(len(metadata))]
    if not edges or all(gradient is None for gradient in gradients):
        return [None] * len(edges)
    if not hasattr(node, "needs_input_grad"):  # written in C++
        returned = node(*gradients)
        return list(returned) if isinstance(returned, tuple) else [returned]
    # A torch.autograd.Function gets zeros for missing gradients, and returns a gradient for each argument, of which
    # only tensors have edges.
    gradients = [
        torch.zeros(one.shape, dtype=one.dtype, device=one.device) if gradient is None else gradient
        for gradient, one in zip(gradients, metadata, strict=True)
    ]
    with unobserved() if "CompiledFunction" in node.name() else nullcontext():
        returned = node.apply(*gradients)
    answers = iter(answer for answer, needed in zip(_several(returned), node.needs_input_grad, strict=False) if needed)
    return [None if edge is None else next(answers, None) for edge in edges]
