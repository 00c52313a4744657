"""Is this case behind SOTA, since when, and who moved?  Pure; never mixed up with being a regression."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType

from service.domain.metrics import Words, words
from service.domain.policy.policy import Policy
from service.domain.verdicts.baselines import Beside, Compared, Stand, compared
from service.domain.verdicts.judge import in_percent
from service.domain.verdicts.samples import Name, Outcome


@dataclass(frozen=True)
class Standing:
    """How one mainline revision stood against SOTA.  `own` and `sota` in the unit of the case's metric."""

    revision: str  # short name, for people
    ratio: float
    own: float
    sota: float
    stack: int | None = None
    behind: bool = False
    since: str | None = None  # the revision from which it has been behind
    is_open: bool = False  # the session could neither show that it is behind nor that it is not


def stand_all(
    besides: Sequence[Beside], policy: Policy, controls: Mapping[Name, float | None] = MappingProxyType({})
) -> dict[Name, Stand]:
    """The flag of every case of a run beside SOTA, or beside the best: slower beyond the policy, and not by chance.

    Of what is called behind at most a share of `policy.behind_sota_fdr` is not.  A case is shown not to be behind where
    the upper bound of its interval, widened by how far the control of the case was off (`controls`, as ratios), is
    within the policy's limit.  What is neither is open, and *inconclusive* where it measured beyond the limit.  Every
    other outcome is only where the interval lies; whether that matters is the flag, `slower`.
    """
    seen = compared(besides, policy, lambda limits, _: limits.behind_sota)
    return {one.name: _stand(one, seen.get(one.name), controls.get(one.name) or 1.0, policy) for one in besides}


def _stand(one: Beside, seen: Compared | None, control: float, policy: Policy) -> Stand:
    if seen is None:
        return Stand(one.baseline, Outcome.NEW, one.missing)
    ratio, low, high = seen.comparison.ratio, seen.comparison.low, seen.comparison.high
    behind = seen.is_slower(policy.behind_sota_fdr)
    is_open = not behind and high * max(control, 1 / control) > 1 + seen.most
    if is_open and ratio > 1 + seen.most:
        outcome = Outcome.INCONCLUSIVE
    else:
        outcome = Outcome.REGRESSION if low > 1 else Outcome.IMPROVEMENT if high < 1 else Outcome.STEADY
    reason = _perhaps(seen) if outcome is Outcome.INCONCLUSIVE else _flag(seen, behind)
    return Stand(one.baseline, outcome, reason, behind, seen.comparison, seen.p, seen.q, is_open)


def _perhaps(seen: Compared) -> str:
    low, high = seen.comparison.low, seen.comparison.high
    return f"perhaps behind {seen.asked.baseline}: this session leaves {low:.2f} to {high:.2f} times"


def _flag(seen: Compared, behind: bool) -> str:
    said, ratio, sota = words(seen.asked.case), seen.comparison.ratio, seen.asked.baseline
    takes = f"takes {ratio:.2f} times {said.as_much_of} {sota}"
    if behind:
        return takes
    if seen.comparison.high < 1:
        return takes if said.less != "faster" else f"{1 / ratio:.2f} times as fast as {sota}"
    if seen.comparison.high <= 1 + seen.most:
        return f"within {in_percent(seen.most)} of {sota}"
    return f"not clearly behind {sota}"


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


def still_open(now: Standing, before: Standing, sota: str) -> str:
    """One sentence at a case with a known gap that this session could neither show nor close."""
    since = f"behind {sota} since {before.since or before.revision}, {before.ratio:.2f} times at {before.revision}"
    return f"{since}; this session could not decide whether it still is ({now.ratio:.2f} times)."


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
