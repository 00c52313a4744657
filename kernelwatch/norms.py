"""RMSNorm and LayerNorm in Triton for use in a model (docs/kernels.md): modules, functions and ops.

Importing this defines torch.ops.kernelwatch.norm, norm_forward and norm_backward.  `forward` and `backward` are the
kernels without autograd, and `plans` says how they are launched.  `quantised`, `gated`, `dropped` and `norm_linear` are
norms with what follows or precedes them in a model, forward only.  `build_calls` makes calls take less of the host, and
`set_batch_invariant` gives a row the same bits in every batch.
"""

from .extras import how_to_install

try:
    from kernels.norms import plans
    from kernels.norms.backward import backward
    from kernels.norms.calls.native import build_calls
    from kernels.norms.forward import forward
    from kernels.norms.linear import norm_linear
    from kernels.norms.modules import LayerNorm, RMSNorm, layer_norm, rms_norm
    from kernels.norms.regions import dropped, gated, quantised
    from kernels.norms.tuned_plans import set_batch_invariant
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(how_to_install(missing) or str(missing), name=missing.name) from None

__all__ = [
    "LayerNorm",
    "RMSNorm",
    "backward",
    "build_calls",
    "dropped",
    "forward",
    "gated",
    "layer_norm",
    "norm_linear",
    "plans",
    "quantised",
    "rms_norm",
    "set_batch_invariant",
]
