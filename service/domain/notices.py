"""Notable events, and when they become a message: which of them, and which are not worth one any more.  Pure."""

from collections import Counter, defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from service.domain.states import GateAction
from service.domain.text import DAY_S

# Severities are the words of the gate.  An event that closes something is as severe as what it closes, so that every
# subscription that sends the one sends the other.
SEVERITIES = (GateAction.PASS, GateAction.WARN, GateAction.FAIL)  # the smallest first
HOUR_S = 3600.0
NEWS_S = 7 * DAY_S  # an older event is dropped: a channel that was away for a month must not be flooded
# Changes of one case that are sent in a day, where it regresses and is fixed again and again; the others wait.
MAX_CHANGES = 3


class EventKind(StrEnum):
    REGRESSION_OPENED = "regression.opened"
    REGRESSION_WORSE = "regression.worse"  # opened at a case that has an open regression already
    REGRESSION_REOPENED = "regression.reopened"
    REGRESSION_BLAMED = "regression.blamed"  # a bisection found the culprit
    REGRESSION_ACCEPTED = "regression.accepted"
    REGRESSION_FIXED = "regression.fixed"
    REGRESSION_CLOSED = "regression.closed"  # dismissed, or its revision left the mainline
    CASE_INVALID = "case.invalid"  # a wrong result, where the revision before was right
    CASE_QUARANTINED = "case.quarantined"  # equal code differs there too often
    CASE_RELEASED = "case.released"
    GAP_OPENED = "gap.opened"  # behind SOTA
    GAP_CLOSED = "gap.closed"
    CONFIGURATION_DRIFTED = "configuration.drifted"  # without a commit: an autotuner chose again
    CONFIGURATION_CHANGED = "configuration.changed"  # with a commit or with another stack
    RUN_FAILED = "run.failed"  # after all of its attempts
    TARGET_UNREACHABLE = "target.unreachable"  # its source cannot be polled
    TARGET_REACHABLE = "target.reachable"
    WORKER_LOST = "worker.lost"
    WORKER_BACK = "worker.back"
    WORKER_STARTS = "worker.starts"  # most of its time it started processes


class SubjectChange(StrEnum):
    """What an event does to the state of its subject."""

    OPENS = "opens"
    CLOSES = "closes"
    NOTES = "notes"  # neither


@dataclass(frozen=True)
class KindOfEvent:
    severity: GateAction
    change: SubjectChange


_OPENS, _CLOSES, _NOTES = SubjectChange.OPENS, SubjectChange.CLOSES, SubjectChange.NOTES
_PASS, _WARN, _FAIL = SEVERITIES
KINDS = {
    EventKind.REGRESSION_OPENED: KindOfEvent(_FAIL, _OPENS),
    EventKind.REGRESSION_WORSE: KindOfEvent(_FAIL, _OPENS),
    EventKind.REGRESSION_REOPENED: KindOfEvent(_FAIL, _OPENS),
    EventKind.REGRESSION_BLAMED: KindOfEvent(_PASS, _NOTES),
    EventKind.REGRESSION_ACCEPTED: KindOfEvent(_PASS, _NOTES),
    EventKind.REGRESSION_FIXED: KindOfEvent(_FAIL, _CLOSES),
    EventKind.REGRESSION_CLOSED: KindOfEvent(_FAIL, _CLOSES),
    EventKind.CASE_INVALID: KindOfEvent(_FAIL, _NOTES),
    EventKind.CASE_QUARANTINED: KindOfEvent(_WARN, _OPENS),
    EventKind.CASE_RELEASED: KindOfEvent(_WARN, _CLOSES),
    EventKind.GAP_OPENED: KindOfEvent(_WARN, _OPENS),
    EventKind.GAP_CLOSED: KindOfEvent(_WARN, _CLOSES),
    EventKind.CONFIGURATION_DRIFTED: KindOfEvent(_WARN, _NOTES),
    EventKind.CONFIGURATION_CHANGED: KindOfEvent(_PASS, _NOTES),
    EventKind.RUN_FAILED: KindOfEvent(_WARN, _NOTES),
    EventKind.TARGET_UNREACHABLE: KindOfEvent(_WARN, _OPENS),
    EventKind.TARGET_REACHABLE: KindOfEvent(_WARN, _CLOSES),
    EventKind.WORKER_LOST: KindOfEvent(_WARN, _OPENS),
    EventKind.WORKER_BACK: KindOfEvent(_WARN, _CLOSES),
    EventKind.WORKER_STARTS: KindOfEvent(_WARN, _NOTES),
}


