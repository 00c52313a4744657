"""RMSNorm and LayerNorm in Triton for use in a model (docs/kernels.md): modules, functions and ops.

Importing this defines torch.ops.kernelwatch.norm, norm_forward and norm_backward.  `forward` and `backward` are the
kernels without autograd, and `plans` says how they are launched.
"""

from .extras import how_to_install

try:
    from kernels.norms import plans
    from kernels.norms.backward import backward
    from kernels.norms.forward import forward
    from kernels.norms.modules import LayerNorm, RMSNorm, layer_norm, rms_norm
except ModuleNotFoundError as missing:
    raise ModuleNotFoundError(how_to_install(missing) or str(missing), name=missing.name) from None

__all__ = ["LayerNorm", "RMSNorm", "backward", "forward", "layer_norm", "plans", "rms_norm"]
