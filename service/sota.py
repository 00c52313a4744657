"""Is this case behind SOTA, since when, and who moved?  Pure; never mixed up with being a regression."""

from dataclasses import dataclass

from kernels.words import Comparison
from service.lanes import Words, words
from service.policy import Policy
from service.verdicts import Pairs, compare, in_percent


@dataclass(frozen=True)
class Standing:
    """How one mainline revision stood against SOTA.  `own` and `sota` in the unit of the case's lane."""

    revision: str  # short name, for people
    ratio: float
    own: float
    sota: float
    stack: int | None = None
    behind: bool = False
    since: str | None = None  # the revision from which it has been behind


@dataclass(frozen=True)
class AgainstSota:
    comparison: Comparison | None
    behind: bool
    reason: str


def stand(pairs: Pairs, sota: str, case: str, policy: Policy, sota_trouble: str | None = None) -> AgainstSota:
    """The flag for one case: slower than `sota` beyond the policy, and not by chance."""
    policy, said = policy.at(case), words(case)
    comparison = compare(pairs, policy.confidence)
    if comparison is None:
        return AgainstSota(None, False, sota_trouble or f"{sota} has no times for this case")
    limit = 1 + policy.behind
    if comparison.low > limit:
        return AgainstSota(comparison, True, f"takes {comparison.ratio:.2f} times {said.as_much_of} {sota}")
    if comparison.high < 1:
        better = f"{1 / comparison.ratio:.2f} times as fast as {sota}"
        if said.less != "faster":
            better = f"takes {comparison.ratio:.2f} times {said.as_much_of} {sota}"
        return AgainstSota(comparison, False, better)
    return AgainstSota(
        comparison,
        False,
        f"within {in_percent(policy.behind)} of {sota}" if comparison.high <= limit else f"not clearly behind {sota}",
    )


def told(
    now: Standing, before: Standing | None, sota: str, parent_ratio: float | None, case: str, policy: Policy
) -> str:
    """One sentence: since when it is behind, whether the gap grew, and who moved.

    `before` is the mainline revision measured before this one; `parent_ratio` is head over parent from this very
    session, which separates our own move from the baseline's much better than times of two sessions do.
    """
    policy, said = policy.at(case), words(case)
    if before is None:
        return f"behind {sota} since {now.revision}, the first revision measured."
    if not before.behind:
        return f"behind {sota} since {now.revision}: {_who_moved(now, before, sota, parent_ratio, policy, said)}."
    since = f"behind {sota} since {before.since or before.revision}"
    if abs(now.ratio / before.ratio - 1) <= policy.smallest_change:
        return f"{since}; the gap is as wide as it was."
    grew = "grew" if now.ratio > before.ratio else "shrank"
    moved = _who_moved(now, before, sota, parent_ratio, policy, said)
    return f"{since}; the gap {grew} from {before.ratio:.2f} to {now.ratio:.2f} times: {moved}."


def _who_moved(
    now: Standing, before: Standing, sota: str, parent_ratio: float | None, policy: Policy, said: Words
) -> str:
    """Whoever moved the way the gap did: a side that became slower does not explain that the other is behind it."""
    wider = now.ratio > before.ratio

    def explains(slower: float) -> bool:
        return abs(slower) > policy.smallest_change and (slower > 0) is wider

    cause = " after a change of stack" if now.stack != before.stack else ""
    if parent_ratio is not None and explains(parent_ratio - 1):
        return f"this revision {said.is_} {_moved(parent_ratio - 1, said)} than its baseline"
    theirs = now.sota / before.sota - 1
    if explains(-theirs):
        return f"{sota} {said.became} {_moved(theirs, said)}{cause}, not this revision"
    ours = now.own / before.own - 1
    if explains(ours):
        steps = cause or ", in steps of which none was certain by itself"
        return f"{said.own} {said.became} {_moved(ours, said)} since {before.revision}{steps}"
    return "neither side moved by itself enough to name it"


def _moved(slower: float, said: Words) -> str:
    return f"{in_percent(abs(slower))} {said.more if slower > 0 else said.less}"