@dataclass(frozen=True)
class NotableEvent:
    """One event.  What does not apply to its kind is None; `at` is in seconds since the epoch."""

    kind: EventKind
    at: float
    target: str | None = None  # a name
    device: str | None = None
    provider: str | None = None
    case: str | None = None  # with its metric
    ratio: float | None = None  # of a regression: against its baseline; of a gap: against SOTA
    revision: str | None = None  # that did it, or at which it was seen
    cause: str | None = None  # a service.domain.attribution.causes.Kind
    text: str | None = None  # an error, a cause or a reason, as somebody may read it
    by: str | None = None  # the person who did it, or the worker
    regression_id: int | None = None
    incident_id: int | None = None
    run_id: int | None = None

    @property
    def severity(self) -> GateAction:
        return KINDS[self.kind].severity

    @property
    def change(self) -> SubjectChange:
        return KINDS[self.kind].change


@dataclass(frozen=True)
class Rules:
    """How long events wait for others, and how many messages a subscription gets."""

    wait_s: float = 300.0
    urgent_wait_s: float = 60.0  # of the severity `fail`
    per_hour: int = 6


@dataclass(frozen=True)
class Pending:
    """An event that waits."""

    id: int
    kind: EventKind
    subject: str  # what it opens or closes: "regression 4"
    series: str  # what must not change back and forth: "series 7"
    at: float

    @property
    def change(self) -> SubjectChange:
        return KINDS[self.kind].change


@dataclass(frozen=True)
class SentBefore:
    """What the subscription was sent before."""

    open_subjects: frozenset[str] = frozenset()  # opened by a message, and closed by none
    changes: Mapping[str, Sequence[float]] = field(default_factory=dict)  # by series, when events of it were sent
    messages: Sequence[float] = ()  # when messages were made


@dataclass(frozen=True)
class Plan:
    """What to do with the events now.  Those that are in no list wait."""

    send: tuple[int, ...] = ()
    cancel: tuple[int, ...] = ()
    drop: tuple[int, ...] = ()


def plan(pending: Sequence[Pending], sent: SentBefore, rules: Rules, now: float) -> Plan:
    """Decide about the events that wait for one subscription, oldest first.

    What opened and closed again before it was sent is cancelled.  The others leave together as soon as the first has
    waited long enough, unless the messages of the hour are spent.  Times ahead of `now` are from before the clock was
    set back, and count as now.
    """
    old = [event.id for event in pending if now - event.at > NEWS_S]
    fresh = [event for event in pending if now - event.at <= NEWS_S]
    cancelled = _cancelled(fresh, sent.open_subjects)
    left = [event for event in fresh if event.id not in cancelled]
    held = _held(left, sent, now)
    ready = [event for event in left if event.id not in held]
    spent = sum(now - HOUR_S < at <= now for at in sent.messages) >= rules.per_hour
    due = not spent and any(_has_waited(event, rules, now) for event in ready)
    return Plan(
        send=tuple(event.id for event in ready) if due else (), cancel=tuple(sorted(cancelled)), drop=tuple(old)
    )


def _has_waited(event: Pending, rules: Rules, now: float) -> bool:
    wait_s = rules.urgent_wait_s if KINDS[event.kind].severity is GateAction.FAIL else rules.wait_s
    return event.at > now or now - event.at >= wait_s


def _cancelled(pending: Sequence[Pending], open_subjects: frozenset[str]) -> set[int]:
    """Events that later ones undid: opened and closed, or, where it is known to be open, closed and reopened."""
    cancelled = set[int]()
    by_subject = defaultdict[str, list[Pending]](list)
    for event in pending:
        by_subject[event.subject].append(event)
    for subject, events in by_subject.items():
        known_open = subject in open_subjects
        kept = list[Pending]()
        for event in events:
            opposite = {SubjectChange.CLOSES: SubjectChange.OPENS, SubjectChange.OPENS: SubjectChange.CLOSES}
            undone = any(other.change is opposite.get(event.change) for other in kept)
            if not undone:
                kept.append(event)
            elif (event.change is SubjectChange.CLOSES) is known_open:  # only the last of them is news
                cancelled |= {other.id for other in kept if other.change is not SubjectChange.NOTES}
                kept = [other for other in kept if other.change is SubjectChange.NOTES] + [event]
            else:  # all is as it was
                cancelled |= {other.id for other in (*kept, event)}
                kept = []
    return cancelled


def _held(pending: Sequence[Pending], sent: SentBefore, now: float) -> set[int]:
    """Events of series that changed too often during the last day."""
    changes = Counter({series: sum(now - DAY_S < at <= now for at in times) for series, times in sent.changes.items()})
    held = set[int]()
    for event in pending:
        if event.change is SubjectChange.NOTES:
            continue
        if changes[event.series] >= MAX_CHANGES:
            held.add(event.id)
        else:
            changes[event.series] += 1
    return held
