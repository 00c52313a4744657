"""The arms of an isolation: both stacks, a second copy of the old one, and the hybrids that can be made of them."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kernels.cases import Role
from service.domain.isolation.components import Component, components
from service.domain.isolation.evaluation import CONTROL, FROM, TO, backward, forward
from service.errors import BadInput
from workers.environments import BaseStack
from workers.isolation.distributions import StackContents
from workers.isolation.hybrids import hybrid


@dataclass(frozen=True)
class StackArm:
    """`base` is the arm whose stack it has but for the `component`, which is that of `donor`; None of a whole stack."""

    name: str
    stack: BaseStack
    role: Role
    component: Component | None = None
    base: str = ""
    donor: str = ""


@dataclass
class StackArms:
    """`missing`: the hybrids that cannot be made, with reasons."""

    components: tuple[Component, ...]
    arms: list[StackArm] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)


def arms_of(before: StackContents, after: StackContents, wanted: Sequence[str]) -> StackArms:
    """The arms to swap the components that differ, or those of them that are `wanted`.

    Raises BadInput if the stacks cannot be mixed, or do not differ.
    """
    _check_python(before, after)
    found = _chosen(components(before.installed, after.installed), wanted, before, after)
    made = StackArms(found)
    # Facts and repeatability of both stacks are gathered in full, as those of a parent are.
    made.arms = [
        StackArm(FROM, before.stack, Role.PARENT),
        StackArm(TO, after.stack, Role.PARENT),
        StackArm(CONTROL, before.stack, Role.CONTROL),
    ]
    for component in found:
        if component.obstacle is not None:
            made.missing |= dict.fromkeys((forward(component.name), backward(component.name)), component.obstacle)
            continue
        made.arms.append(_hybrid(forward(component.name), FROM, TO, component, before, after))
        made.arms.append(_hybrid(backward(component.name), TO, FROM, component, after, before))
    return made


def _hybrid(
    name: str, base: str, donor: str, component: Component, of_base: StackContents, of_donor: StackContents
) -> StackArm:
    return StackArm(name, hybrid(of_base, component, of_donor), Role.RIVAL, component, base, donor)


def _check_python(before: StackContents, after: StackContents) -> None:
    old, new = ((one.stack.name, one.stack.version) for one in (before, after))
    if old[1] != new[1]:
        first, second = (f"{name} has Python {major}.{minor}" for name, (major, minor) in (old, new))
        raise BadInput(
            f"{first} and {second}: compiled modules of one do not load in the other, so no component can be swapped. "
            "Create one of the stacks again with the Python of the other."
        )


def _chosen(
    found: tuple[Component, ...], wanted: Sequence[str], before: StackContents, after: StackContents
) -> tuple[Component, ...]:
    names = [one.name for one in found]
    if not found:
        raise BadInput(
            f"Stacks {before.stack.name} and {after.stack.name} have the same distributions: there is nothing to swap."
        )
    if unknown := next((name for name in wanted if name not in names), None):
        raise BadInput(f"No component {unknown!r} differs between the stacks; those that do: {', '.join(names)}.")
    return tuple(one for one in found if not wanted or one.name in wanted)


def notes(before: StackContents, after: StackContents, made: StackArms) -> Iterator[str]:
    """What differs between the stacks and is not swapped."""
    if (before.python, before.base_prefix) != (after.python, after.base_prefix):
        yield (
            f"The interpreters differ too: Python {before.python} and {after.python}. An interpreter is not swapped; "
            "what it does is part of what is left."
        )
    for component in made.components:
        added = [one.name for one in component.changes if one.before is None]
        removed = [one.name for one in component.changes if one.after is None]
        if component.obstacle is None and (added or removed):
            names = ", ".join([*added, *removed][:5])
            yield f"Only one of the stacks has {names} ({component.name}); a swap cannot hide them in the other."
