"""The life of a regression: what may be done to it in which state, and what it is afterwards.  Pure."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from service.domain.attribution.causes import Cause, Kind
from service.domain.states import OPEN_REGRESSIONS, RegressionState
from service.errors import BadInput, Conflict

KERNELWATCH = "kernelwatch"  # who did it, where no person did
MAX_NAME = 80
NEAR = 2  # revisions of the mainline between which one event may have fallen


class Action(StrEnum):
    """What happens to a regression, in the words that its history is kept in."""

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
    DISMISS = "dismissed"
    REOPEN = "reopened"
    ASSIGN = "assigned"
    NOTE = "note"
    DUE = "due"


# What a person may do.  The rest is shown by measuring, by searching, or by the mainline itself.
BY_HAND = (Action.ACKNOWLEDGE, Action.DISMISS, Action.REOPEN, Action.ASSIGN, Action.NOTE, Action.DUE)
_NEED_WORDS = {
    Action.ACKNOWLEDGE: "Say why it is accepted (`--reason`): whoever meets it next will ask.",
    Action.DISMISS: "Say why it is none (`--reason`): whoever meets it next will ask.",
    Action.NOTE: "A note needs words.",
}

_OPEN, _ACKNOWLEDGED, _BISECTING = RegressionState.OPEN, RegressionState.ACKNOWLEDGED, RegressionState.BISECTING
_BLAMED, _FIXED, _DISMISSED = RegressionState.BLAMED, RegressionState.FIXED, RegressionState.DISMISSED
_SAME = {state: state for state in RegressionState}
# For each action the states in which it makes sense, and what follows.  A search leaves alone what somebody accepted or
# what has a culprit already: it may still end by naming one.
_FOLLOWS: Mapping[Action, Mapping[RegressionState, RegressionState]] = {
    Action.OPEN: {_OPEN: _OPEN},
    Action.ACKNOWLEDGE: dict.fromkeys(OPEN_REGRESSIONS, _ACKNOWLEDGED),
    Action.EXPIRE: {_ACKNOWLEDGED: _OPEN},
    Action.SEARCH: {_OPEN: _BISECTING, _BISECTING: _BISECTING, _BLAMED: _BLAMED, _ACKNOWLEDGED: _ACKNOWLEDGED},
    Action.BLAME: {_OPEN: _BLAMED, _BISECTING: _BLAMED, _BLAMED: _BLAMED, _ACKNOWLEDGED: _ACKNOWLEDGED},
    Action.GIVE_UP: {_OPEN: _OPEN, _BISECTING: _OPEN, _BLAMED: _BLAMED, _ACKNOWLEDGED: _ACKNOWLEDGED},
    Action.FIX: dict.fromkeys(OPEN_REGRESSIONS, _FIXED),
    Action.UNDO: {_FIXED: _OPEN},
    Action.LEAVE: dict.fromkeys(OPEN_REGRESSIONS, _FIXED),
    Action.RETURN: {_FIXED: _OPEN},
    Action.DISMISS: dict.fromkeys(OPEN_REGRESSIONS, _DISMISSED),
    Action.REOPEN: {_FIXED: _OPEN, _DISMISSED: _OPEN, _ACKNOWLEDGED: _OPEN},
    Action.ASSIGN: _SAME,
    Action.NOTE: _SAME,
    Action.DUE: _SAME,
}


@dataclass(frozen=True)
class Transition:
    """Who does what to a regression.  Times are seconds since the epoch."""

    action: Action
    who: str = KERNELWATCH
    words: str | None = None  # the reason, the note, or what was measured
    until: float | None = None  # an acknowledgement ends then; None for never
    assignee: str | None = None  # None for nobody
    due_at: float | None = None  # None for never
    culprit: str | None = None
    run_id: int | None = None  # the measurement that shows it


def follows(state: RegressionState, action: Action) -> RegressionState:
    """The state after `action`.  Raises Conflict, with what to do instead, where it makes no sense."""
    if state not in _FOLLOWS[action]:
        raise Conflict(_instead(state, action))
    return _FOLLOWS[action][state]


def possible(state: RegressionState, action: Action) -> bool:
    """Does `action` make sense in this state?"""
    return state in _FOLLOWS[action]


def check_by_hand(transition: Transition, now: float) -> None:
    """Raises BadInput or Conflict where a person cannot do that, or has to say more."""
    if transition.action not in BY_HAND:
        raise Conflict(
            "It is fixed once a measurement shows it; dismiss it with a reason instead."
            if transition.action is Action.FIX
            else f"Nobody marks a regression as {transition.action} by hand: that follows from what is measured."
        )
    if transition.action in _NEED_WORDS and not (transition.words or "").strip():
        raise BadInput(_NEED_WORDS[transition.action])
    if transition.until is not None and transition.until <= now:
        raise BadInput("An acknowledgement cannot end in the past; name a later day, or none.")
    for name in (transition.who, transition.assignee):
        if name is not None and not (name.strip() and len(name) <= MAX_NAME and name.isprintable()):
            raise BadInput(f"A name has 1 to {MAX_NAME} printable characters; {name[:20]!r} has {len(name)}.")


def changes(transition: Transition, now: float) -> dict[str, object]:
    """The columns that change with it, beside the state."""
    match transition.action:
        case Action.ACKNOWLEDGE | Action.DISMISS:
            return {"reason": transition.words, "until": transition.until}
        case Action.REOPEN | Action.UNDO | Action.RETURN:
            return {"reason": None, "until": None, "fixed_at": None, "fixed_by": None}
        case Action.EXPIRE:
            return {"until": None}
        case Action.FIX | Action.LEAVE:
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
    standing = state in OPEN_REGRESSIONS
    match action:
        case Action.ACKNOWLEDGE | Action.DISMISS if not standing:
            return f"It is {state} and stands no longer; reopen it first if it does."
        case Action.REOPEN:
            return f"It is {state}, so it stands already; nothing has to be reopened."
        case Action.FIX | Action.SEARCH | Action.BLAME:
            return f"It is {state} and stands no longer, so it cannot be {action}; reopen it first."
        case _:
            return f"It is {state}, so it cannot be {action}."


@dataclass(frozen=True)
class Member:
    """What an incident has to know of one of its regressions."""

    state: RegressionState
    ratio: float
    cause: str | None = None  # a Kind
    why: str | None = None


def is_over(members: Sequence[Member]) -> bool:
    """An incident is closed with the last of its regressions."""
    return all(one.state not in OPEN_REGRESSIONS for one in members)


def common_cause(members: Sequence[Member]) -> Cause | None:
    """The kind that most of them share, in the words of the largest; what is known goes before what is not."""
    named = [one for one in members if one.cause is not None and one.why is not None]
    if not named:
        return None
    known = [one for one in named if one.cause != Kind.UNKNOWN] or named
    counts = Counter(one.cause for one in known)
    worst = max(known, key=lambda one: (counts[one.cause], one.ratio))
    return Cause(Kind(worst.cause or Kind.UNKNOWN), worst.why or "")


def one_event(ordinal: int | None, culprit: str | None, other: int | None, others_culprits: Sequence[str]) -> bool:
    """May a regression belong to the same event as an incident?

    Its revision lies at `ordinal`, the incident's earliest at `other`.  Within two revisions of the mainline it may,
    for what was measured may be later than what did it, unless both are known to have been done by different ones.
    """
    if culprit is not None and others_culprits:
        return culprit in others_culprits
    return ordinal is not None and other is not None and abs(ordinal - other) <= NEAR
