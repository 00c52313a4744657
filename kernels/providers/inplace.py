"""Functions that write their outputs into their inputs, as `fused_add_rmsnorm` of vLLM, SGLang and FlashInfer."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from ..cases import BY_ROW, Direction
from ..checks.inputs import Inputs
from .base import Bind, Call

_INTO = {"y": "x", "residual_out": "residual"}  # where a forward function that returns nothing leaves its outputs


class InPlace:
    """A call on copies of the inputs of [rows, columns], which it may overwrite.

    The first call finds them as the inputs are, every later one only after `restore`.
    """

    def __init__(self, bind: Bind, inputs: Inputs) -> None:
        copies = {name: _like(tensor) for name, tensor in inputs.tensors.items() if name in BY_ROW}
        self._into = list(copies.values())
        self._from = [inputs[name] for name in copies]
        self._call = bind(Inputs(inputs.case, {**inputs.tensors, **copies}, inputs.eps))
        outputs = inputs.case.outputs if inputs.case.direction is Direction.FWD else ()
        written = tuple(copies[_INTO[name]] for name in outputs if _INTO.get(name) in copies)
        self._written: Any = written[0] if len(written) == 1 else written or None
        self.restore()

    def restore(self) -> None:
        """Write the inputs into the copies.

        In a CUDA graph one by one: as 322 copies of 8 MiB they took 1.8 ms, by torch._foreach_copy_ 5.6 ms (H200,
        November).
        """
        for into, source in zip(self._into, self._from, strict=True):
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


def restores_of(calls: Sequence[Call]) -> list[Callable[[], None]]:
    """What has to run before a pass over `calls`; empty if none of them overwrites its inputs."""
    return [call.restore for call in calls if isinstance(call, InPlace)]


def _like(tensor: Tensor) -> Tensor:
    """A new tensor with the same strides; between its rows is NaN."""
    rows, stride = tensor.shape[0], tensor.stride(0)
    whole = torch.full((rows, stride), math.nan, dtype=tensor.dtype, device=tensor.device)
    return whole.as_strided(tensor.shape, tensor.stride())
