"""The last revisions of a target at a glance, how its mean against SOTA moved, and when queues end.  Pure."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import NamedTuple

from service.domain.verdicts.totals import SotaMean, joined

REVISIONS = 30  # of a strip
RunKind = tuple[int, str, str]  # target, device and purpose: runs of one kind take about as long


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


_WORST_FIRST = (Mark.SLOWER, Mark.FAILED, Mark.FASTER, Mark.STEADY, Mark.UNMEASURED)


def mark_of(results: Iterable[DeviceResult]) -> Mark:
    """The worst of what a revision did on its devices; a slow-down comes before a failure, which measured nothing."""
    return min(map(_mark, results), key=_WORST_FIRST.index, default=Mark.UNMEASURED)


def _mark(result: DeviceResult) -> Mark:
    if result.slower:
        return Mark.SLOWER
    if result.failed or result.newly_broken:
        return Mark.FAILED
    if result.faster:
        return Mark.FASTER
    return Mark.STEADY if result.done else Mark.UNMEASURED


def newest_means(revisions: Sequence[StripRevision]) -> dict[str, SotaMean]:
    """The newest mean of each device; revisions are oldest first."""
    means = dict[str, SotaMean]()
    for revision in revisions:
        for device, result in revision.results.items():
            if result.mean is not None:
                means[device] = result.mean
    return means


def trend(revisions: Sequence[StripRevision]) -> list[float | None]:
    """The mean against SOTA after each revision, over all devices: that of a device lasts until its next one.

    None before every device has one over the cases that its newest is over: others cannot be compared with it.
    """
    newest = newest_means(revisions)
    held = dict[str, SotaMean]()
    points: list[float | None] = []
    for revision in revisions:
        for device, result in revision.results.items():
            if result.mean is not None and result.mean.digest == newest[device].digest:
                held[device] = result.mean
        points.append(joined(held.values()) if held and held.keys() == newest.keys() else None)
    return points


def usual_durations(finished: Iterable[tuple[RunKind, float]]) -> dict[RunKind, float]:
    """The median duration of each kind of run."""
    took = defaultdict[RunKind, list[float]](list)
    for kind, seconds in finished:
        took[kind].append(seconds)
    return {kind: statistics.median(some) for kind, some in took.items()}


def ends_in_s(
    waiting: Sequence[tuple[RunKind, int]],
    current: Sequence[tuple[RunKind, float]],
    workers: int,
    usual_s: Mapping[RunKind, float],
) -> float | None:
    """In how many seconds a device will have measured all that waits, or None if that is not known.

    `waiting` has the queued runs of each kind, and `current` since how many seconds each run is being measured.
    All workers share the work.  A kind of run that never ended is expected to take as long as the others of the device.
    """
    if not waiting and not current:
        return 0.0
    devices = {kind[1] for kind, _ in (*waiting, *current)}
    others = [seconds for kind, seconds in usual_s.items() if kind[1] in devices]
    if not workers or not others:
        return None
    typical_s = statistics.median(others)
    left_s = [max(0.0, usual_s.get(kind, typical_s) - for_s) for kind, for_s in current]
    waits_s = [count * usual_s.get(kind, typical_s) for kind, count in waiting]
    longest_s = max([*left_s, *(usual_s.get(kind, typical_s) for kind, _ in waiting)])
    return max(math.fsum([*left_s, *waits_s]) / workers, longest_s)
