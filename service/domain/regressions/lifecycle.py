"""The states of a regression: which action leads from which state to which, and which run fixes it.  Pure."""

import re
from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.domain.attribution.causes import Kind
from service.domain.states import OPEN_REGRESSIONS, Outcome, RegressionState
from service.domain.verdicts.judge import CHANGES
from service.errors import BadInput, Conflict

KERNELWATCH = "kernelwatch"  # the actor where no person acted
MAX_NAME = 80
_NAME = re.compile(rf"[^\x00-\x1f\x7f]{{1,{MAX_NAME}}}")
NEAR = 2  # revisions of the mainline between which one event may have fallen


class Action(StrEnum):
    """Actions on a regression, with the words stored in its history."""

    OPEN = "opened"
    ACKNOWLEDGE = "acknowledged"
    EXPIRE = "acknowledgement ended"
    SEARCH = "bisecting"
    BLAME = "blamed"
    GIVE_UP = "nobody blamed"  # the search ended without a culprit
    FIX = "fixed"
    UNDO = "fix undone"  # the revision that fixed it left the mainline
    LEAVE = "left the mainline"  # its own revision did
    RETURN = "returned to the mainline"
    REMOVE = "removed"  # the recipe does not name its case any more
    MEASURE_AGAIN = "measured again"  # it does again
    DISMISS = "dismissed"
    REOPEN = "reopened"
    ASSIGN = "assigned"
    NOTE = "note"
    DUE = "due"


# What a person may do.  All other actions follow from measurements, bisections or the mainline.
BY_HAND = (Action.ACKNOWLEDGE, Action.DISMISS, Action.REOPEN, Action.ASSIGN, Action.NOTE, Action.DUE)
_NEED_WORDS = {
    Action.ACKNOWLEDGE: "Give the reason why it is accepted (`--reason`).",
    Action.DISMISS: "Give the reason why it is not a regression (`--reason`).",
    Action.NOTE: "A note needs a text.",
}

_OPEN, _ACKNOWLEDGED, _BISECTING = RegressionState.OPEN, RegressionState.ACKNOWLEDGED, RegressionState.BISECTING
_BLAMED, _FIXED, _DISMISSED = RegressionState.BLAMED, RegressionState.FIXED, RegressionState.DISMISSED
_REMOVED = RegressionState.REMOVED
_SAME = {state: state for state in RegressionState}
# For each action the states in which it is possible, and the state that follows.  A bisection leaves alone what is
# acknowledged or has a culprit already: it may still end by naming one.
_FOLLOWS: Mapping[Action, Mapping[RegressionState, RegressionState]] = {
    Action.OPEN: {_OPEN: _OPEN},
    Action.ACKNOWLEDGE: dict.fromkeys(OPEN_REGRESSIONS, _ACKNOWLEDGED),
    Action.EXPIRE: {_ACKNOWLEDGED: _OPEN},
    Action.SEARCH: {_OPEN: _BISECTING, _BISECTING: _BISECTING, _BLAMED: _BLAMED, _ACKNOWLEDGED: _ACKNOWLEDGED},
    Action.BLAME: {_OPEN: _BLAMED, _BISECTING: _BLAMED, _BLAMED: _BLAMED, _ACKNOWLEDGED: _ACKNOWLEDGED},
    Action.GIVE_UP: {_OPEN: _OPEN, _BISECTING: _OPEN, _BLAMED: _BLAMED, _ACKNOWLEDGED: _ACKNOWLEDGED},
    Action.FIX: dict.fromkeys(OPEN_REGRESSIONS, _FIXED),
    Action.UNDO: {_FIXED: _OPEN, _REMOVED: _OPEN},
    Action.LEAVE: dict.fromkeys(OPEN_REGRESSIONS, _FIXED),
    Action.RETURN: {_FIXED: _OPEN},
    Action.REMOVE: dict.fromkeys(OPEN_REGRESSIONS, _REMOVED),
    Action.MEASURE_AGAIN: {_REMOVED: _OPEN},
    Action.DISMISS: dict.fromkeys(OPEN_REGRESSIONS, _DISMISSED),
    Action.REOPEN: {_FIXED: _OPEN, _DISMISSED: _OPEN, _REMOVED: _OPEN, _ACKNOWLEDGED: _OPEN},
    Action.ASSIGN: _SAME,
    Action.NOTE: _SAME,
    Action.DUE: _SAME,
}


@dataclass(frozen=True)
class Transition:
    """An action on a regression and who takes it.  Times are seconds since the epoch."""

    action: Action
    who: str = KERNELWATCH
    words: str | None = None  # the reason, the note, or what was measured
    until: float | None = None  # an acknowledgement ends then; None for never
    assignee: str | None = None  # None removes the assignee
    due_at: float | None = None  # None for never
    culprit: str | None = None
    run_id: int | None = None  # the measurement that shows it


def follows(state: RegressionState, action: Action) -> RegressionState:
    """The state after `action`.  Raises Conflict, with a remedy, where the state does not allow it."""
    if state not in _FOLLOWS[action]:
        raise Conflict(_instead(state, action))
    return _FOLLOWS[action][state]


def possible(state: RegressionState, action: Action) -> bool:
    """Whether this state allows `action`."""
    return state in _FOLLOWS[action]


