"""The fused RMSNorm operator of torch, on a CPU as well.

torch has `_fused_rms_norm` for every device, but a kernel of it for GPUs only: on a CPU the operator is decomposed
before a tracer sees it.  `enable_on_cpu` registers torch's own decompositions as its CPU kernels, so that a graph that
is traced on a CPU has the same operators as one that is traced on a GPU.
"""

import functools
import importlib
from typing import Any

import torch
from torch import Tensor


def rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """The operator that `torch.nn.functional.rms_norm` calls on a GPU if `x` and `weight` have the same dtype.

    x: [..., N], weight: [N]; returns y like x.  On a CPU call `enable_on_cpu` before.
    """
    found: Tensor = torch.ops.aten._fused_rms_norm(x, [x.shape[-1]], weight, eps)[0]
    return found


@functools.cache
def enable_on_cpu() -> Any:
    """Register CPU kernels of the operator and of its backward pass, once in a process.

    Returns the registration, which the cache keeps alive.
    """
    decompositions = importlib.import_module("torch._decomp.decompositions")
    library: Any = torch.library.Library
    kernels = library("aten", "IMPL")
    for name in ("_fused_rms_norm", "_fused_rms_norm_backward"):
        kernels.impl(name, getattr(decompositions, name), "CPU")
    return kernels
