"""Two sessions of a study: which arm became faster or slower at which case, and what else differs.  Pure.

Times of two sessions were not taken in turns, so their ratio holds the difference of the machines as well.  The ratio
of an arm to the baseline was measured in turns in each session, so machines matter less to its change.
"""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from statistics import median

from kernels.studies.records import CONTROL, Record
from kernels.studies.results import Estimate, Results, sum_of_means


@dataclass(frozen=True)
class ArmChange:
    """An arm at a case in both sessions.  Ratios are B over A: above 1 the arm is slower in B."""

    case: str
    arm: str
    baseline: str  # the first arm of its step
    unit: str
    a: float  # median time
    b: float
    time: Estimate
    relative: Estimate | None  # of the ratio to the baseline; None for the baseline, and without turns in both


def compared(a: Results, b: Results) -> list[ArmChange]:
    """Every arm and case that was measured in both sessions, in the order of A."""
    return list(_changes(a, b))


def differences(a: Results, b: Results) -> list[str]:
    """What else differs between the sessions, each as a sentence without its full stop."""
    first, second = a.sessions[0], b.sessions[0]
    pairs = [
        ("device", first.device, second.device),
        ("form", _form(first.quick), _form(second.quick)),
        ("revision", first.code.get("revision", "unknown"), second.code.get("revision", "unknown")),
        ("code of the kernels", first.code.get("kernels", "unknown"), second.code.get("kernels", "unknown")),
    ]
    mine, others = _versions(a), _versions(b)
    pairs += [(name, mine.get(name, "none"), others.get(name, "none")) for name in dict.fromkeys((*mine, *others))]
    found = [f"{what}: {one} in A, {other} in B" for what, one, other in pairs if one != other]
    both = {*a.cases} & {*b.cases}
    in_a, in_b = both & _replayed(a), both & _replayed(b)
    if in_a != in_b:
        what = "cases replayed as CUDA graphs in one session and launched in the other"
        found.append(f"{what}: {len(in_a - in_b)} in A, {len(in_b - in_a)} in B")
    return found


def _replayed(results: Results) -> set[str]:
    return {one.case for one in results.records if one.replayed}


def _form(quick: bool) -> str:
    return "quick" if quick else "full"


def _versions(results: Results) -> dict[str, str]:
    """Versions of all arms by name; an arm whose versions differ from others' adds its own."""
    found: dict[str, list[str]] = {}
    for note in results.notes:
        if note.what != "stack" or not isinstance(note.value, dict):
            continue
        for name, version in note.value.items():
            if name not in ("arm", "device") and version:
                found.setdefault(name, []).append(str(version))
    return {name: ", ".join(dict.fromkeys(versions)) for name, versions in found.items()}


def _changes(a: Results, b: Results) -> Iterator[ArmChange]:
    baselines = _baselines(a)
    for case in a.cases:
        for arm in a.arms:
            mine, others = a.value(arm, case), b.value(arm, case)
            if mine is None or others is None:
                continue
            baseline = baselines[arm, case]
            time = _ratio(_logs(a.of_arm(arm, case)), _logs(b.of_arm(arm, case)))
            relative = None
            if arm != baseline:
                relative = _ratio(*(list(one.effects(arm, baseline, case).values()) for one in (a, b)))
            if time is not None:
                unit = a.of_arm(arm, case)[0].unit
                yield ArmChange(case, arm, baseline, unit, mine, others, time, relative)


def _baselines(results: Results) -> dict[tuple[str, str], str]:
    """By arm and case, the first arm of the step that measured it first."""
    first: dict[tuple[str, int, str], str] = {}
    found: dict[tuple[str, str], str] = {}
    for one in results.records:
        if one.arm != CONTROL:
            found.setdefault((one.arm, one.case), first.setdefault(one.key, one.arm))
    return found


def _logs(records: Sequence[Record]) -> list[float]:
    """Of each trial, the logarithm of the median."""
    return [math.log(median(one for one in record.samples if one)) for record in records if record.measured]


def _ratio(a: Sequence[float], b: Sequence[float]) -> Estimate | None:
    """B over A from logarithms of trials that are not paired, with Welch's interval if both have two of them."""
    if not a or not b:
        return None
    return sum_of_means([[-one for one in a], b])
