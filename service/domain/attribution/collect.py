"""Gathers from a session what `service.domain.attribution.causes` needs to explain each change.  Pure."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

from kernels.cases import Comparison, Role
from service.domain.attribution.causes import CaseMove, Cause, cause
from service.domain.roofline import ceilings
from service.domain.states import BaselineKind
from service.domain.verdicts.analysis import Doubt
from service.domain.verdicts.baselines import RULES, BaselineVerdict
from service.domain.verdicts.judge import CHANGES, Verdict
from service.domain.verdicts.machine import MachineReadings
from service.domain.verdicts.samples import Cell, Name, Outcome
from service.domain.verdicts.session_result import ContenderResult, SessionResult, same_kernels


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
    alike = _alike(by_name, judged)
    heads, parents = _by_name(result.taken, Role.HEAD), _by_name(result.taken, Role.PARENT)
    throttled = _throttled(result.telemetry)
    copy_gb_s = ceilings(result.telemetry).get("copy_gb_s")
    found = {}
    for name, verdict in judged.items():
        if (seen := _moved(verdict)) is None or name not in parents:
            continue
        cell, slower = by_name[name], seen.ratio > 1
        found[name] = cause(
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
                    throttled=throttled,
                    equal_code_moved=verdict.doubt is Doubt.MACHINE,
                    same_code_moved=alike[slower] - (cell.same_code and verdict.suspected),
                    elsewhere=elsewhere.get(slower, ()),
                ),
                us=parents[name].median,
                copy_gb_s=copy_gb_s,
            )
        )
    return found


def against_baseline(
    result: SessionResult, kind: BaselineKind, verdicts: Mapping[Name, BaselineVerdict]
) -> dict[Name, Cause]:
    """The same for the last good revision and for the pinned baseline, which no fresh trials confirm.

    They took no part in later trials, and the head's clock is that of all trials: it is no reading of those they share.
    """
    [role] = RULES[kind].roles
    heads, others = _by_name(result.taken, Role.HEAD), _by_name(result.taken, role)
    throttled = _throttled(result.telemetry)
    return {
        name: cause(
            CaseMove(
                name[1],
                verdict.comparison.ratio,
                confirmed=False,
                head={**heads[name].facts, "sm_mhz": None},
                baseline=others[name].facts,
                same_code=same_kernels(heads[name], others[name]),
                machine=MachineReadings(lost=_lost(heads[name]), throttled=throttled),
                us=others[name].median or others[name].inexact_median,
                copy_gb_s=ceilings(result.telemetry).get("copy_gb_s"),
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
    return {(one.provider, str(one.case)): one for one in taken if one.role is role}


def _alike(cells: Mapping[Name, Cell], judged: Mapping[Name, Verdict]) -> Counter[bool]:
    """Count the cases with equal code that were slower (True) and faster (False)."""
    same = (verdict for name, verdict in judged.items() if cells[name].same_code and verdict.suspected)
    return Counter(seen.ratio > 1 for verdict in same if (seen := _moved(verdict)) is not None)


def _lost(head: ContenderResult) -> float:
    """The share of the rounds that did not count."""
    rounds = [each for trial in (*head.screened, *head.confirmed) for each in trial]
    return rounds.count(None) / len(rounds) if rounds else 0.0


def _throttled(telemetry: Mapping[str, Any]) -> tuple[str, ...]:
    """For which reasons rounds were dropped."""
    trials: Sequence[Mapping[str, Any]] = telemetry.get("trials", ())
    notes = (note for trial in trials for note in trial.get("telemetry", ()))
    reasons = [str(reason) for note in notes if note.get("when") == "dropped a round" for reason in note["reasons"]]
    return tuple(dict.fromkeys(reasons))
