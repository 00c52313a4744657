"""What a session knows of each change, for its cause; and why a distance to the best baseline changed.  Pure.

The times come from two sessions, so the target, the baseline, the stack or the machine may have moved.  A change of the
head that was confirmed against its parent in the newer session is the first explanation, because a comparison within
one session is far more exact.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Any

from kernels.cases import Comparison, Role
from service.domain.attribution.causes import CaseMove, Cause, CauseCode, Kind, cause
from service.domain.metrics import metric_of, quotient
from service.domain.roofline import ceilings, gpu_of
from service.domain.states import BaselineKind, Outcome
from service.domain.verdicts.analysis import Doubt
from service.domain.verdicts.baselines import RULES, BaselineVerdict
from service.domain.verdicts.judge import CHANGES, Verdict
from service.domain.verdicts.samples import Cell, Name
from service.domain.verdicts.session_result import (
    ContenderResult,
    MachineReadings,
    SessionResult,
    clock_ratio,
    same_kernels,
)


def against_parent(
    result: SessionResult,
    cells: Iterable[Cell],
    judged: Mapping[Name, Verdict],
    elsewhere: Mapping[bool, tuple[str, ...]] = MappingProxyType({}),
) -> dict[Name, Cause]:
    """Why each case that moved, or that looked as if it did and could not be settled, did so.

    `elsewhere` names the targets that became slower (True) or faster on this machine at that time.
    """
    by_name = {cell.name: cell for cell in cells}
    same = (verdict for name, verdict in judged.items() if by_name[name].same_code and verdict.suspected)
    # The cases with equal code that were slower (True) and faster (False).
    alike = Counter(seen.ratio > 1 for verdict in same if (seen := _moved(verdict)) is not None)
    heads, parents = _by_name(result.taken, Role.HEAD), _by_name(result.taken, Role.PARENT)
    causes = {}
    for name, verdict in judged.items():
        if (seen := _moved(verdict)) is None or name not in parents:
            continue
        cell, slower = by_name[name], seen.ratio > 1
        causes[name] = cause(
            CaseMove(
                name[1],
                seen.ratio,
                verdict.outcome in CHANGES,
                heads[name].facts,
                parents[name].facts,
                cell.same_code,
                refuted=verdict.refuted,
                machine=MachineReadings(
                    control=verdict.control - 1 if verdict.control and verdict.doubt is Doubt.CONTROL else None,
                    lost=_lost(heads[name]),
                    throttled=_throttled(result.telemetry, name[1]),
                    equal_code_moved=verdict.doubt is Doubt.MACHINE,
                    same_code_moved=alike[slower] - (cell.same_code and verdict.suspected),
                    elsewhere=elsewhere.get(slower, ()),
                ),
                us=parents[name].median,
                copy_gb_s=ceilings(result.telemetry, name[1]).get("copy_gb_s"),
            )
        )
    return causes


def against_baseline(
    result: SessionResult, kind: BaselineKind, verdicts: Mapping[Name, BaselineVerdict]
) -> dict[Name, Cause]:
    """The same for the last good revision and for the pinned baseline, which no fresh trials confirm.

    They took no part in later trials, and the head's clock is that of all trials: it is no reading of those they share.
    """
    [role] = RULES[kind].roles
    heads, others = _by_name(result.taken, Role.HEAD), _by_name(result.taken, role)
    return {
        name: cause(
            CaseMove(
                name[1],
                verdict.comparison.ratio,
                confirmed=False,
                head={**heads[name].facts, "sm_mhz": None},
                baseline=others[name].facts,
                same_code=same_kernels(heads[name], others[name]),
                machine=MachineReadings(lost=_lost(heads[name]), throttled=_throttled(result.telemetry, name[1])),
                us=others[name].median or others[name].inexact_median,
                copy_gb_s=ceilings(result.telemetry, name[1]).get("copy_gb_s"),
            )
        )
        for name, verdict in verdicts.items()
        if verdict.comparison is not None and verdict.outcome in CHANGES
    }


def _moved(verdict: Verdict) -> Comparison | None:
    """Return the comparison that needs an explanation, or None."""
    open_still = verdict.outcome is Outcome.INCONCLUSIVE and verdict.suspected
    return verdict.comparison if verdict.outcome in CHANGES or open_still else None


def _by_name(taken: Iterable[ContenderResult], role: Role) -> dict[Name, ContenderResult]:
    return {(result.provider, str(result.case)): result for result in taken if result.role is role}


def _lost(head: ContenderResult) -> float:
    """The share of the rounds that did not count."""
    rounds = [each for trial in (*head.screened, *head.confirmed) for each in trial]
    return rounds.count(None) / len(rounds) if rounds else 0.0


def _throttled(telemetry: Mapping[str, Any], case: str) -> tuple[str, ...]:
    """For which reasons rounds were dropped on the GPU of this case."""
    gpu = (gpu_of(telemetry, case) or {}).get("index")
    trials = [trial for trial in telemetry.get("trials", ()) if trial.get("gpu") == gpu]
    notes = (note for trial in trials for note in trial.get("telemetry", ()))
    reasons = [str(reason) for note in notes if note.get("when") == "dropped a round" for reason in note["reasons"]]
    return tuple(dict.fromkeys(reasons))


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
        return _side_ratio(self, self.own) / _side_ratio(self, self.baseline)


def gap_cause(shift: Shift) -> Cause | None:
    """Why the distance changed; None where it did not by as much as matters."""
    if abs(shift.wider - 1) <= shift.smallest_change:
        return None
    if shift.confirmed is not None and _explains(shift, shift.confirmed):
        args: dict[str, Any] = {"ratio": shift.confirmed, "cause": shift.why.as_json() if shift.why else None}
        return replace(shift.why or Cause(Kind.CODE, CauseCode.HEAD_MOVED), code=CauseCode.HEAD_MOVED, args=args)
    then, now = shift.baseline
    if then.name != now.name:
        args = {"now": now.name, "then": then.name, "since": shift.before}
        return Cause(Kind.BASELINE, CauseCode.OTHER_BEST, args)
    if _explains(shift, 1 / _side_ratio(shift, shift.baseline)):
        return _theirs(shift)
    if _explains(shift, _side_ratio(shift, shift.own)):
        return _ours_unconfirmed(shift)
    return Cause(Kind.UNKNOWN, CauseCode.NEITHER, certain=False)


def _theirs(shift: Shift) -> Cause:
    """The baseline moved: because of its version, another part of the stack, the machine, or for an unknown reason."""
    then, now = shift.baseline
    moved = {"who": now.name, "ratio": _side_ratio(shift, shift.baseline)}
    if shift.stack:
        family = now.name.partition("-")[0]
        own = {"inductor": "torch", "eager": "torch"}.get(family, family)  # the distribution, as the stack names it
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
    moved: dict[str, Any] = {"who": None, "ratio": _side_ratio(shift, shift.own)}
    if shift.stack:
        return Cause(Kind.STACK, CauseCode.STACK, moved | {"events": _events(shift)}, certain=False)
    if (clock := _clock(shift, shift.own)) is not None:
        return Cause(Kind.MACHINE, CauseCode.CLOCK, moved | {"clock": clock}, certain=False)
    args = {"ratio": moved["ratio"], "since": shift.before}
    return Cause(Kind.UNKNOWN, CauseCode.SMALL_STEPS, args, certain=False)


def _explains(shift: Shift, ratio: float) -> bool:
    """Whether a side that changed by this ratio accounts for the change of the distance."""
    return abs(ratio - 1) > shift.smallest_change and (ratio > 1) is (shift.wider > 1)


def _side_ratio(shift: Shift, sides: tuple[GapSide, GapSide]) -> float:
    then, now = sides
    return quotient(now.took, then.took, metric_of(shift.case)) or 1.0


def _clock(shift: Shift, sides: tuple[GapSide, GapSide]) -> float | None:
    """The ratio of SM clocks between the sessions, if it can be the cause and agrees with the direction."""
    if not metric_of(shift.case).varies:
        return None
    then, now = sides
    return clock_ratio(now.facts, then.facts, slower=_side_ratio(shift, sides) > 1)


def _events(shift: Shift) -> list[list[str]]:
    return [[name, before, after] for name, (before, after) in shift.stack.items()]
