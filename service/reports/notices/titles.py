"""Notable events in one line: a sentence for each, and a subject line for several.  Plain text, printable."""

from collections import Counter
from collections.abc import Sequence

from service.domain import metrics
from service.domain.attribution.causes import Kind
from service.domain.notices import SEVERITIES, EventKind, NotableEvent, SubjectChange
from service.domain.states import GateAction
from service.domain.text import listed, one_line, short

_MAX = 120  # characters of a subject line, and of a name in it
_MAX_NAMES = 3  # of targets or devices in a subject line
_SYMBOLS = {GateAction.FAIL: "✗", GateAction.WARN: "!", GateAction.PASS: "·"}
_GOOD = "✓"  # everything is news that something is over

# What a subject line counts, with its plural, in the order of the line.
_NOUNS = {
    EventKind.CASE_INVALID: ("wrong result", "wrong results"),
    EventKind.REGRESSION_OPENED: ("regression", "regressions"),
    EventKind.REGRESSION_WORSE: ("regression got worse", "regressions got worse"),
    EventKind.REGRESSION_REOPENED: ("regression reopened", "regressions reopened"),
    EventKind.RUN_FAILED: ("run failed", "runs failed"),
    EventKind.TARGET_UNREACHABLE: ("source unreachable", "sources unreachable"),
    EventKind.WORKER_LOST: ("worker lost", "workers lost"),
    EventKind.GAP_OPENED: ("case fell behind SOTA", "cases fell behind SOTA"),
    EventKind.CASE_QUARANTINED: ("case quarantined", "cases quarantined"),
    EventKind.CONFIGURATION_DRIFTED: (
        "configuration changed without a commit",
        "configurations changed without a commit",
    ),
    EventKind.CONFIGURATION_CHANGED: ("configuration changed", "configurations changed"),
    EventKind.REGRESSION_BLAMED: ("culprit found", "culprits found"),
    EventKind.REGRESSION_ACCEPTED: ("regression accepted", "regressions accepted"),
    EventKind.REGRESSION_FIXED: ("regression fixed", "regressions fixed"),
    EventKind.REGRESSION_CLOSED: ("regression closed", "regressions closed"),
    EventKind.GAP_CLOSED: ("case caught up with SOTA", "cases caught up with SOTA"),
    EventKind.CASE_RELEASED: ("case released", "cases released"),
    EventKind.TARGET_REACHABLE: ("source reachable again", "sources reachable again"),
    EventKind.WORKER_BACK: ("worker back", "workers back"),
}
_SIZED = (EventKind.REGRESSION_OPENED, EventKind.REGRESSION_WORSE, EventKind.REGRESSION_REOPENED)


def title(event: NotableEvent) -> str:
    """One event in one sentence without a full stop: `rmsnorm.fwd.64x4096.bf16 of norms on h200: 10.2 % slower`."""
    case = f"{event.case or 'a case'} of {event.target} on {event.device}"
    since = f" since {short(event.revision)}" if event.revision else ""
    at = f" at {short(event.revision)}" if event.revision else ""
    why = f": {event.text}" if event.text else ""
    by = f" by {event.by}" if event.by else ""
    match event.kind:
        case EventKind.REGRESSION_OPENED:
            line = f"{case}: {_size(event)}{since}"
        case EventKind.REGRESSION_WORSE:
            line = f"{case}: {_size(event)} once more{since}"
        case EventKind.REGRESSION_REOPENED:
            line = f"{case}: {_size(event)}{since}, reopened{by}"
        case EventKind.REGRESSION_BLAMED:
            line = f"{case}: {_size(event)}, caused by {short(event.revision or 'an unknown revision')}"
        case EventKind.REGRESSION_ACCEPTED:
            line = f"{case}: {_size(event)}, accepted{by}{why}"
        case EventKind.REGRESSION_FIXED:
            line = f"{case}: regression fixed{at}"
        case EventKind.REGRESSION_CLOSED:
            line = f"{case}: regression closed{by}{why}"
        case EventKind.CASE_INVALID:
            line = f"{case}: wrong result{since}{why}"
        case EventKind.CASE_QUARANTINED:
            line = f"{case}: quarantined{why}"
        case EventKind.CASE_RELEASED:
            line = f"{case}: no longer quarantined{why}"
        case EventKind.GAP_OPENED:
            line = f"{case}: fell behind SOTA{at}{f', {_size(event)}' if event.ratio else ''}"
        case EventKind.GAP_CLOSED:
            line = f"{case}: caught up with SOTA{at}"
        case EventKind.CONFIGURATION_DRIFTED:
            line = f"{case}: the configuration changed without a commit{at}{why}"
        case EventKind.CONFIGURATION_CHANGED:
            what = "stack" if event.cause == Kind.STACK else "commit"
            line = f"{case}: the configuration changed with the {what}{at}{why}"
        case EventKind.RUN_FAILED:
            line = f"Run {event.run_id} of {event.target} on {event.device} failed{at}{why}"
        case EventKind.TARGET_UNREACHABLE:
            line = f"The source of {event.target} cannot be polled{why}"
        case EventKind.TARGET_REACHABLE:
            line = f"The source of {event.target} can be polled again"
        case EventKind.WORKER_LOST:
            line = f"Worker {event.by} does not answer"
        case EventKind.WORKER_BACK:
            line = f"Worker {event.by} answers again"
    return one_line(line)


def subject(events: Sequence[NotableEvent]) -> str:
    """Several events in one line: `✗ norms on h200: 2 regressions, up to 10.2 % slower, since 35e8049abc`."""
    counts = Counter(event.kind for event in events)
    parts = [f"{n} {_NOUNS[kind][n > 1]}" for kind in _NOUNS if (n := counts[kind])]
    about = [event for event in events if event.kind in _SIZED]
    if about:
        parts[1 if EventKind.CASE_INVALID in counts else 0] += _worst(about)
    where = _names([event.target for event in events])
    devices = _names([event.device for event in events])
    if where and devices:
        where += f" on {devices}"
    return one_line(f"{symbol(events)} {where or devices or 'kernelwatch'}: {', '.join(parts)}", _MAX)


def symbol(events: Sequence[NotableEvent]) -> str:
    """The severity of the worst event as a symbol; a tick where all of them close something."""
    opening = [event for event in events if event.change is not SubjectChange.CLOSES]
    return _SYMBOLS[max((event.severity for event in opening), key=SEVERITIES.index)] if opening else _GOOD


def _worst(events: Sequence[NotableEvent]) -> str:
    """The size of the largest, and the revision if it is the same for all."""
    worst = max(events, key=lambda event: event.ratio or 0.0)
    revisions = {event.revision for event in events}
    since = f", since {short(worst.revision)}" if len(revisions) == 1 and worst.revision else ""
    return f", {'up to ' if len(events) > 1 else ''}{_size(worst)}{since}"


def _size(event: NotableEvent) -> str:
    """`10.2 % slower`, `3.0 % more memory`."""
    return metrics.percent(event.ratio, metrics.metric_of(event.case or ""))


def _names(found: Sequence[str | None]) -> str:
    """The names of targets or devices, each once; of many only their number."""
    names = list(dict.fromkeys(name for name in found if name))
    if len(names) > _MAX_NAMES:
        return f"{len(names)} of them"
    return one_line(listed(names), _MAX) if names else ""
