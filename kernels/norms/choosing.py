"""Which plan a call gets."""

from typing import Any

from torch import Tensor

from ..cases import Direction
from . import plans, tuned_plans


def chosen_plan(direction: Direction, x: Tensor, weight: Tensor | None, *, center: bool, residual: bool = False) -> Any:
    """A tuned plan if a file of them is in use, else the default, which depends neither on Triton nor on the device.

    center, residual: as for `plans.default`.  Raises tuned_plans.Unreadable.
    """
    if found := tuned_plans.tuned(direction, x, weight, center=center):
        return found
    size = x.element_size()
    weight_size = size if weight is None else weight.element_size()
    return plans.default(direction, x.shape[1], center=center, size=size, weight_size=weight_size, residual=residual)
