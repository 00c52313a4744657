"""Notable events: what happens to watched targets that somebody may want to be notified of."""

from dataclasses import dataclass
from enum import StrEnum

from service.domain.states import GateAction

# Severities are the words of the gate.  An event that closes something is as severe as what it closes, so that every
# subscription that sends the one sends the other.
SEVERITIES = (GateAction.PASS, GateAction.WARN, GateAction.FAIL)  # the smallest first


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
