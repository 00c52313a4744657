"""Which compile-time facts of two sides are the same, in words.  Pure.

Facts come from strangers' processes: what makes no sense in them counts as not said.
"""

from collections.abc import Mapping
from typing import Any

from service.domain.codefacts.measured import configurations

LARGEST = 2**53  # of a number: what a double holds


def alike(head: Mapping[str, Any], beside: Mapping[str, Any]) -> list[str]:
    """The facts that both sides name and that are the same, in words."""
    same = [name for key, name in _NAMES.items() if (two := _both(head, beside, key)) and two[0] == two[1]]
    now, before = configurations(head), configurations(beside)
    return [*same, "configuration"] if now and now == before else same


_NAMES = {"spills": "spills", "registers": "registers", "shared": "shared memory", "kernels": "number of kernels"}


def _both(head: Mapping[str, Any], beside: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    """Before and now."""
    before, now = _whole(beside.get(key)), _whole(head.get(key))
    return None if before is None or now is None else (before, now)


def _whole(value: Any) -> int | None:
    sound = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
    return value if sound else None
