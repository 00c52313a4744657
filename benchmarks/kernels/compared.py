"""Evaluate sessions of the study of our kernels: times and ratios of each case, and whether the goals are met.  Pure.

A ratio is Quack's time over another's: above 1 the other is faster.  It is computed within a trial, where both had the
same turns: the median over the rounds, then the geometric mean over the trials.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean, median
from typing import Any

from benchmarks.kernels.drawing import cases_drawn, is_drawn
from kernels.cases import OPS, Case, Direction
from kernels.suites import SUITES

ASKED = ("quack", "pr101", "models", "small", "awkward")
OURS, BASELINE, CONTROL = "triton", "quack", "control"
LARGE = 64e6  # bytes; below it, launches and tails dominate over bandwidth
BY_SEVERITY = ("invalid", "failed", "unsupported")  # states without a time, the most severe first
Reason = Sequence[str]  # state and reason


@dataclass(frozen=True)
class TrialTimes:
    """The rounds of each contender in us, None for a dropped round; and the copy ceiling of its session."""

    us: Mapping[str, Sequence[float | None]]
    copy_gb_s: float | None = None


@dataclass(frozen=True)
class CaseTimes:
    """A case in all its trials.  `missing`: by contender, state and reason why it has no time in some session."""

    case: Case
    suites: tuple[str, ...]
    trials: tuple[TrialTimes, ...] = ()
    missing: Mapping[str, Reason] = field(default_factory=dict)
    l2_resident: bool = False

    def us(self, name: str) -> float | None:
        """The median over its trials of the median over the rounds."""
        return median(found) if (found := self._each(name)) else None

    def gb_s(self, name: str) -> float | None:
        us = self.us(name)
        return None if us is None else self.case.least_bytes / us / 1e3

    def of_ceiling(self, name: str) -> float | None:
        """Its bandwidth relative to that of a copy in the same session."""
        shares = [
            self.case.least_bytes / us / 1e3 / trial.copy_gb_s
            for trial in self.trials
            if trial.copy_gb_s and (us := _median(trial.us.get(name, ()))) is not None
        ]
        return median(shares) if shares else None

    def ratio(self, name: str, than: str = BASELINE) -> float | None:
        """Time of `than` over the time of `name`, from the trials that have both; None if there is none."""
        logs = []
        for trial in self.trials:
            both = zip(trial.us.get(than, ()), trial.us.get(name, ()), strict=False)
            if pairs := [math.log(theirs / its) for theirs, its in both if theirs and its]:
                logs.append(median(pairs))
        return math.exp(fmean(logs)) if logs else None

    def state(self, name: str) -> str:
        """The most severe state in any session; empty if it was always measured."""
        return self.missing[name][0] if name in self.missing else ""

    @property
    def failed(self) -> bool:
        """Was ours invalid or failed in any session, or was Quack measured and ours not?"""
        if self.state(OURS) in ("invalid", "failed"):
            return True
        return self.us(BASELINE) is not None and self.ratio(OURS) is None

    @property
    def unsupported(self) -> bool:
        """Does Quack not support it, and was ours measured?"""
        return self.state(BASELINE) == "unsupported" and self.us(BASELINE) is None and self.us(OURS) is not None

    def _each(self, name: str) -> list[float]:
        found = (_median(trial.us.get(name, ())) for trial in self.trials)
        return [us for us in found if us is not None]


@dataclass(frozen=True)
class Goal:
    """A goal for some cases; `ceiling` applies to those that move more than LARGE."""

    name: str
    suites: tuple[str, ...]
    norm: str = ""  # any
    direction: Direction | None = None
    weight_dtype: str = ""
    geomean: float | None = None
    worst: float = 1.0
    ceiling: float | None = None

    @property
    def cases(self) -> frozenset[Case]:
        """The cases that must be measured to meet it."""
        return frozenset(case for suite in self.suites for case in cases_of(suite) if self._wants(case))

    def _wants(self, case: Case) -> bool:
        return (
            self.norm in ("", OPS[case.op].norm)
            and self.direction in (None, case.direction)
            and self.weight_dtype in ("", case.weight_dtype)
        )


@dataclass(frozen=True)
class Outcome:
    """Whether a goal is met.  A case of ours that failed in one session counts as failed even if it has a ratio."""

    goal: Goal
    ratios: tuple[tuple[float, Case], ...]  # the worst first
    lowest: tuple[float, Case] | None  # share of the ceiling, of cases that move more than LARGE
    wanted: int
    unsupported: int = 0  # by Quack, and measured with ours
    failed: int = 0  # ours was invalid or failed in any session, or Quack was measured and ours was not
    missing: int = 0  # no ratio: in no session, or without Quack's time
    shareless: int = 0  # not missing, more than LARGE, and without a share of the ceiling
    l2_resident: int = 0

    @property
    def geomean(self) -> float | None:
        return geomean(ratio for ratio, _ in self.ratios)

    @property
    def below(self) -> int:
        return self.below_by(0.0)

    def below_by(self, more: float) -> int:
        """How many ratios are below the worst allowed by more than `more`, as a distance between logarithms."""
        return sum(ratio < self.goal.worst * math.exp(-more) for ratio, _ in self.ratios)

    @property
    def met(self) -> bool | None:
        """None if cases are missing and the others meet it, or if there is no goal for the mean."""
        goal = self.goal
        mean = self.geomean
        if goal.geomean is None:
            return None
        if self.failed or self.below or (mean is not None and mean < goal.geomean):
            return False
        if goal.ceiling is not None and self.lowest is not None and self.lowest[0] < goal.ceiling:
            return False
        incomplete = mean is None or self.missing or (goal.ceiling is not None and self.shareless)
        return None if incomplete else True


@cache
def cases_of(suite: str) -> tuple[Case, ...]:
    """The cases of the suite, plus bf16 weights for RMSNorm in `quack` and RMSNorm backward in `small`.

    A name of `drawing.suite_of` is a suite as well.
    """
    if is_drawn(suite):
        return cases_drawn(suite)
    texts = list(SUITES[suite])
    rmsnorm = [text for text in texts if text.startswith("rmsnorm.")]
    if suite == "quack":
        texts += [text.replace("bf16-fp32", "bf16") for text in rmsnorm]
    if suite == "small":
        texts += [text.replace(".fwd.", ".bwd.") for text in rmsnorm]
    return tuple(map(Case.parse, texts))


def goals() -> list[Goal]:
    fwd, bwd = Direction.FWD, Direction.BWD
    quack = ("quack",)
    others = ("models", "small", "awkward")
    wanted = [("rmsnorm", fwd, 1.10), ("rmsnorm", bwd, 1.20), ("layernorm", fwd, 1.15), ("layernorm", bwd, 1.20)]
    found = [
        Goal(f"{title_of(norm, way)}, {weight} weight", quack, norm, way, weight, mean, 1.0, 0.92)
        for norm, way, mean in wanted
        for weight in (("fp32", "bf16") if norm == "rmsnorm" else ("fp32",))
    ]
    found.append(Goal("pr101 sweep, backward", ("pr101",), direction=bwd, geomean=1.20, worst=1.0))
    found.append(Goal("models, small, awkward, both directions", others, geomean=1.10, worst=0.98))
    found += [
        Goal(f"of these: {suite}, {way}", (suite,), direction=way, worst=0.98) for suite in others for way in (fwd, bwd)
    ]
    return found


def outcome(goal: Goal, rows: Iterable[CaseTimes]) -> Outcome:
    """Evaluate a goal over all its cases, also those without a row."""
    wanted = goal.cases
    found = [row for row in rows if row.case in wanted]
    ratios = [(ratio, row.case) for row in found if (ratio := row.ratio(OURS)) is not None]
    large = {case for case in wanted if case.least_bytes > LARGE}
    shares = [(share, row.case) for row in found if row.case in large and (share := row.of_ceiling(OURS)) is not None]
    known = {case for _, case in ratios} | {row.case for row in found if row.failed or row.unsupported}
    return Outcome(
        goal,
        tuple(sorted(ratios)),
        min(shares, default=None),
        wanted=len(wanted),
        unsupported=sum(row.unsupported and not row.failed for row in found),
        failed=sum(row.failed for row in found),
        missing=len(wanted - known),
        shareless=len((large & known) - {case for _, case in shares}),
        l2_resident=sum(row.l2_resident for row in found),
    )


def control_distances(rows: Iterable[CaseTimes]) -> list[float]:
    """Distances between Quack and a second copy of itself, as logarithms, in ascending order."""
    return sorted(abs(math.log(ratio)) for row in rows if (ratio := row.ratio(CONTROL)) is not None)


def quantile(distances: Sequence[float], share: float = 0.95) -> float:
    """The distance that `share` of them do not exceed, of distances in ascending order; 0 if there are none."""
    return distances[math.ceil(share * len(distances)) - 1] if distances else 0.0


def geomean(ratios: Iterable[float]) -> float | None:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(fmean(logs)) if logs else None


def spread(ratios: Sequence[float]) -> float:
    """The difference between the largest and the smallest, relative to their mean."""
    return (max(ratios) - min(ratios)) / fmean(ratios)


def title_of(norm: str, direction: Direction) -> str:
    return (
        f"{'RMSNorm' if norm == 'rmsnorm' else 'LayerNorm'} {'forward' if direction is Direction.FWD else 'backward'}"
    )


# -- reading sessions ------------------------------------------------------------------------------------------------


def copy_gb_s(session: Mapping[str, Any]) -> float | None:
    """The session's copy ceiling: the median of its measurements."""
    found = [each["copy_gb_s"] for each in session["ceilings"] if "copy_gb_s" in each]
    return median(found) if found else None


