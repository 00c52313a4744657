"""Since when a case is behind SOTA, and whether the gap grew.  Pure; never mixed up with being a regression.

Who moved is the answer of `service.domain.attribution.gap`.
"""

from dataclasses import dataclass


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


def behind_since(now: SotaDistance, before: SotaDistance | None, smallest_change: float) -> str:
    """Since when a case is behind, and whether the gap grew; `before` is the mainline revision measured before."""
    if before is None:
        return f"behind {now.provider} since {now.revision}, the first revision measured"
    if not before.behind:
        return f"behind {now.provider} since {now.revision}"
    since = f"behind {now.provider} since {before.since or before.revision}"
    if abs(now.ratio / before.ratio - 1) <= smallest_change:
        return f"{since}; the gap did not change"
    grew = "grew" if now.ratio > before.ratio else "shrank"
    return f"{since}; the gap {grew} from {before.ratio:.2f} to {now.ratio:.2f} times"


def still_open(now: SotaDistance, before: SotaDistance) -> str:
    """At a case with a known gap that this session could neither show nor close."""
    since = f"behind {now.provider} since {before.since or before.revision}"
    known = f"{before.ratio:.2f} times at {before.revision}"
    return f"{since}, {known}; this session could not decide whether it still is ({now.ratio:.2f} times)"
