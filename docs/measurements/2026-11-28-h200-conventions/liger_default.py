"""Liger-Kernel's RMSNorm in two casting modes, and its backward pass with dx written over dy."""

import importlib
import inspect

liger = importlib.import_module("liger_kernel.ops.rms_norm")


def accepted(function, **arguments):
    """Those of the arguments that this revision has."""
    parameters = inspect.signature(function).parameters
    return {name: value for name, value in arguments.items() if name in parameters}


def functions(casting, number, in_place):
    forward = accepted(liger.rms_norm_forward, offset=0.0, casting_mode=casting, row_mode=None)
    backward = accepted(liger.rms_norm_backward, offset=0.0, casting_mode=number, in_place=in_place, row_mode=None)

    def fwd(x, weight, eps):
        return liger.rms_norm_forward(x, weight, eps, **forward)[0]

    def bwd(dy, x, weight, rstd, _eps):
        block, warps = liger.calculate_settings(x.shape[-1])
        return liger.rms_norm_backward(dy, x, weight, rstd, BLOCK_SIZE=block, num_warps=warps, **backward)

    return fwd, bwd


gemma_fwd, gemma_bwd = functions("gemma", 1, in_place=False)
llama_fwd, llama_bwd = functions("llama", 0, in_place=True)
apart_fwd, apart_bwd = functions("llama", 0, in_place=False)
