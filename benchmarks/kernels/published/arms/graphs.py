"""Graphs of torch's operators: traced by `make_fx`, and with their tagged regions compiled by Inductor."""

import importlib
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.fx import GraphModule

from benchmarks.kernels.published.arms.tagging import tag_fused_norms


def traced(function: Callable[..., Any], arguments: Sequence[Tensor]) -> GraphModule:
    """The operators that `function` runs for tensors like `arguments`, a backward pass in it included."""
    make_fx: Any = importlib.import_module("torch.fx.experimental.proxy_tensor").make_fx
    with torch.enable_grad():
        graph: GraphModule = make_fx(function, tracing_mode="fake")(*arguments)
    return graph


def with_compiled_norms(graph: GraphModule, configs: Mapping[str, Any]) -> tuple[GraphModule, int]:
    """The graph with each of its fused norms compiled alone, and the number of norms."""
    norms = tag_fused_norms(graph, configs)
    regional_inductor: Any = importlib.import_module("torch.fx.passes.regional_inductor").regional_inductor
    guards: Any = importlib.import_module("torch._guards")
    tensors = (node.meta["val"] for node in graph.graph.nodes if node.op == "placeholder")
    context = guards.TracingContext(next(tensors).fake_mode)  # standalone_compile takes the shapes from it
    with torch.no_grad(), guards.tracing(context):
        compiled: GraphModule = regional_inductor(graph)
    compiled.graph.set_codegen(torch.fx.graph.CodeGen())  # its own expects one list of all arguments
    compiled.recompile()
    return compiled, norms
