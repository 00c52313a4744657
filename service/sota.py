"""Is this case behind SOTA, since when, and who moved?  Pure; never mixed up with being a regression."""

from dataclasses import dataclass

from kernels.words import Comparison
from service.policy import Policy
from service.verdicts import Pairs, compare


@dataclass(frozen=True)
class Standing:
    """How one mainline revision stood against SOTA.  Times in microseconds."""

    revision: str  # short name, for people
    ratio: float
    own_us: float
    sota_us: float
    stack: int | None = None
    behind: bool = False
    since: str | None = None  # the revision from which it has been behind


@dataclass(frozen=True)
class AgainstSota:
    comparison: Comparison | None
    behind: bool
    reason: str


def stand(pairs: Pairs, sota: str, policy: Policy, sota_trouble: str | None = None) -> AgainstSota:
    """The flag for one case: slower than `sota` beyond the policy, and not by chance."""
    comparison = compare(pairs, policy.confidence)
    if comparison is None:
        return AgainstSota(None, False, sota_trouble or f"{sota} has no times for this case")
    limit = 1 + policy.behind
    if comparison.low > limit:
        return AgainstSota(comparison, True, f"takes {comparison.ratio:.2f} times as long as {sota}")
    if comparison.high < 1:
        return AgainstSota(comparison, False, f"{1 / comparison.ratio:.2f} times as fast as {sota}")
    return AgainstSota(
        comparison,
        False,
        f"within {policy.behind:.0%} of {sota}" if comparison.high <= limit else f"not clearly behind {sota}",
    )


def told(now: Standing, before: Standing | None, sota: str, parent_ratio: float | None, policy: Policy) -> str:
    """One sentence: since when it is behind, whether the gap grew, and who moved.

    `before` is the mainline revision measured before this one; `parent_ratio` is head over parent from this very
    session, which separates our own move from the baseline's much better than times of two sessions do.
    """
    if before is None:
        return f"behind {sota} since {now.revision}, the first revision measured."
    if not before.behind:
        return f"behind {sota} since {now.revision}: {_who_moved(now, before, sota, parent_ratio, policy)}."
    since = f"behind {sota} since {before.since or before.revision}"
    if abs(now.ratio / before.ratio - 1) <= policy.smallest_change:
        return f"{since}; the gap is as wide as it was."
    grew = "grew" if now.ratio > before.ratio else "shrank"
    moved = _who_moved(now, before, sota, parent_ratio, policy)
    return f"{since}; the gap {grew} from {before.ratio:.2f} to {now.ratio:.2f} times: {moved}."


def _who_moved(now: Standing, before: Standing, sota: str, parent_ratio: float | None, policy: Policy) -> str:
    if parent_ratio is not None and abs(parent_ratio - 1) > policy.smallest_change:
        return (
            f"this revision is {abs(parent_ratio - 1):.0%} {'slower' if parent_ratio > 1 else 'faster'} than its parent"
        )
    theirs = now.sota_us / before.sota_us - 1
    if abs(theirs) > policy.smallest_change:
        cause = " after a change of stack" if now.stack != before.stack else ""
        return f"{sota} became {abs(theirs):.0%} {'slower' if theirs > 0 else 'faster'}{cause}, not this revision"
    ours = now.own_us / before.own_us - 1
    if abs(ours) > policy.smallest_change:
        return f"our own time moved by {ours:+.0%} since {before.revision}, in steps too small to be flagged one by one"
    return "neither side moved by itself enough to name it"
