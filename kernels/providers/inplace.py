"""Functions that write their outputs into their inputs, as `fused_add_rmsnorm` of vLLM, SGLang and FlashInfer."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import torch
from torch import Tensor

from ..cases import BY_ROW, Direction
from ..checks.inputs import Inputs
from .base import Bind, Call

# One by one, small copies took longer than the driver believes of them (`arena.clock_audit`): at 4x4096 in bf16 a turn
# of 6.6 ms took 15.8 ms.  Together, they are a few kernels.  Large ones are slower together: 322 copies of 8 MiB took
# 1.8 ms one by one, and 5.6 ms by torch._foreach_copy_ (H200, November).
COPIED_TOGETHER = 1 << 20  # bytes of a tensor, at most

_INTO = {"y": "x", "residual_out": "residual"}  # where a forward function that returns nothing leaves its outputs


class InPlace:
    """A call on copies of the inputs of [rows, columns], which it may overwrite.

    The first call finds them as the inputs are, every later one only after `restore`.
    """

    def __init__(self, bind: Bind, inputs: Inputs) -> None:
        copies = {name: _like(tensor) for name, tensor in inputs.tensors.items() if name in BY_ROW}
        self.copied = [(into, inputs[name]) for name, into in copies.items()]
        self._call = bind(Inputs(inputs.case, {**inputs.tensors, **copies}, inputs.eps))
        outputs = inputs.case.outputs if inputs.case.direction is Direction.FWD else ()
        written = tuple(copies[_INTO[name]] for name in outputs if _INTO.get(name) in copies)
        self._written: Any = written[0] if len(written) == 1 else written or None
        self.restore()

    def restore(self) -> None:
        """Write the inputs into the copies."""
        for into, source in self.copied:
            into.copy_(source)

    def __call__(self) -> Any:
        """What the function returns; where that is nothing, the copies that hold its outputs."""
        returned = self._call()
        return self._written if returned is None else returned


def in_place(bind: Bind) -> Bind:
    """Bind as `bind` does, to copies of the inputs."""
    return lambda inputs: InPlace(bind, inputs)


def restored(call: Call) -> Call:
    """The call, after its inputs are restored if it overwrites them."""
    if not isinstance(call, InPlace):
        return call

    def after_restoring() -> Any:
        call.restore()
        return call()

    return after_restoring


def restores_of(calls: Sequence[Call]) -> list[Callable[[], Any]]:
    """What has to run before a pass over `calls`; empty if none of them overwrites its inputs."""
    copied = [pair for call in calls if isinstance(call, InPlace) for pair in call.copied]
    small = [pair for pair in copied if pair[0].nbytes <= COPIED_TOGETHER]
    restores: list[Callable[[], Any]] = [
        partial(into.copy_, source) for into, source in copied if into.nbytes > COPIED_TOGETHER
    ]
    if small:
        restores.append(partial(torch._foreach_copy_, [into for into, _ in small], [source for _, source in small]))
    return restores


def _like(tensor: Tensor) -> Tensor:
    """A new tensor with the same strides; between its rows is NaN."""
    rows, stride = tensor.shape[0], tensor.stride(0)
    whole = torch.full((rows, stride), math.nan, dtype=tensor.dtype, device=tensor.device)
    return whole.as_strided(tensor.shape, tensor.stride())
