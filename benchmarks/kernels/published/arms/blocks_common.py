"""What a block of a model is: how it is built, and its inputs."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn


@dataclass(frozen=True)
class Given:
    """An input: random numbers, or random indices smaller than `below`."""

    shape: tuple[int, ...]
    below: int | None = None

    def draw(self, generator: torch.Generator, dtype: torch.dtype, device: str) -> Tensor:
        if self.below is not None:
            return torch.randint(self.below, self.shape, generator=generator, device=device)
        return torch.randn(self.shape, generator=generator, device=device, dtype=dtype).requires_grad_()


@dataclass(frozen=True)
class Size:
    """The arguments of a module, and what it is given."""

    widths: tuple[int, ...]
    inputs: tuple[Given, ...]


@dataclass(frozen=True)
class Block:
    """A part of a model.  `about` names the model, its widths and where they were published.

    `full` is for a GPU and `tiny` for a CPU; the first `free` dimensions of every input may vary (batch, sequence).
    """

    about: str
    module: Callable[..., nn.Module]
    full: Size
    tiny: Size
    free: int = 1


class Layer(nn.Module):
    """A module whose call has the type of a tensor."""

    def __call__(self, *inputs: Any) -> Tensor:
        found: Tensor = super().__call__(*inputs)
        return found


class Chain(nn.Sequential):
    """Layers one after another; the call has the type of a tensor."""

    def __call__(self, *inputs: Any) -> Tensor:
        found: Tensor = super().__call__(*inputs)
        return found


def activations(widths: tuple[int, ...], *shape: int) -> Size:
    """One input of random numbers."""
    return Size(widths, (Given(shape),))


def wide(x: Tensor) -> Tensor:
    """`x` in fp32, or in float64 if that is what it has."""
    return x.to(torch.promote_types(x.dtype, torch.float32))
