"""Since when a case is behind SOTA, and whether the gap grew.  Pure; never mixed up with being a regression.

Who moved is the answer of `service.domain.attribution.gap`.
"""

from dataclasses import dataclass

from service.domain.verdicts.reasons import Reason, ReasonCode, reason


@dataclass(frozen=True)
class SotaDistance:
    """How far one mainline revision was from SOTA.  `own` and `sota` in the unit of the case's metric."""

    revision: str  # short name, for people
    provider: str  # who SOTA was
    ratio: float
    own: float
    sota: float
    stack: int | None = None
    behind: bool = False
    since: str | None = None  # the revision from which it has been behind
    is_open: bool = False  # the session could neither show that it is behind nor that it is not


def behind_since(now: SotaDistance, before: SotaDistance | None, smallest_change: float) -> Reason:
    """Since when a case is behind, and whether the gap grew; `before` is the mainline revision measured before."""
    was_behind = before is not None and before.behind
    return reason(
        ReasonCode.BEHIND_SINCE,
        baseline=now.provider,
        since=(before.since or before.revision) if before and was_behind else now.revision,
        first=before is None,
        then=before.ratio if before and was_behind else None,
        now=now.ratio,
        changed=before is not None and abs(now.ratio / before.ratio - 1) > smallest_change,
    )


def still_open(now: SotaDistance, before: SotaDistance) -> Reason:
    """At a case with a known gap that this session could neither show nor close."""
    return reason(
        ReasonCode.BEHIND_OPEN,
        baseline=now.provider,
        since=before.since or before.revision,
        then=before.ratio,
        at=before.revision,
        now=now.ratio,
    )
