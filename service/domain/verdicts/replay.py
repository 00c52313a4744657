"""Replay stored sessions under another policy.  Pure: results and old verdicts in, differences out.

A session stopped where its own policy was satisfied.  Where another one would have gone on, nobody knows what it would
have seen: that is *undecided*, and never counted as right or wrong.
"""

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from enum import StrEnum

from kernels.cases import Metric
from service.domain.metrics import metric_of
from service.domain.policy.policy import Policy
from service.domain.states import Outcome
from service.domain.stats.sequential import Decision, Effects, Zone
from service.domain.verdicts.analysis import NONE_KNOWN, KnownVariances, Reading, readings
from service.domain.verdicts.judge import Verdict, Why, judge, trials_until_next_look, wanted
from service.domain.verdicts.samples import Cell, Name


class Fate(StrEnum):
    """How a new policy changes whether a case alarms."""

    QUIET = "quiet"  # did not alarm, and would not
    STAYS = "stays"  # alarmed, and would again
    NEW = "new"  # did not alarm, and would
    MISSED = "missed"  # alarmed, and would not
    SPARED = "spared"  # the same, of what a person dismissed: a false alarm less
    UNDECIDED = "undecided"  # it would have requested trials that were never made


@dataclass(frozen=True)
class Replayed:
    """One case of one run, judged once more.  Trials of head against parent; those that lack were never made."""

    provider: str
    case: str
    fate: Fate
    outcome_before: Outcome | None  # None where nothing is stored
    verdict: Verdict
    trials_made: int
    trials_used: int
    trials_lacking: int

    @property
    def metric(self) -> Metric:
        return metric_of(self.case)


@dataclass(frozen=True)
class Sum:
    """Counts over many cases; the last four count flags against SOTA and against the pinned baseline."""

    cases: int = 0
    alarmed: int = 0
    stay: int = 0
    new: int = 0
    missed: int = 0
    spared: int = 0
    undecided: int = 0
    trials_made: int = 0
    trials_used: int = 0
    trials_lacking: int = 0
    behind_sota_before: int = 0
    behind_sota: int = 0
    slower_than_pinned_before: int = 0
    slower_than_pinned: int = 0

    def __add__(self, other: "Sum") -> "Sum":
        return Sum(*(getattr(self, field.name) + getattr(other, field.name) for field in fields(self)))


Group = tuple[str, Metric]  # provider, metric


def replay(
    cells: Sequence[Cell],
    before: Mapping[Name, Outcome],
    dismissed: Collection[Name],
    policy: Policy,
    variances: KnownVariances = NONE_KNOWN,
) -> list[Replayed]:
    """Judge the cells of one run by `policy`; `before` says how they were judged, `variances` is as for `judge`.

    Trials are read in the order in which they were made, and only as many as the policy would have requested.
    """
    verdicts, read = judge(cells, policy, variances), readings(cells, policy, variances)
    asked = wanted(cells, policy, variances)
    cases = []
    for cell in cells:
        verdict, seen = verdicts[cell.name], read.get(cell.name)
        used = seen.first.trials + seen.fresh.trials if seen else 0
        made = len(cell.screened.effects()) + len(cell.confirmed.effects()) if seen else 0
        lacking = _lacking(seen, asked.get(cell.name), policy) if seen else 0
        then = before.get(cell.name)
        fate = _fate(then, verdict.outcome, lacking > 0, cell.name in dismissed)
        cases.append(Replayed(*cell.name, fate, then, verdict, made, used, lacking))
    return cases


def _lacking(seen: Reading, asked: Why | None, policy: Policy) -> int:
    """Number of trials that this policy would have requested next, which were never made.

    It has to be told what they say where it read the last trials there are, at no look of its own.
    """
    parts: tuple[tuple[Why, Effects, Decision, tuple[int, ...]], ...] = (
        ("look", seen.screened, seen.first, policy.screening),
        ("confirm", seen.confirmed, seen.fresh, policy.confirmation),
    )
    for why, effects, last, steps in parts:
        to_the_end = last.trials == sum(effect is not None for effect in effects)
        if asked == why or (last.zone is not Zone.OPEN and to_the_end and len(effects) not in steps):
            return trials_until_next_look(len(effects), policy, why)
    return 0


def _fate(before: Outcome | None, after: Outcome, lacking: bool, dismissed: bool) -> Fate:
    alarmed, alarms = before is Outcome.REGRESSION, after is Outcome.REGRESSION
    if lacking and before is not after:
        return Fate.UNDECIDED
    if alarmed and not alarms:
        return Fate.SPARED if dismissed else Fate.MISSED
    return (Fate.STAYS if alarmed else Fate.NEW) if alarms else Fate.QUIET


def summed(found: Iterable[Replayed]) -> dict[Group, Sum]:
    """By provider and metric."""
    groups = defaultdict[Group, list[Replayed]](list)
    for case in found:
        groups[case.provider, case.metric].append(case)
    return {group: _sum(cases) for group, cases in groups.items()}


def _sum(cases: Sequence[Replayed]) -> Sum:
    fates = Counter(case.fate for case in cases)
    return Sum(
        cases=len(cases),
        alarmed=sum(case.outcome_before is Outcome.REGRESSION for case in cases),
        stay=fates[Fate.STAYS],
        new=fates[Fate.NEW],
        missed=fates[Fate.MISSED],
        spared=fates[Fate.SPARED],
        undecided=fates[Fate.UNDECIDED],
        trials_made=sum(case.trials_made for case in cases),
        trials_used=sum(case.trials_used for case in cases),
        trials_lacking=sum(case.trials_lacking for case in cases),
    )
