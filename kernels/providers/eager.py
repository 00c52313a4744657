"""What torch does when nobody compiles anything.  "Eager" is not one thing: the facts say which operators ran."""

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from ..inputs import Inputs
from ..words import Case
from .base import Bind, Call, Unsupported, plainly


class Eager:
    """`torch.nn.functional` forwards; backwards its own backward operator, or autograd where there is none."""

    name = "eager"
    compiled = False
    pinned: tuple[str, ...] = ()
    remembers = False  # at this case: works on what a forward pass kept

    def warm(self) -> None: ...

    def ready(self, case: Case, device: torch.device) -> Bind:  # noqa: ARG002
        self.remembers = False
        ways = {
            "rmsnorm.fwd": (plainly(_rms_norm), plainly(_rms_norm_upcast)),
            "rmsnorm.bwd": (
                plainly(_rms_norm_backward),
                self._by_autograd(_rms_norm),
                self._by_autograd(_rms_norm_upcast),
            ),
            "layernorm.fwd": (plainly(_layer_norm), plainly(_layer_norm_upcast)),
            "layernorm.bwd": (plainly(_layer_norm_backward), plainly(_layer_norm_backward_upcast)),
        }.get(case.key)
        if ways is None:
            raise Unsupported(f"torch has no {case.key}")
        return _first_that_runs(ways)

    def differentiable(self, case: Case, device: torch.device) -> Callable[..., Any]:  # noqa: ARG002
        raise Unsupported(f"{self.name} has no {case.key}")

    def _by_autograd(self, forward: Callable[..., Tensor]) -> Bind:
        """The backward pass as autograd runs it; the forward pass is over before the clock starts."""

        def bind(inputs: Inputs) -> Call:
            self.remembers = True
            dy = inputs["dy"]
            # detached aliases: the inputs themselves must not begin to require gradients
            leaves = tuple(inputs[name].detach().requires_grad_() for name in ("x", "weight"))
            with torch.enable_grad():
                y = forward(*leaves, inputs.eps)

            def call() -> tuple[Any, ...]:
                return torch.autograd.grad(y, leaves, dy, retain_graph=True)

            return call

        return bind


def _first_that_runs(ways: tuple[Bind, ...]) -> Bind:
    """Mixed dtypes are refused by some devices, and some operators exist only on some."""
    chosen: list[Bind] = []

    def bind(inputs: Inputs) -> Call:
        if chosen:
            return chosen[0](inputs)
        troubles = []
        for way in ways:
            try:
                call = way(inputs)
                call()
            except (RuntimeError, NotImplementedError, AttributeError) as trouble:
                troubles.append(str(trouble).splitlines()[0])
                continue
            chosen.append(way)
            return call
        raise Unsupported("; ".join(troubles))

    return bind


def _rms_norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


def _rms_norm_upcast(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    return F.rms_norm(x.float(), (x.shape[-1],), weight.float(), eps).to(x.dtype)


def _rms_norm_backward(dy: Tensor, x: Tensor, weight: Tensor, rstd: Tensor, _eps: float) -> tuple[Tensor, Tensor]:
    if weight.dtype != x.dtype:
        raise NotImplementedError("the fused operator takes one dtype")
    backward = torch.ops.aten._fused_rms_norm_backward
    dx, dweight = backward(dy, x, [x.shape[-1]], rstd[:, None], weight, [True, True])
    return dx, dweight


def _layer_norm(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x, (x.shape[-1],), weight, bias, eps)


def _layer_norm_upcast(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> Tensor:
    return F.layer_norm(x.float(), (x.shape[-1],), weight.float(), bias.float(), eps).to(x.dtype)


def _layer_norm_backward(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, _eps: float
) -> tuple[Tensor, ...]:
    if x.device.type == "cpu" and weight.dtype != x.dtype:
        # 2.13 sums the gradients of fp32 weights in bf16 here: wrong by 8e-3 after 65 rows
        raise NotImplementedError("inexact for mixed dtypes on a CPU")
    backward = torch.ops.aten.native_layer_norm_backward
    # the value of the bias does not matter backwards, but only with one is there a gradient of it
    return tuple(backward(dy, x, [x.shape[-1]], mean[:, None], rstd[:, None], weight, weight, [True, True, True]))


def _layer_norm_backward_upcast(
    dy: Tensor, x: Tensor, weight: Tensor, mean: Tensor, rstd: Tensor, _eps: float
) -> tuple[Tensor, ...]:
    dx, dweight, dbias = _layer_norm_backward(dy.float(), x.float(), weight.float(), mean, rstd, _eps)
    return dx.to(x.dtype), dweight.to(weight.dtype), dbias.to(weight.dtype)
