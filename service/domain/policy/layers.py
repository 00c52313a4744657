"""The layers of a policy: server, then recipe, each with tables per device; later ones win.  Pure."""

import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from pydantic import ValidationError

from kernels.cases import Metric
from service.domain.policy.policy import Policy
from service.domain.policy.toml_errors import TomlMistake, mistakes
from service.errors import BadInput

Table = Mapping[str, Any]


@dataclass(frozen=True)
class Written:
    """A policy as somebody wrote it: what holds everywhere, and what differs on single devices."""

    shared: Table = field(default_factory=dict)
    devices: Mapping[str, Table] = field(default_factory=dict)

    @property
    def tables(self) -> dict[str, Table]:
        """The policy of each named device and of all others, not yet validated."""
        return {name: over(self.shared, own) for name, own in self.devices.items()}

    def on(self, device: str, server: "Written") -> Policy:
        """The policy of a device: this one over the server's.  Both are valid, and so what they make together is."""
        table: Table = {}
        for layer in (server.shared, server.devices.get(device, {}), self.shared, self.devices.get(device, {})):
            table = over(table, layer)
        return Policy.model_validate(table)


NOTHING = Written()  # an empty policy


def split(table: Table) -> Written:
    """A table with the keys of `[policy]`, the devices' own tables apart."""
    return Written({key: value for key, value in table.items() if key != "devices"}, table.get("devices", {}))


def read(text: str, name: str) -> Written:
    """A text with the keys of `[policy]`, or a recipe, whose `[policy]` it is.

    Raises BadInput that names it by `name`, and the line of each mistake.
    """
    try:
        table = tomllib.loads(text)
    except tomllib.TOMLDecodeError as error:
        raise BadInput(f"The policy {name} is not TOML: {error}.") from None
    inside = ("policy",) if "policy" in table else ()
    table = table["policy"] if inside else table
    devices = table.get("devices", {}) if isinstance(table, dict) else None
    if not isinstance(devices, dict):
        raise BadInput(f"The policy {name} must be a table, and its devices a table of tables.")
    written = split(table)
    said = _mistakes(text, inside, written.shared)
    # What is wrong for all devices is not said once more for each.
    for device, whole in (written if not said else NOTHING).tables.items():
        said += _mistakes(text, (*inside, "devices", device), whole)
    if said:
        raise BadInput(f"The policy {name} has mistakes.\n" + "\n".join(map(str, said)))
    return written


def _mistakes(text: str, where: tuple[str, ...], table: Any) -> list[TomlMistake]:
    try:
        Policy.model_validate(table)
    except ValidationError as error:
        return mistakes(text, error, Policy, where)
    return []


def over(below: Table, own: Any) -> Any:
    """`own` where it says something, and `below` where it does not: metric by metric, and case by case.

    What a metric or a case inherits is at least as noisy on a noisier device as its kernels are; bytes and
    counts are as they were.  What is no table is left as it is, to be refused.
    """
    if not isinstance(own, Mapping):
        return own
    merged = {**below, **own}
    for name in ("metrics", "cases", "gate", "bisect", "calibrate"):
        theirs, ours = below.get(name), own.get(name, {})
        if isinstance(theirs, Mapping) and isinstance(ours, Mapping):
            kept = {key: value for key, value in theirs.items() if key not in ours}
            if raised := _RAISED.get(name):
                kept = {key: value if key.endswith(_EXACT) else raised(value, own) for key, value in kept.items()}
            merged[name] = kept | dict(ours)  # of the patterns that fit a case the last counts: the nearest
    return merged


def _raised_case(limits: Any, own: Table) -> Any:
    if not isinstance(limits, Mapping) or not isinstance(limits.get("smallest_change"), int | float):
        return limits
    return {**limits, "smallest_change": max(limits["smallest_change"], _floor(own))}


def _raised_metric(limits: Any, own: Table) -> Any:
    """Raise the limit of a metric; values that are not numbers are kept, so that validation refuses them."""
    return _raised_case(limits if isinstance(limits, Mapping) else {"smallest_change": limits}, own)


def _floor(own: Table) -> float:
    """The `smallest_change` that a layer sets; 0 if it sets none."""
    floor = own.get("smallest_change")
    return floor if isinstance(floor, int | float) else 0.0


_EXACT = tuple(metric.value for metric in Metric if not metric.varies)
_RAISED = {"metrics": _raised_metric, "cases": _raised_case}
