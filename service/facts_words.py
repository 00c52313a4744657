"""What changed between the compile-time facts of two sides, in words, and what of it explains slower or faster.  Pure.

Facts come from strangers' processes: what makes no sense in them counts as not said.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from service.measured import configurations
from service.texts import apart

LARGEST = 2**53  # of a number: what a double holds


@dataclass(frozen=True)
class Change:
    """One fact that changed.  `slower` is what it explains: True, False, or None where it may be either."""

    because: str  # "the kernel now spills 50 registers"
    short: str  # "spilled registers 0 → 50"
    slower: bool | None
    strong: bool  # explains it by itself; registers and shared memory only limit how many threads fit
    of_kernel: bool = True  # so that the width of the rows belongs to it

    def explains(self, slower: bool) -> bool:
        return self.slower is None or self.slower is slower


def changed(head: Mapping[str, Any], beside: Mapping[str, Any]) -> list[Change]:
    """What changed, that which explains most first."""
    found = [_spills(head, beside), _configuration(head, beside)]
    found += [_counted(head, beside, *words) for words in _COUNTED]
    found += [_size(head, beside, *words) for words in _SIZES]
    return [one for one in found if one is not None]


def alike(head: Mapping[str, Any], beside: Mapping[str, Any]) -> list[str]:
    """The facts that both sides name and that are the same, in words."""
    same = [name for key, name in _NAMES.items() if (two := _both(head, beside, key)) and two[0] == two[1]]
    now, before = configurations(head), configurations(beside)
    return [*same, "configuration"] if now and now == before else same


_NAMES = {"spills": "spills", "registers": "registers", "shared": "shared memory", "kernels": "number of kernels"}
# Each with how one and several are called, and what is said of them.
_COUNTED = (
    ("kernels", "kernel", "it now launches"),
    ("graph_breaks", "graph break", "torch.compile now has"),
    ("recompiles", "recompile", "torch.compile now has"),
)
_SIZES = (("registers", "registers", "registers a thread"), ("shared", "shared memory", "bytes of shared memory"))


def _spills(head: Mapping[str, Any], beside: Mapping[str, Any]) -> Change | None:
    if (two := _moved(head, beside, "spills")) is None:
        return None
    before, now = two
    if not now:
        because = f"the kernel no longer spills ({_registers(before)} before)"
    elif not before:
        because = f"the kernel now spills {_registers(now)}"
    else:
        because = f"the kernel now spills {_registers(now)} instead of {before:,}"
    return Change(because, f"spilled registers {before:,} → {now:,}", now > before, strong=True)


def _configuration(head: Mapping[str, Any], beside: Mapping[str, Any]) -> Change | None:
    before, now = (configurations(facts) or str(facts.get("config") or "") for facts in (beside, head))
    if not before or not now or before == now:
        return None
    was, is_ = apart(before, now)
    return Change(
        f"its configuration is {is_} instead of {was}", f"configuration {was} → {is_}", slower=None, strong=True
    )


def _counted(head: Mapping[str, Any], beside: Mapping[str, Any], key: str, noun: str, says: str) -> Change | None:
    if (two := _moved(head, beside, key)) is None:
        return None
    before, now = two
    because = f"{says} {now:,} {noun}{'s' * (now != 1)} instead of {before:,}"
    return Change(because, f"{noun}s {before:,} → {now:,}", now > before, strong=True, of_kernel=False)


def _size(head: Mapping[str, Any], beside: Mapping[str, Any], key: str, name: str, unit: str) -> Change | None:
    if (two := _moved(head, beside, key)) is None:
        return None
    before, now = two
    because = f"the kernel now takes {now:,} {unit} instead of {before:,}"
    return Change(because, f"{name} {before:,} → {now:,}", now > before, strong=False)


def _moved(head: Mapping[str, Any], beside: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    """Before and now, where they differ."""
    two = _both(head, beside, key)
    return two if two and two[0] != two[1] else None


def _both(head: Mapping[str, Any], beside: Mapping[str, Any], key: str) -> tuple[int, int] | None:
    """Before and now."""
    before, now = _whole(beside.get(key)), _whole(head.get(key))
    return None if before is None or now is None else (before, now)


def _whole(value: Any) -> int | None:
    sound = isinstance(value, int) and not isinstance(value, bool) and 0 <= value <= LARGEST
    return value if sound else None


def _registers(count: int) -> str:
    return f"{count:,} register{'s' * (count != 1)}"
