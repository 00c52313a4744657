"""When the queue of a device ends, from how long its runs usually take.  Pure."""

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence

RunKind = tuple[int, str, str]  # target, device and purpose: runs of one kind take about as long


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
