"""Where the seconds of a run went, phase by phase.  Pure."""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from typing import Any

from service.domain.roofline import number

# A share needs no figure of one card or target.  Above a half, a GPU waits longer for processes than all else takes: so
# it was in 8 of the 50 sessions on H200s of docs/measurements and of the sample (November).
MOSTLY = 0.5


def seconds_by_phase(telemetry: Mapping[str, Any] | None) -> dict[str, float]:
    """The seconds of each phase, over all trials and in their order; empty where nothing was stored.

    Their sum is about the time from lease to verdict.  *timed* is left out, because it is part of the rounds.
    """
    stored = telemetry or {}
    trials = stored.get("trials")
    parts = [stored, *(trials if isinstance(trials, list) else ())]
    total = defaultdict[str, float](float)
    for part in parts:
        seconds = part.get("seconds") if isinstance(part, Mapping) else None
        for phase, spent in seconds.items() if isinstance(seconds, Mapping) else ():
            if phase != "timed" and (seconds_spent := number(spent)):
                total[phase] += seconds_spent
    return dict(total)


def mean_seconds(runs: Sequence[Mapping[str, float]]) -> dict[str, float]:
    """The mean seconds of a run by phase; a run without a phase spent none in it."""
    phases = dict.fromkeys(phase for run in runs for phase in run)
    return {phase: math.fsum(run.get(phase, 0.0) for run in runs) / len(runs) for phase in phases}


def mostly_starts(seconds: Mapping[str, float]) -> bool:
    """Whether starting processes took more than everything else together."""
    return seconds.get("start", 0.0) > MOSTLY * math.fsum(seconds.values())


def in_words(seconds: Mapping[str, float]) -> str:
    """`49.4 s: start 17.7, prepare 12.3, rounds 19.4`, without phases that round to 0."""
    shown = [f"{phase} {spent:.1f}" for phase, spent in seconds.items() if spent >= 0.05]
    return f"{math.fsum(seconds.values()):.1f} s: {', '.join(shown)}" if shown else ""
