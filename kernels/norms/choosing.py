"""Which plan a call gets."""

from typing import Any

from torch import Tensor

from ..cases import Direction
from . import clusters, plans, tuned_plans


def chosen_plan(direction: Direction, x: Tensor, weight: Tensor | None, *, center: bool) -> Any:
    """A tuned plan if a file of them is in use, a cluster for rows of a team if Triton has them, else the default.

    center: as for `plans.default`.  Raises tuned_plans.Unreadable.
    """
    if found := tuned_plans.tuned(direction, x, weight, center=center):
        return found
    cols, size = x.shape[1], x.element_size()
    plan = plans.default(direction, cols, center=center, size=size)
    if plan.team > 1 and clusters.are_supported():
        return clusters.plan(direction, cols, size, size if weight is None else weight.element_size()) or plan
    return plan
