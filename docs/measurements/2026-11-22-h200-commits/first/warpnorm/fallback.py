"""The definitions in torch, for tensors that the kernels do not take."""

import torch


def rms_norm(x, weight, eps):
    v = x.float()
    scale = torch.rsqrt(v.square().mean(-1, keepdim=True) + eps)
    return (v * scale * weight.float()).to(x.dtype)


def rms_norm_backward(dy, x, weight, rstd):
    g, xhat = dy.float(), x.float() * rstd[:, None]
    wg = g * weight.float()
    dx = (wg - xhat * (wg * xhat).mean(-1, keepdim=True)) * rstd[:, None]
    return dx.to(x.dtype), (g * xhat).sum(0).to(weight.dtype)


def layer_norm(x, weight, bias, eps):
    v = x.float()
    centred = v - v.mean(-1, keepdim=True)
    scale = torch.rsqrt(centred.square().mean(-1, keepdim=True) + eps)
    return (centred * scale * weight.float() + bias.float()).to(x.dtype)


def layer_norm_backward(dy, x, weight, mean, rstd):
    g, xhat = dy.float(), (x.float() - mean[:, None]) * rstd[:, None]
    wg = g * weight.float()
    inner = (wg * xhat).mean(-1, keepdim=True)
    dx = (wg - wg.mean(-1, keepdim=True) - xhat * inner) * rstd[:, None]
    return dx.to(x.dtype), (g * xhat).sum(0).to(weight.dtype), g.sum(0).to(weight.dtype)
