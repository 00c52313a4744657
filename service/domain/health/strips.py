"""The last revisions of a target at a glance, and how its geometric mean against SOTA moved.  Pure."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from service.domain.verdicts.totals import SotaMean, joined

REVISIONS = 30  # of a strip


class Mark(StrEnum):
    """What a revision did, over all devices."""

    SLOWER = "slower"
    FASTER = "faster"
    STEADY = "steady"
    FAILED = "failed"  # it does not build, was given up, or is newly wrong at a case
    UNMEASURED = "not measured"


class DeviceResult(NamedTuple):
    """The newest run of a revision on one device; the numbers are of one that was measured."""

    done: bool
    failed: bool = False
    slower: int = 0
    faster: int = 0
    newly_broken: int = 0
    mean: SotaMean | None = None


@dataclass(frozen=True)
class StripRevision:
    """A revision of the mainline and its results by device."""

    ordinal: int
    sha: str
    committed_at: float
    results: Mapping[str, DeviceResult] = field(default_factory=dict)

    @property
    def mark(self) -> Mark:
        return mark_of(self.results.values())


def mark_of(results: Iterable[DeviceResult]) -> Mark:
    """The worst of what a revision did on its devices; a slow-down comes before a failure, which measured nothing."""
    every = list(results)
    if any(one.slower for one in every):
        return Mark.SLOWER
    if any(one.failed or one.newly_broken for one in every):
        return Mark.FAILED
    if any(one.faster for one in every):
        return Mark.FASTER
    return Mark.STEADY if any(one.done for one in every) else Mark.UNMEASURED


def newest_means(revisions: Sequence[StripRevision]) -> dict[str, SotaMean]:
    """The newest mean of each device; revisions are oldest first."""
    found = dict[str, SotaMean]()
    for revision in revisions:
        for device, one in revision.results.items():
            if one.mean is not None:
                found[device] = one.mean
    return found


def trend(revisions: Sequence[StripRevision]) -> list[float | None]:
    """The mean against SOTA after each revision, over all devices: that of a device lasts until its next one.

    None before every device has one over the cases that its newest is over: others cannot be compared with it.
    """
    newest = newest_means(revisions)
    held = dict[str, SotaMean]()
    points: list[float | None] = []
    for revision in revisions:
        for device, one in revision.results.items():
            if one.mean is not None and one.mean.digest == newest[device].digest:
                held[device] = one.mean
        points.append(joined(held.values()) if held and held.keys() == newest.keys() else None)
    return points
