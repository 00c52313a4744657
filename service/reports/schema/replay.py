"""Decisions that another policy would have made."""

from typing import Any, Self

from pydantic import Field

from service.domain.verdicts.replay import Sum
from service.reports.schema.base import Document, Moment, Number
from service.reports.views import Replay, ReplayedCase
from service.reports.words import of_replayed


class PolicyItem(Document):
    """One version of a policy."""

    digest: str = Field(description="SHA-256; `policy_version` of the verdicts that it made.")
    created_at: Moment


class PolicyDocument(PolicyItem):
    """One version of a policy, as it was when it made verdicts."""

    values: dict[str, Any]


class ReplaySumItem(Document):
    """Counts over many cases."""

    cases: int
    alarmed: int = Field(description="Cases that were reported as a change.")
    stay: int
    new: int
    missed: int
    spared: int = Field(description="Dismissed by a person, and not reported by this policy.")
    undecided: int = Field(description="This policy needs trials that were never made.")
    trials_made: int
    trials_used: int
    trials_lacking: int
    behind_sota_before: int
    behind_sota: int
    slower_than_pinned_before: int
    slower_than_pinned: int

    @classmethod
    def fields_of(cls, own: Sum) -> dict[str, int]:
        names = ("cases", "alarmed", "stay", "new", "missed", "spared", "undecided")
        return {name: getattr(own, name) for name in names} | {
            "trials_made": own.made,
            "trials_used": own.used,
            "trials_lacking": own.lacking,
            "behind_sota_before": own.behind_before,
            "behind_sota": own.behind,
            "slower_than_pinned_before": own.leaks_before,
            "slower_than_pinned": own.leaks,
        }


class ReplayGroupItem(ReplaySumItem):
    """The counts of one device, provider and metric."""

    device: str
    provider: str
    metric: str


class ReplayedItem(Document):
    """A case that this policy decides differently, or that the stored trials cannot decide."""

    run_id: int
    target: str
    revision: str
    device: str
    pull: int | None
    provider: str
    case: str
    fate: str = Field(description="new, missed, spared or undecided.")
    outcome_before: str | None
    outcome: str
    ratio: Number
    low: Number
    high: Number
    reason: str
    trials_made: int
    trials_used: int
    trials_lacking: int

    @classmethod
    def of(cls, found: ReplayedCase) -> Self:
        one = found.replayed
        comparison = one.verdict.comparison
        return cls(
            run_id=found.run_id,
            target=found.target,
            revision=found.revision,
            device=found.device,
            pull=found.pull,
            provider=one.provider,
            case=one.case,
            fate=one.fate.value,
            outcome_before=one.before.value if one.before else None,
            outcome=one.verdict.outcome.value,
            ratio=comparison.ratio if comparison else None,
            low=comparison.low if comparison else None,
            high=comparison.high if comparison else None,
            reason=of_replayed(one),
            trials_made=one.made,
            trials_used=one.used,
            trials_lacking=one.lacking,
        )


class EqualCodeItem(Document):
    """Comparisons of equal code."""

    comparisons: int
    alarmed_before: int
    alarmed: int


class ReplayDocument(Document):
    """A policy applied to stored runs."""

    policy_versions: dict[str, str] = Field(description="By device.")
    runs: int
    since: Moment | None
    until: Moment | None
    total: ReplaySumItem
    groups: list[ReplayGroupItem]
    cases: list[ReplayedItem]
    equal_code: EqualCodeItem

    @classmethod
    def of(cls, replay: Replay) -> Self:
        groups = [
            ReplayGroupItem(device=device, provider=provider, metric=metric.value, **ReplaySumItem.fields_of(own))
            for (device, provider, metric), own in sorted(replay.sums.items())
        ]
        return cls(
            policy_versions=replay.versions,
            runs=replay.runs,
            since=replay.first_at,
            until=replay.last_at,
            total=ReplaySumItem(**ReplaySumItem.fields_of(replay.whole)),
            groups=groups,
            cases=[ReplayedItem.of(one) for one in replay.cases],
            equal_code=EqualCodeItem(
                comparisons=replay.equal.comparisons,
                alarmed_before=replay.equal_before.alarmed,
                alarmed=replay.equal.alarmed,
            ),
        )
