"""Did this revision change the case?  Pure: samples in, verdicts out; no clock, no session, no client.

The unit of sampling is the launch (a set of fresh processes): for each launch the log of candidate over baseline is
taken round by round, because both sides of a round saw the same machine, and the median of its rounds stands for the
launch.  A t interval over the launches gives the verdict.  What looks like a change is only a *suspicion*: fresh
launches, which had no part in raising it, decide alone whether there is one.

The interface for better statistics: `judge` (all cells of a run at once, so that a method may look at the family) and
`wanted` (which cases deserve more launches).  Nothing else in the service knows how a verdict is reached.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from statistics import fmean, median, stdev

from scipy.special import stdtrit

from kernels.words import Comparison
from service.lanes import words
from service.policy import Policy

Rounds = Sequence[float | None]  # in the unit of the lane, one a round; None where the round was lost


class Outcome(StrEnum):
    REGRESSION = "regression"
    IMPROVEMENT = "improvement"
    STEADY = "steady"
    INCONCLUSIVE = "inconclusive"
    INVALID = "invalid"  # the revision computes something wrong, or not the same thing twice
    FAILED = "failed"  # it could not be measured
    NEW = "new"  # there is nothing to compare with
    REMOVED = "removed"  # the mainline measured it before, and the recipe asks for it no longer


CHANGES = (Outcome.REGRESSION, Outcome.IMPROVEMENT)
# How two kinds of reasons begin, by which a reader of stored verdicts knows them again.
KNOWN_BEFORE = "already so before this revision: "
SESSION_ENDED = "the session ended before "
THROTTLED = "were lost to a throttled device"  # and how the reason ends that names how many


@dataclass(frozen=True)
class Pairs:
    """Candidate and baseline, launch by launch and round by round, in the unit of their lane."""

    candidate: tuple[Rounds, ...] = ()
    baseline: tuple[Rounds, ...] = ()

    def effects(self) -> list[float]:
        """One number a launch: the median over rounds of log(candidate / baseline)."""
        launches = (
            [math.log(mine / theirs) for mine, theirs in zip(one, other, strict=False) if mine and theirs]
            for one, other in zip(self.candidate, self.baseline, strict=False)
        )
        return [median(rounds) for rounds in launches if rounds]

    @property
    def rounds(self) -> int:
        return sum(len(rounds) for rounds in self.candidate)


@dataclass(frozen=True)
class Cell:
    """All that is known of one case of one provider in one run."""

    provider: str
    case: str
    looked: Pairs = Pairs()
    confirmed: Pairs = Pairs()  # fresh launches, asked for after a suspicion
    control: Pairs = Pairs()  # the baseline against a second copy of itself
    trouble: tuple[Outcome, str] | None = None  # invalid or failed, and why
    baseline_trouble: str | None = None  # why the baseline has no times here, when it has none
    same_code: bool = False  # facts say that head and parent compiled to the same code
    quarantined: str | None = None  # why nobody is to be alarmed by this case

    @property
    def name(self) -> tuple[str, str]:
        return self.provider, self.case


@dataclass(frozen=True)
class Verdict:
    outcome: Outcome
    reason: str
    comparison: Comparison | None = None
    confirmed: bool = False
    control: float | None = None  # the A/A control's ratio at this case: the copy over the original
    suspected: bool = False  # the first launches looked like a change
    p: float | None = None  # of the fresh launches where there are any, else of the first
    q: float | None = None  # p among the family of the run
    smallest: float | None = None  # the smallest relevant change that held here, relative


@dataclass(frozen=True)
class Suspicion:
    """What the first launches say, before anything was confirmed."""

    outcome: Outcome
    comparison: Comparison


def judge(cells: Sequence[Cell], policy: Policy) -> dict[tuple[str, str], Verdict]:
    """A verdict for every cell of a run, each by the limits of its lane."""
    return {cell.name: _controlled(cell, policy.at(cell.case)) for cell in cells}


def _controlled(cell: Cell, policy: Policy) -> Verdict:
    control = compare(cell.control, policy.confidence)
    return replace(_judge(cell, policy), control=control.ratio if control else None)


def wanted(cells: Sequence[Cell], policy: Policy) -> Mapping[tuple[str, str], str]:
    """The cells that deserve more launches: "look" for the undecided, "confirm" for the suspected.

    Empty when everything is decided or the budget (the last of `policy.looks`, for each of the two) is spent.
    """
    asked: dict[tuple[str, str], str] = {}
    for cell in cells:
        if cell.trouble or cell.baseline_trouble or not cell.looked.baseline:
            continue
        limits = policy.at(cell.case)
        if _undecided(cell.looked, limits):
            asked[cell.name] = "look"
        elif suspect(cell.looked, limits).outcome in CHANGES and _undecided(cell.confirmed, limits):
            asked[cell.name] = "confirm"
    return asked


def _undecided(pairs: Pairs, policy: Policy) -> bool:
    """Could more launches, within the budget, still settle what these leave open?"""
    launches = len(pairs.effects())
    if launches < policy.looks[0]:
        return True
    return launches < policy.looks[-1] and suspect(pairs, policy).outcome is Outcome.INCONCLUSIVE


def launches_until_next_look(done: int, policy: Policy) -> int:
    """How many launches the undecided get before they are looked at again; 0 when the budget is spent.

    The suspected are confirmed by the same steps.
    """
    return next((look - done for look in policy.looks if look > done), 0)


def suspect(pairs: Pairs, policy: Policy) -> Suspicion:
    """What these launches say by themselves: a change past the smallest relevant one, none, or nothing certain."""
    comparison = compare(pairs, policy.confidence)
    if comparison is None:
        return Suspicion(Outcome.INCONCLUSIVE, Comparison(1.0, 0.0, math.inf, pairs.rounds, 0))
    slower, faster = 1 + policy.smallest_change, 1 / (1 + policy.smallest_change)
    if comparison.low > 1 and comparison.ratio >= slower:
        return Suspicion(Outcome.REGRESSION, comparison)
    if comparison.high < 1 and comparison.ratio <= faster:
        return Suspicion(Outcome.IMPROVEMENT, comparison)
    if faster < comparison.low and comparison.high < slower:
        return Suspicion(Outcome.STEADY, comparison)
    return Suspicion(Outcome.INCONCLUSIVE, comparison)


def compare(pairs: Pairs, confidence: float) -> Comparison | None:
    """The ratio with a t interval over launches; None with fewer than two launches.

    What does not vary at all, as bytes do not, has an interval without width, and its ratio decides.
    """
    effects = pairs.effects()
    if len(effects) < 2:
        return None
    centre = fmean(effects)
    half = float(stdtrit(len(effects) - 1, 0.5 + confidence / 2)) * stdev(effects) / math.sqrt(len(effects))
    return Comparison(math.exp(centre), math.exp(centre - half), math.exp(centre + half), pairs.rounds, len(effects))


def _judge(cell: Cell, policy: Policy) -> Verdict:
    if cell.trouble:
        outcome, reason = cell.trouble
        return Verdict(outcome, reason)
    if cell.baseline_trouble or not cell.looked.baseline:
        return Verdict(Outcome.NEW, cell.baseline_trouble or "there is no earlier revision to compare with")
    suspicion = suspect(cell.looked, policy)
    within = f"within {in_percent(policy.smallest_change)} of its baseline"
    if suspicion.outcome is Outcome.STEADY:
        return Verdict(Outcome.STEADY, within, suspicion.comparison)
    if suspicion.outcome is Outcome.INCONCLUSIVE:
        if _undecided(cell.looked, policy):
            return _inconclusive(suspicion, _cut_short(cell.looked, policy, "more launches could settle it"))
        return _inconclusive(
            suspicion, f"the interval is still too wide after {suspicion.comparison.launches} launches"
        )
    fresh = suspect(cell.confirmed, policy)
    if fresh.outcome is Outcome.STEADY:
        settled = f"{within}: {fresh.comparison.launches} fresh launches did not repeat what looked like a change"
        return Verdict(Outcome.STEADY, settled, fresh.comparison)
    if (lean := control_lean(cell, policy)) is not None:
        distrusted = f"the A/A control leaned by {lean:.1%}, so this session's times are not trusted"
        return _inconclusive(suspicion, distrusted)
    return _confirm(cell, suspicion, fresh, policy)


def _confirm(cell: Cell, suspicion: Suspicion, fresh: Suspicion, policy: Policy) -> Verdict:
    if fresh.outcome is Outcome.INCONCLUSIVE and _undecided(cell.confirmed, policy):
        why = _cut_short(cell.confirmed, policy, "fresh launches could settle it")
        return _inconclusive(suspicion, f"it looked like a change, and {why}")
    if fresh.outcome is not suspicion.outcome:
        return _inconclusive(suspicion, "it looked like a change, and fresh launches did not confirm it")
    if cell.same_code:
        reason = (
            "it ran the same compiled kernels as its baseline, launched alike, so the change is not in the code: "
            "suspect the machine"
        )
        return _inconclusive(fresh, reason)
    said = words(cell.case)
    word = said.more if suspicion.outcome is Outcome.REGRESSION else said.less
    # The fresh launches alone give the size: those that raised the suspicion were chosen for being large.
    ratio, launches = fresh.comparison.ratio, fresh.comparison.launches
    size = f"{abs(ratio - 1):.1%} {word} than" if ratio < 2 else f"{ratio:.1f} times {said.as_much}"
    reason = f"{size} its baseline, confirmed by {launches} fresh launches"
    if not cell.control.effects():
        reason += ", without an A/A control at this case"
    return Verdict(suspicion.outcome, reason, fresh.comparison, confirmed=True)


def _cut_short(pairs: Pairs, policy: Policy, settled: str) -> str:
    """Why fewer launches count than the policy allows: they were not made, or all their rounds were dropped."""
    made, counted = sum(bool(rounds) for rounds in pairs.candidate), len(pairs.effects())
    if made < policy.looks[-1]:
        return f"{SESSION_ENDED}{settled}"
    return f"the rounds of {made - counted} of {made} launches {THROTTLED}"


def _inconclusive(seen: Suspicion, reason: str) -> Verdict:
    return Verdict(Outcome.INCONCLUSIVE, reason, seen.comparison if seen.comparison.launches else None)


def in_percent(share: float) -> str:
    """`2%`, `0.5%`, `12.3%`: three digits, so that a small limit is not rounded to nothing."""
    return f"{share:.0%}" if abs(share) >= 1 else f"{share * 100:.3g}%"


def control_lean(cell: Cell, policy: Policy) -> float | None:
    """How far the A/A control of this case is off, when it is further than the policy allows and not by chance."""
    comparison = compare(cell.control, policy.confidence)
    if comparison is None or comparison.low <= 1 <= comparison.high:
        return None
    lean = comparison.ratio - 1
    return lean if abs(lean) > policy.control_limit else None
