"""What users call: picks the GPU kernels or the definition in torch."""

from warpnorm import fallback


def rms_norm(x, weight, eps=1e-6):
    if not x.is_cuda:
        return fallback.rms_norm(x, weight, eps)
    from warpnorm import rms

    return rms.forward(x, weight, eps)


def rms_norm_backward(dy, x, weight, rstd, eps=1e-6):
    if not x.is_cuda:
        return fallback.rms_norm_backward(dy, x, weight, rstd)
    from warpnorm import rms

    return rms.backward(dy, x, weight, rstd)


def layer_norm(x, weight, bias, eps=1e-6):
    if not x.is_cuda:
        return fallback.layer_norm(x, weight, bias, eps)
    from warpnorm import layer

    return layer.forward(x, weight, bias, eps)


def layer_norm_backward(dy, x, weight, mean, rstd, eps=1e-6):
    if not x.is_cuda:
        return fallback.layer_norm_backward(dy, x, weight, mean, rstd)
    from warpnorm import layer

    return layer.backward(dy, x, weight, mean, rstd)
