"""Why did the distance to the best baseline change between two mainline revisions?  Pure.

The times come from two sessions, so the target, the baseline, the stack or the machine may have moved.  A change of the
head that was confirmed against its parent in the newer session is the first explanation, because a comparison within
one session is far more exact.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from service.domain.attribution.causes import Cause, CauseCode, Kind
from service.domain.metrics import metric_of, quotient
from service.domain.verdicts.machine import clock_ratio


@dataclass(frozen=True)
class GapSide:
    """One of the two at one session: who it was, its median, and its facts."""

    name: str
    took: float  # in the unit of the case's metric
    facts: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Shift:
    """Head over baseline at one case now, and at the mainline revision measured before."""

    case: str
    before: str  # that revision, short
    own: tuple[GapSide, GapSide]  # before and now, as the next
    baseline: tuple[GapSide, GapSide]
    smallest_change: float  # the smallest relevant change, relative
    stack: Mapping[str, tuple[str, str]] = field(default_factory=dict)  # what changed in between: before and now
    confirmed: float | None = None  # head over its parent in the newer session, where that was confirmed
    why: Cause | None = None  # of that

    @property
    def wider(self) -> float:
        """The ratio now over the ratio then: 1.05 is a distance that grew by 5 %."""
        return _moved(self, self.own) / _moved(self, self.baseline)


def gap_cause(shift: Shift) -> Cause | None:
    """Why the distance changed; None where it did not by as much as matters."""
    if abs(shift.wider - 1) <= shift.smallest_change:
        return None
    if shift.confirmed is not None and _explains(shift, shift.confirmed):
        return _ours_confirmed(shift, shift.confirmed)
    then, now = shift.baseline
    if then.name != now.name:
        args = {"now": now.name, "then": then.name, "since": shift.before}
        return Cause(Kind.BASELINE, CauseCode.OTHER_BEST, args)
    if _explains(shift, 1 / _moved(shift, shift.baseline)):
        return _theirs(shift)
    if _explains(shift, _moved(shift, shift.own)):
        return _ours_unconfirmed(shift)
    return Cause(Kind.UNKNOWN, CauseCode.NEITHER, certain=False)


def _ours_confirmed(shift: Shift, ratio: float) -> Cause:
    if shift.why is None:
        return Cause(Kind.CODE, CauseCode.HEAD_MOVED, {"ratio": ratio, "cause": None})
    return replace(shift.why, code=CauseCode.HEAD_MOVED, args={"ratio": ratio, "cause": shift.why.as_json()})


def _theirs(shift: Shift) -> Cause:
    """The baseline moved: because of its version, another part of the stack, the machine, or for an unknown reason."""
    then, now = shift.baseline
    moved = {"who": now.name, "ratio": _moved(shift, shift.baseline)}
    if shift.stack:
        own = _package(now.name)
        if set(shift.stack) == {own}:
            before, after = shift.stack[own]
            args = {"package": own, "before": before, "after": after, "ratio": moved["ratio"]}
            return Cause(Kind.BASELINE, CauseCode.NEW_VERSION, args)
        kind = Kind.BASELINE if own in shift.stack else Kind.STACK
        return Cause(kind, CauseCode.STACK, moved | {"events": _events(shift)}, certain=False)
    if (clock := _clock(shift, shift.baseline)) is not None:
        return Cause(Kind.MACHINE, CauseCode.CLOCK, moved | {"clock": clock}, certain=False)
    if then.facts.get("code") and then.facts.get("code") == now.facts.get("code"):
        return Cause(Kind.MACHINE, CauseCode.BASELINE_SAME_CODE, moved, certain=False)
    return Cause(Kind.BASELINE, CauseCode.BASELINE_UNEXPLAINED, moved, certain=False)


def _ours_unconfirmed(shift: Shift) -> Cause:
    """Our time is another than it was, and no session has shown that this commit did it."""
    moved: dict[str, Any] = {"who": None, "ratio": _moved(shift, shift.own)}
    if shift.stack:
        return Cause(Kind.STACK, CauseCode.STACK, moved | {"events": _events(shift)}, certain=False)
    if (clock := _clock(shift, shift.own)) is not None:
        return Cause(Kind.MACHINE, CauseCode.CLOCK, moved | {"clock": clock}, certain=False)
    args = {"ratio": moved["ratio"], "since": shift.before}
    return Cause(Kind.UNKNOWN, CauseCode.SMALL_STEPS, args, certain=False)


def _explains(shift: Shift, ratio: float) -> bool:
    """Whether a side that changed by this ratio accounts for the change of the distance."""
    return abs(ratio - 1) > shift.smallest_change and (ratio > 1) is (shift.wider > 1)


def _moved(shift: Shift, sides: tuple[GapSide, GapSide]) -> float:
    then, now = sides
    return quotient(now.took, then.took, metric_of(shift.case)) or 1.0


def _clock(shift: Shift, sides: tuple[GapSide, GapSide]) -> float | None:
    """The ratio of SM clocks between the sessions, if it can be the cause and agrees with the direction."""
    if not metric_of(shift.case).varies:
        return None
    then, now = sides
    return clock_ratio(now.facts, then.facts, slower=_moved(shift, sides) > 1)


def _package(provider: str) -> str:
    """The distribution that a provider comes from, as the stack names it."""
    family = provider.partition("-")[0]
    return {"inductor": "torch", "eager": "torch"}.get(family, family)


def _events(shift: Shift) -> list[list[str]]:
    return [[name, before, after] for name, (before, after) in shift.stack.items()]
