"""What two recipes measure differently, and which of their lines differ."""

import difflib
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

from dashboards.rendering import flat
from kernelwatch.documents.targets import DevicePlanItem, RecipeDocument

MAX_LINES = 400  # of differing lines that are shown
_DEVICE_KEYS = ("suite", "sota", "baselines", "providers")


@dataclass(frozen=True)
class KeyChange:
    """A key whose value differs."""

    key: str
    before: str
    now: str


@dataclass(frozen=True)
class DeviceChanges:
    """What differs on one device."""

    device: str
    state: str  # "added", "removed" or "changed"
    added: Sequence[str] = ()  # cases
    removed: Sequence[str] = ()
    keys: Sequence[KeyChange] = ()


@dataclass(frozen=True)
class RecipeChanges:
    """What differs, by device and for all of them."""

    devices: Sequence[DeviceChanges]
    keys: Sequence[KeyChange]

    def __bool__(self) -> bool:
        return bool(self.devices or self.keys)


def changes(before: RecipeDocument, now: RecipeDocument) -> RecipeChanges:
    """Compare what two recipes measure."""
    old, new = ({one.device: one for one in plan.devices} for plan in (before, now))
    devices = [DeviceChanges(name, "added", new[name].cases) for name in new if name not in old]
    devices += [DeviceChanges(name, "removed", (), old[name].cases) for name in old if name not in new]
    devices += [found for name in new if name in old and (found := _on_device(old[name], new[name]))]
    whole = [plan.model_dump(mode="json", exclude={"devices"}) for plan in (before, now)]
    return RecipeChanges(devices, _keys(*whole))


def lines(before: str, now: str) -> Sequence[tuple[str, str]]:
    """The lines that differ with two around them, each with its sign: `+`, `-`, a space, or `@` between parts."""
    found = difflib.unified_diff(before.splitlines(), now.splitlines(), lineterm="", n=2)
    return [(line[:1], line[1:]) for line in islice(found, 2, MAX_LINES + 2)]  # after the names of both files


def _on_device(before: DevicePlanItem, now: DevicePlanItem) -> DeviceChanges | None:
    old, new = set(before.cases), set(now.cases)
    plans = [one.model_dump(mode="json", include={*_DEVICE_KEYS, "policy"}) for one in (before, now)]
    for plan in plans:
        plan["providers"] = {one["name"]: one["calls"] for one in plan["providers"]}
    added = [case for case in now.cases if case not in old]
    removed = [case for case in before.cases if case not in new]
    keys = _keys(*plans)
    return DeviceChanges(now.device, "changed", added, removed, keys) if added or removed or keys else None


def _keys(before: dict[str, Any], now: dict[str, Any]) -> Sequence[KeyChange]:
    old, new = dict(flat(before)), dict(flat(now))
    names = [*old, *(name for name in new if name not in old)]
    pairs = [(name, old.get(name, "none"), new.get(name, "none")) for name in names]
    return [KeyChange(name, was, is_now) for name, was, is_now in pairs if was != is_now]