def check_by_hand(transition: Transition, now: float) -> None:
    """Raise BadInput or Conflict where a person cannot do that, or where a reason is missing."""
    if transition.action not in BY_HAND:
        raise Conflict(
            "A regression is fixed once a measurement shows it; dismiss it with a reason instead."
            if transition.action is Action.FIX
            else f"A regression is not marked as {transition.action} by hand; that follows from measurements."
        )
    if transition.action in _NEED_WORDS and not (transition.words or "").strip():
        raise BadInput(_NEED_WORDS[transition.action])
    if transition.until is not None and transition.until <= now:
        raise BadInput("An acknowledgement cannot end in the past; give a later day, or none.")
    for name in (transition.who, transition.assignee):
        if name is not None and not (name.strip() and _NAME.fullmatch(name)):
            raise BadInput(f"{name[:20]!r} is no name: it has 1 to {MAX_NAME} characters, and no control characters.")


def changes(transition: Transition, now: float) -> dict[str, object]:
    """The columns that change with it, other than the state."""
    match transition.action:
        case Action.ACKNOWLEDGE | Action.DISMISS:
            return {"reason": transition.words, "until": transition.until}
        case Action.REOPEN | Action.UNDO | Action.RETURN | Action.MEASURE_AGAIN:
            return {"reason": None, "until": None, "fixed_at": None, "fixed_by": None}
        case Action.EXPIRE:
            return {"until": None}
        case Action.FIX | Action.LEAVE | Action.REMOVE:
            return {"fixed_at": now, "fixed_by": transition.run_id}
        case Action.BLAME:
            return {"culprit": transition.culprit}
        case Action.ASSIGN:
            return {"assignee": transition.assignee}
        case Action.DUE:
            return {"due_at": transition.due_at}
        case _:
            return {}


def _instead(state: RegressionState, action: Action) -> str:
    is_open = state in OPEN_REGRESSIONS
    match action:
        case Action.ACKNOWLEDGE | Action.DISMISS if not is_open:
            return f"It is {state}, so it is closed; reopen it first if it is still slow."
        case Action.REOPEN:
            return f"It is {state}, so it is open already."
        case Action.FIX | Action.SEARCH | Action.BLAME:
            return f"It is {state}, so it is closed and cannot be {action}; reopen it first."
        case _:
            return f"It is {state}, so it cannot be {action}."


@dataclass(frozen=True)
class Member:
    """The properties of a regression that its incident uses."""

    state: RegressionState
    ratio: float
    cause: str | None = None  # a Kind
    why: str | None = None


def is_over(members: Sequence[Member]) -> bool:
    """Whether all regressions of an incident are closed."""
    return all(member.state not in OPEN_REGRESSIONS for member in members)


def common_cause(members: Sequence[Member]) -> Member | None:
    """The largest of those with the kind of cause that most of them share; a known kind goes before an unknown one."""
    named = [member for member in members if member.cause is not None and member.why is not None]
    if not named:
        return None
    explained = [member for member in named if member.cause != Kind.UNKNOWN] or named
    counts = Counter(member.cause for member in explained)
    return max(explained, key=lambda member: (counts[member.cause], member.ratio))


def one_event(ordinal: int | None, culprit: str | None, other: int | None, others_culprits: Sequence[str]) -> bool:
    """Whether a regression may belong to the same event as an incident.

    Its revision is at the ordinal `ordinal`, the earliest of the incident at `other`.  Within two revisions of the
    mainline it may, because a measured revision may be later than the culprit, unless their culprits differ.
    """
    if culprit is not None and others_culprits:
        return culprit in others_culprits
    return ordinal is not None and other is not None and abs(ordinal - other) <= NEAR


@dataclass(frozen=True)
class CaseStep:
    """The effect of one mainline revision on a case.  Ordinals are positions on the mainline."""

    run_id: int
    ordinal: int
    baseline: int | None  # the place of the revision that `outcome` and `ratio` are against
    outcome: Outcome
    ratio: float | None
    direct: Outcome | None = None  # against the last revision that was not slow, in the same session
    direct_ratio: float | None = None


def fixed_by_run(
    steps: Sequence[CaseStep], opened: int, ratio: float, smallest_change: float, *, before: float = 1.0
) -> int | None:
    """The first run after which a regression of `ratio`, opened at the ordinal `opened`, is gone.

    A direct comparison with the good revision decides where it is decided.  Otherwise each step multiplies the ratio of
    its baseline, so that several small improvements fix one large regression: confirmed ones had more trials than the
    direct comparison, which on a noisy case may never decide.  A baseline from before the regression counts as
    `before`: 1, or the full ratio where the slow-down had come gradually.  `smallest_change` is relative.

    A slow-down opens by a share of the smallest change, so `ratio` may be within it.  Hence only a step that shows
    something closes: an improvement, or as fast as a baseline from before the regression.
    """
    ordinals, nets = [opened], [ratio]
    for step in steps:
        net = nets[-1]  # also where the baseline left the mainline
        if step.baseline is not None and step.outcome in (Outcome.STEADY, *CHANGES):
            earlier = bisect_right(ordinals, step.baseline)  # revisions that were not measured changed nothing
            net = nets[earlier - 1] if earlier else before
        if step.outcome in CHANGES:
            net *= step.ratio or 1.0
        if step.direct in CHANGES:
            net = step.direct_ratio or net
        since_before = step.baseline is not None and step.baseline < opened and before < ratio
        shown = step.outcome is Outcome.IMPROVEMENT or (step.outcome is Outcome.STEADY and since_before)
        fixed = shown and net <= 1 + smallest_change and step.direct is not Outcome.REGRESSION
        if fixed or step.direct in (Outcome.STEADY, Outcome.IMPROVEMENT):
            return step.run_id
        ordinals.append(step.ordinal)
        nets.append(net)
    return None


def unexplained(ratio: float, places: Sequence[float]) -> float:
    """The part of a leak of `ratio` that the known regressions since its baseline do not explain."""
    for each in places:
        ratio /= each
    return ratio
