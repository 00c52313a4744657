"""A graph pass that tags the fused norms of a graph, so that regional Inductor compiles them and nothing else."""

import operator
from collections.abc import Mapping
from typing import Any

import torch
from torch.fx import GraphModule, Node

from kernels.providers.modes import TAG

FUSED_NORMS = (torch.ops.aten._fused_rms_norm.default, torch.ops.aten._fused_rms_norm_backward.default)


def tag_fused_norms(module: GraphModule, configs: Mapping[str, Any] | None = None) -> int:
    """Tag each fused RMSNorm and each fused backward pass, with the nodes that take their results apart.

    `configs` are Inductor's settings for the tagged regions; without any, its defaults hold.  Other metadata of the
    nodes is kept.  Returns the number of norms.
    """
    norms = [node for node in module.graph.nodes if node.op == "call_function" and node.target in FUSED_NORMS]
    for norm in norms:
        _tag(norm, configs or {})
        for user in norm.users:
            if user.op == "call_function" and user.target is operator.getitem:
                _tag(user, configs or {})
    return len(norms)


def _tag(node: Node, configs: Mapping[str, Any]) -> None:
    custom = node.meta.get("custom") or {}
    node.meta["custom"] = {**custom, TAG: {"inductor_configs": dict(configs)}}