def rows(sessions: Sequence[Mapping[str, Any]]) -> list[CaseTimes]:
    """Each case with the trials of all sessions, in the order of the sessions."""
    found: dict[str, CaseTimes] = {}
    for session in sessions:
        ceiling = copy_gb_s(session)
        for text, kept in session["cases"].items():
            wrong = {name for name, (state, _) in kept["missing"].items() if state == "invalid"}
            row = found.get(text) or CaseTimes(Case.parse(text), tuple(kept["suites"]))
            trials = tuple(
                TrialTimes({name: us for name, us in trial["us"].items() if name not in wrong}, ceiling)
                for trial in kept["trials"]
            )
            found[text] = CaseTimes(
                row.case,
                tuple(dict.fromkeys((*row.suites, *kept["suites"]))),
                row.trials + trials,
                most_severe(row.missing, kept["missing"]),
                row.l2_resident or bool(kept.get("l2_resident")),
            )
    return list(found.values())


def most_severe(known: Mapping[str, Reason], more: Mapping[str, Reason]) -> dict[str, Reason]:
    """The more severe reason of each contender; the first of equal ones."""
    both = {name: [each[name] for each in (known, more) if name in each] for name in {**known, **more}}
    return {name: min(reasons, key=lambda reason: BY_SEVERITY.index(reason[0])) for name, reasons in both.items()}


def differences(sessions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[int]]]:
    """Properties that differ between sessions: by value, the numbers (from 1) of the sessions that have it."""
    properties = [_properties(session) for session in sessions]
    found: dict[str, dict[str, list[int]]] = {}
    for what in dict.fromkeys(name for each in properties for name in each):
        values: dict[str, list[int]] = {}
        for number, each in enumerate(properties, 1):
            values.setdefault(each.get(what, "not kept"), []).append(number)
        if len(values) > 1:
            found[what] = values
    return found


def _properties(session: Mapping[str, Any]) -> dict[str, str]:
    """GPU, versions and kernels of a session.  Not the revision, which also changes with documents."""
    stack = {name: str(version) for name, version in session["stack"].items() if name != "device"}
    device = session["stack"].get("device", {})
    found = {"GPU": device.get("name", device.get("kind")), "driver": session.get("driver")}
    found |= {"pace": session.get("pace"), "our kernels": session.get("code", {}).get("kernels")}
    return {name: str(value) for name, value in found.items() if value is not None} | stack


def _median(rounds: Sequence[float | None]) -> float | None:
    counted = [us for us in rounds if us]
    return median(counted) if counted else None
