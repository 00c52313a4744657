"""What sessions of the kernels' study say: each case's times side by side, and how far the goals are met.  Pure.

A ratio is Quack's time over another's: above 1 the other is faster.  It is taken within a launch, where both had the
same turns: the median over the rounds, then the geometric mean over the launches.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean, median
from typing import Any

from ..words import OPS, Case, Direction

OURS, BASELINE, CONTROL = "triton", "quack", "control"
LARGE = 64e6  # bytes; what moves less is not told by bandwidth: launches and tails dominate


@dataclass(frozen=True)
class Launch:
    """The rounds of each contender in us, None where a round did not count; the copy ceiling of its session."""

    us: Mapping[str, Sequence[float | None]]
    copy_gb_s: float | None = None


@dataclass(frozen=True)
class Row:
    """A case in all its launches.  `missing` says of a contender why it has no time, beginning with its state."""

    case: Case
    suites: tuple[str, ...]
    launches: tuple[Launch, ...] = ()
    missing: Mapping[str, str] = field(default_factory=dict)
    l2_resident: bool = False

    def us(self, name: str) -> float | None:
        """The median over its launches of the median over the rounds."""
        return median(found) if (found := self._each(name)) else None

    def gb_s(self, name: str) -> float | None:
        us = self.us(name)
        return None if us is None else self.case.least_bytes / us / 1e3

    def of_ceiling(self, name: str) -> float | None:
        """Its share of what a copy moved in the same session."""
        shares = [
            self.case.least_bytes / us / 1e3 / launch.copy_gb_s
            for launch in self.launches
            if launch.copy_gb_s and (us := _middle(launch.us.get(name, ()))) is not None
        ]
        return median(shares) if shares else None

    def ratio(self, name: str, than: str = BASELINE) -> float | None:
        """Time of `than` over the time of `name`, of the launches that have both; None where there is none."""
        logs = []
        for launch in self.launches:
            both = zip(launch.us.get(than, ()), launch.us.get(name, ()), strict=False)
            if pairs := [math.log(theirs / its) for theirs, its in both if theirs and its]:
                logs.append(median(pairs))
        return math.exp(fmean(logs)) if logs else None

    def lacks(self, name: str, state: str = "") -> bool:
        """Has it no time here, for this reason?"""
        return self.us(name) is None and self.missing.get(name, "").startswith(state)

    def _each(self, name: str) -> list[float]:
        found = (_middle(launch.us.get(name, ())) for launch in self.launches)
        return [us for us in found if us is not None]


@dataclass(frozen=True)
class Goal:
    """What is wanted of some cases; `ceiling` of those that move more than LARGE."""

    name: str
    suites: tuple[str, ...]
    norm: str = ""  # any
    direction: Direction | None = None
    weight_dtype: str = ""
    geomean: float | None = None
    worst: float = 1.0
    ceiling: float | None = None

    def covers(self, row: Row) -> bool:
        case = row.case
        return (
            not {*self.suites}.isdisjoint(row.suites)
            and self.norm in ("", OPS[case.op].norm)
            and self.direction in (None, case.direction)
            and self.weight_dtype in ("", case.weight_dtype)
        )


@dataclass(frozen=True)
class Outcome:
    """How far a goal is met.  Left out of the ratios, and counted: what Quack does not support, and what is missing."""

    goal: Goal
    ratios: tuple[tuple[float, Case], ...]  # the worst first
    lowest: tuple[float, Case] | None  # share of the ceiling, of those that move more than LARGE
    unsupported: int  # by Quack
    failed: int  # Quack was measured, ours was not
    missing: int  # not measured at all, or without Quack's time

    @property
    def geomean(self) -> float | None:
        return geomean(ratio for ratio, _ in self.ratios)

    @property
    def below(self) -> int:
        return sum(ratio < self.goal.worst for ratio, _ in self.ratios)

    @property
    def met(self) -> bool | None:
        """None where what was measured meets it and something is missing, or nothing was wanted."""
        goal, mean = self.goal, self.geomean
        if goal.geomean is None or mean is None:
            return False if goal.geomean and self.failed else None
        if self.failed or mean < goal.geomean or self.below:
            return False
        if goal.ceiling is not None and self.lowest is not None and self.lowest[0] < goal.ceiling:
            return False
        incomplete = self.missing or (goal.ceiling is not None and self.lowest is None)
        return None if incomplete else True


def goals() -> list[Goal]:
    fwd, bwd = Direction.FWD, Direction.BWD
    quack, others = ("quack",), ("models", "small", "awkward")
    wanted = [("rmsnorm", fwd, 1.10), ("rmsnorm", bwd, 1.20), ("layernorm", fwd, 1.15), ("layernorm", bwd, 1.20)]
    found = [
        Goal(f"{named(norm, way)}, {weight} weight", quack, norm, way, weight, mean, 1.0, 0.92)
        for norm, way, mean in wanted
        for weight in (("fp32", "bf16") if norm == "rmsnorm" else ("fp32",))
    ]
    found.append(Goal("pr101 sweep, backward", ("pr101",), direction=bwd, geomean=1.20, worst=1.0))
    found.append(Goal("models, small, awkward, both directions", others, geomean=1.10, worst=0.98))
    found += [
        Goal(f"of these: {suite}, {way}", (suite,), direction=way, worst=0.98) for suite in others for way in (fwd, bwd)
    ]
    return found


def outcome(goal: Goal, rows: Sequence[Row]) -> Outcome:
    covered = [row for row in rows if goal.covers(row)]
    ratios = [(ratio, row.case) for row in covered if (ratio := row.ratio(OURS)) is not None]
    shares = [
        (share, row.case)
        for row in covered
        if row.case.least_bytes > LARGE and (share := row.of_ceiling(OURS)) is not None
    ]
    unsupported = sum(row.lacks(BASELINE, "unsupported") for row in covered)
    failed = sum(row.us(BASELINE) is not None and row.ratio(OURS) is None for row in covered)
    missing = len(covered) - len(ratios) - unsupported - failed
    return Outcome(goal, tuple(sorted(ratios)), min(shares, default=None), unsupported, failed, missing)


def geomean(ratios: Iterable[float]) -> float | None:
    logs = [math.log(ratio) for ratio in ratios]
    return math.exp(fmean(logs)) if logs else None


def spread(ratios: Sequence[float]) -> float:
    """Between the smallest and the largest, as a share of their mean."""
    return (max(ratios) - min(ratios)) / fmean(ratios)


def named(norm: str, direction: Direction) -> str:
    return (
        f"{'RMSNorm' if norm == 'rmsnorm' else 'LayerNorm'} {'forward' if direction is Direction.FWD else 'backward'}"
    )


# -- reading sessions ------------------------------------------------------------------------------------------------


def copy_gb_s(session: Mapping[str, Any]) -> float | None:
    """The session's copy ceiling: the median of its measurements."""
    found = [each["copy_gb_s"] for each in session["ceilings"] if "copy_gb_s" in each]
    return median(found) if found else None


def rows(sessions: Sequence[Mapping[str, Any]]) -> list[Row]:
    """Each case with the launches of all sessions, in the order in which the sessions have them."""
    found: dict[str, Row] = {}
    for session in sessions:
        ceiling = copy_gb_s(session)
        for text, kept in session["cases"].items():
            wrong = {name for name, (state, _) in kept["missing"].items() if state == "invalid"}
            row = found.get(text) or Row(Case.parse(text), tuple(kept["suites"]))
            launches = tuple(
                Launch({name: us for name, us in launch["us"].items() if name not in wrong}, ceiling)
                for launch in kept["launches"]
            )
            reasons = {name: f"{state}: {reason}" for name, (state, reason) in kept["missing"].items()}
            found[text] = Row(
                row.case,
                tuple(dict.fromkeys((*row.suites, *kept["suites"]))),
                row.launches + launches,
                {**row.missing, **reasons},
                row.l2_resident or bool(kept.get("l2_resident")),
            )
    return list(found.values())


def _middle(rounds: Sequence[float | None]) -> float | None:
    counted = [us for us in rounds if us]
    return median(counted) if counted else None
