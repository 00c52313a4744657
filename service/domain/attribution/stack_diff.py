"""The differences of two stacks, in words.  Pure."""

from collections.abc import Mapping
from typing import Any

Versions = Mapping[str, Any]


def moved(before: Versions, now: Versions) -> tuple[str, ...]:
    """`torch 2.11.0 → 2.13.0`, `liger 0.8.5 is new`, `quack 0.6.5 is gone`, in the order of the stack."""
    said = []
    for name in dict.fromkeys((*now, *before)):
        old, new = before.get(name), now.get(name)
        if old == new:
            continue
        if old is None:
            said.append(f"{name} {new} is new")
        elif new is None:
            said.append(f"{name} {old} is gone")
        else:
            said.append(f"{name} {old} → {new}")
    return tuple(said)


def replaced(before: Versions, now: Versions) -> dict[str, tuple[str, str]]:
    """Packages in both stacks with different versions: before and now."""
    return {name: (str(before[name]), str(new)) for name, new in now.items() if name in before and before[name] != new}
