"""What sessions of the kernels' study say: each case's times side by side, and how far the goals are met.  Pure.

A ratio is Quack's time over another's: above 1 the other is faster.  It is taken within a trial, where both had the
same turns: the median over the rounds, then the geometric mean over the trials.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from statistics import fmean, median
from typing import Any

from ..cases import OPS, Case, Direction
from ..suites import SUITES

ASKED = ("quack", "pr101", "models", "small", "awkward")
OURS, BASELINE, CONTROL = "triton", "quack", "control"
LARGE = 64e6  # bytes; what moves less is not told by bandwidth: trials and tails dominate
GRAVEST = ("invalid", "failed", "unsupported")  # why there is no time, the gravest state first
Reason = Sequence[str]  # the state and what it says


@dataclass(frozen=True)
class Trial:
    """The rounds of each contender in us, None where a round did not count; the copy ceiling of its session."""

    us: Mapping[str, Sequence[float | None]]
    copy_gb_s: float | None = None


@dataclass(frozen=True)
class Row:
    """A case in all its trials.  `missing` says of a contender why it has no time in some session, state first."""

    case: Case
    suites: tuple[str, ...]
    trials: tuple[Trial, ...] = ()
    missing: Mapping[str, Reason] = field(default_factory=dict)
    l2_resident: bool = False

    def us(self, name: str) -> float | None:
        """The median over its trials of the median over the rounds."""
        return median(found) if (found := self._each(name)) else None

    def gb_s(self, name: str) -> float | None:
        us = self.us(name)
        return None if us is None else self.case.least_bytes / us / 1e3

    def of_ceiling(self, name: str) -> float | None:
        """Its share of what a copy moved in the same session."""
        shares = [
            self.case.least_bytes / us / 1e3 / trial.copy_gb_s
            for trial in self.trials
            if trial.copy_gb_s and (us := _middle(trial.us.get(name, ()))) is not None
        ]
        return median(shares) if shares else None

    def ratio(self, name: str, than: str = BASELINE) -> float | None:
        """Time of `than` over the time of `name`, of the trials that have both; None where there is none."""
        logs = []
        for trial in self.trials:
            both = zip(trial.us.get(than, ()), trial.us.get(name, ()), strict=False)
            if pairs := [math.log(theirs / its) for theirs, its in both if theirs and its]:
                logs.append(median(pairs))
        return math.exp(fmean(logs)) if logs else None

    def state(self, name: str) -> str:
        """The gravest state in which it was found in any session; empty where nothing was said against it."""
        return self.missing[name][0] if name in self.missing else ""

    @property
    def failed(self) -> bool:
        """Was ours wrong or stopped in any session, or is there Quack's time and none of ours beside it?"""
        if self.state(OURS) in ("invalid", "failed"):
            return True
        return self.us(BASELINE) is not None and self.ratio(OURS) is None

    @property
    def unsupported(self) -> bool:
        """Does Quack not do it, and was ours measured?"""
        return self.state(BASELINE) == "unsupported" and self.us(BASELINE) is None and self.us(OURS) is not None

    def _each(self, name: str) -> list[float]:
        found = (_middle(trial.us.get(name, ())) for trial in self.trials)
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

    @property
    def cases(self) -> frozenset[Case]:
        """All that have to be measured before it can be met."""
        return frozenset(case for suite in self.suites for case in cases_of(suite) if self._wants(case))

    def _wants(self, case: Case) -> bool:
        return (
            self.norm in ("", OPS[case.op].norm)
            and self.direction in (None, case.direction)
            and self.weight_dtype in ("", case.weight_dtype)
        )


@dataclass(frozen=True)
class Outcome:
    """How far a goal is met.  A case of ours that failed in one session is counted so even where it has a ratio."""

    goal: Goal
    ratios: tuple[tuple[float, Case], ...]  # the worst first
    lowest: tuple[float, Case] | None  # share of the ceiling, of those that move more than LARGE
    asked: int
    unsupported: int = 0  # by Quack, and measured of ours
    failed: int = 0  # ours was wrong or stopped in any session, or Quack was measured and ours was not
    missing: int = 0  # no ratio: in no session, or without Quack's time
    shareless: int = 0  # not missing, move more than LARGE, and have no share of the ceiling
    l2_resident: int = 0

    @property
    def geomean(self) -> float | None:
        return geomean(ratio for ratio, _ in self.ratios)

    @property
    def below(self) -> int:
        return self.below_by(0.0)

    def below_by(self, more: float) -> int:
        """How many are below by more than this, as a distance between logarithms."""
        return sum(ratio < self.goal.worst * math.exp(-more) for ratio, _ in self.ratios)

    @property
    def met(self) -> bool | None:
        """None where what was measured meets it and something is missing, or nothing was wanted."""
        goal, mean = self.goal, self.geomean
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
    """The suite's, and what is asked beside it: bf16 weights for RMSNorm in `quack`, RMSNorm backward in `small`."""
    texts = list(SUITES[suite])
    rmsnorm = [text for text in texts if text.startswith("rmsnorm.")]
    if suite == "quack":
        texts += [text.replace("bf16-fp32", "bf16") for text in rmsnorm]
    if suite == "small":
        texts += [text.replace(".fwd.", ".bwd.") for text in rmsnorm]
    return tuple(map(Case.parse, texts))


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


