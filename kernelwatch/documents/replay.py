"""Decisions that another policy would have made."""

from typing import Any

from pydantic import Field

from .base import Document, Moment, Number


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