def outcome(goal: Goal, rows: Iterable[Row]) -> Outcome:
    """Counts all cases of the goal, also those of which there is no row."""
    asked = goal.cases
    found = [row for row in rows if row.case in asked]
    ratios = [(ratio, row.case) for row in found if (ratio := row.ratio(OURS)) is not None]
    large = {case for case in asked if case.least_bytes > LARGE}
    shares = [(share, row.case) for row in found if row.case in large and (share := row.of_ceiling(OURS)) is not None]
    told = {case for _, case in ratios} | {row.case for row in found if row.failed or row.unsupported}
    return Outcome(
        goal,
        tuple(sorted(ratios)),
        min(shares, default=None),
        asked=len(asked),
        unsupported=sum(row.unsupported and not row.failed for row in found),
        failed=sum(row.failed for row in found),
        missing=len(asked - told),
        shareless=len((large & told) - {case for _, case in shares}),
        l2_resident=sum(row.l2_resident for row in found),
    )


def within(rows: Iterable[Row]) -> list[float]:
    """How far Quack is from a second copy of itself: the distances of the logarithms, the smallest first."""
    return sorted(abs(math.log(ratio)) for row in rows if (ratio := row.ratio(CONTROL)) is not None)


def most_of(distances: Sequence[float], share: float = 0.95) -> float:
    """What so many of them do not exceed; they are in order.  0 where there are none."""
    return distances[math.ceil(share * len(distances)) - 1] if distances else 0.0


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
    """Each case with the trials of all sessions, in the order in which the sessions have them."""
    found: dict[str, Row] = {}
    for session in sessions:
        ceiling = copy_gb_s(session)
        for text, kept in session["cases"].items():
            wrong = {name for name, (state, _) in kept["missing"].items() if state == "invalid"}
            row = found.get(text) or Row(Case.parse(text), tuple(kept["suites"]))
            trials = tuple(
                Trial({name: us for name, us in trial["us"].items() if name not in wrong}, ceiling)
                for trial in kept["trials"]
            )
            found[text] = Row(
                row.case,
                tuple(dict.fromkeys((*row.suites, *kept["suites"]))),
                row.trials + trials,
                gravest(row.missing, kept["missing"]),
                row.l2_resident or bool(kept.get("l2_resident")),
            )
    return list(found.values())


def gravest(known: Mapping[str, Reason], more: Mapping[str, Reason]) -> dict[str, Reason]:
    """Of each contender that either tells of, the graver; the first of those that are equal."""
    both = {name: [each[name] for each in (known, more) if name in each] for name in {**known, **more}}
    return {name: min(reasons, key=lambda reason: GRAVEST.index(reason[0])) for name, reasons in both.items()}


def differences(sessions: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[int]]]:
    """What is not the same in all sessions: each value, with the numbers of the sessions that have it, from 1 on."""
    told = [_place(session) for session in sessions]
    found: dict[str, dict[str, list[int]]] = {}
    for what in dict.fromkeys(name for each in told for name in each):
        values: dict[str, list[int]] = {}
        for number, each in enumerate(told, 1):
            values.setdefault(each.get(what, "not kept"), []).append(number)
        if len(values) > 1:
            found[what] = values
    return found


def _place(session: Mapping[str, Any]) -> dict[str, str]:
    """GPU, versions and kernels of a session.  The revision is beside them only to be read: documents change it too."""
    stack = {name: str(version) for name, version in session["stack"].items() if name != "device"}
    device = session["stack"].get("device", {})
    told = {"GPU": device.get("name", device.get("kind")), "driver": session.get("driver")}
    told |= {"pace": session.get("pace"), "our kernels": session.get("code", {}).get("kernels")}
    return {name: str(value) for name, value in told.items() if value is not None} | stack


def _middle(rounds: Sequence[float | None]) -> float | None:
    counted = [us for us in rounds if us]
    return median(counted) if counted else None
