"""What the ledger decides, recorded as notable events: regressions, gaps, runs, sources, quarantines and workers.

Every function is called in the transaction that decides it.  Nothing is recorded of what a backfill shows.
"""

from collections.abc import Sequence
from dataclasses import asdict, replace
from fnmatch import fnmatchcase

from sqlalchemy import or_, select
from sqlalchemy.orm import Session

from service.db.engine import clock, transaction
from service.db.models import (
    ConfigurationDrift,
    Notice,
    RegressionRow,
    Revision,
    Run,
    Series,
    Subscription,
    Target,
    VerdictRow,
    Worker,
)
from service.domain.attribution.causes import Kind
from service.domain.metrics import SeriesKey
from service.domain.notices import SEVERITIES, EventKind, NotableEvent
from service.domain.phases import in_words, mostly_starts
from service.domain.regressions.lifecycle import KERNELWATCH, Action, Transition
from service.domain.states import OPEN_REGRESSIONS, BaselineKind, MovedBy, NoticeState, Outcome, Priority, Purpose
from service.domain.text import DAY_S, is_recent, one_line
from service.domain.verdicts.samples import Name
from service.ledger import phases
from service.ledger.locking import insert_if_absent
from service.reports import words

_CACHED = "subscriptions of a target"


def record(
    session: Session, event: NotableEvent, *, target_id: int | None, subject: str, key: str, series: str | None = None
) -> None:
    """Let the event wait for each subscription that wants it.

    Args:
        event: What happened.
        target_id: None for what belongs to no target.
        subject: What the event opens or closes: "regression 4".
        key: Names the event: it is recorded once for each subscription, also where a run is measured again.
        series: What changes back and forth if its subjects come and go; by default the subject.
    """
    for subscription in subscribers(session, target_id):
        if not wants(subscription, event):
            continue
        row = {
            "subscription_id": subscription.id,
            "key": key,
            "target_id": target_id,
            "kind": event.kind,
            "subject": subject,
            "series": series or subject,
            "event": asdict(event),
            "at": event.at,
            "state": NoticeState.WAITING,
        }
        insert_if_absent(session, Notice, ("subscription_id", "key"), row)


def subscribers(session: Session, target_id: int | None) -> list[Subscription]:
    """The subscriptions to a target or to all, read once in a transaction, at whose end they are still there."""
    cached: dict[int | None, list[Subscription]] = session.info.setdefault(_CACHED, {})
    if target_id not in cached:
        to_all = Subscription.target_id.is_(None)
        theirs = to_all if target_id is None else or_(to_all, Subscription.target_id == target_id)
        statement = select(Subscription).where(theirs).order_by(Subscription.id)
        cached[target_id] = list(session.scalars(statement.with_for_update(read=True, key_share=True)))
    return cached[target_id]


def wants(subscription: Subscription, event: NotableEvent) -> bool:
    """Whether a subscription to the target wants the event.  What has no device is of interest on all of them."""
    if SEVERITIES.index(event.severity) < SEVERITIES.index(subscription.severity):
        return False
    if subscription.kinds is not None and {event.kind, event.kind.partition(".")[0]}.isdisjoint(subscription.kinds):
        return False
    return subscription.device is None or event.device is None or fnmatchcase(event.device, subscription.device)


def is_silent(run: Run) -> bool:
    """Whether nothing is sent of what a run shows: only mainline runs are, and not those of a backfill."""
    return run.pull is not None or run.purpose is not Purpose.WATCH or run.priority == Priority.BACKFILL


POLLS = 3  # failures in a row after which a source counts as unreachable

_KINDS = {
    Action.OPEN: EventKind.REGRESSION_OPENED,
    Action.ACKNOWLEDGE: EventKind.REGRESSION_ACCEPTED,
    Action.EXPIRE: EventKind.REGRESSION_REOPENED,
    Action.UNDO: EventKind.REGRESSION_REOPENED,
    Action.RETURN: EventKind.REGRESSION_REOPENED,
    Action.REOPEN: EventKind.REGRESSION_REOPENED,
    Action.BLAME: EventKind.REGRESSION_BLAMED,
    Action.FIX: EventKind.REGRESSION_FIXED,
    Action.LEAVE: EventKind.REGRESSION_CLOSED,
    Action.REMOVE: EventKind.REGRESSION_CLOSED,
    Action.MEASURE_AGAIN: EventKind.REGRESSION_REOPENED,
    Action.DISMISS: EventKind.REGRESSION_CLOSED,
}
_WITH_REASON = (Action.ACKNOWLEDGE, Action.DISMISS, Action.LEAVE, Action.REMOVE)


def regression_changed(session: Session, row: RegressionRow, transition: Transition, now: float) -> None:
    """A regression was opened, changed or closed by this transition."""
    kind = _KINDS.get(transition.action)
    opened_by = session.get_one(Run, row.run_id)
    if kind is None or not subscribers(session, opened_by.target_id):
        return
    shown_by = session.get_one(Run, transition.run_id) if transition.run_id is not None else None
    if shown_by is not None and shown_by.priority == Priority.BACKFILL:
        return
    series = session.get_one(Series, row.series_id)
    if kind is EventKind.REGRESSION_OPENED and _is_slower_already(session, row):
        kind = EventKind.REGRESSION_WORSE
    run = shown_by if kind is EventKind.REGRESSION_FIXED and shown_by is not None else opened_by
    event = NotableEvent(
        kind,
        now,
        target=session.get_one(Target, opened_by.target_id).name,
        device=series.device,
        provider=series.provider,
        case=series.printed,
        ratio=row.ratio,
        revision=row.culprit if transition.action is Action.BLAME else _sha(session, run),
        cause=row.cause_kind,
        text=_short(transition.words if transition.action in _WITH_REASON else row.cause_text),
        by=transition.who if transition.who != KERNELWATCH else None,
        regression_id=row.id,
        incident_id=row.incident_id,
        run_id=run.id,
    )
    key = f"{kind}:{row.id}:{now:.3f}"
    subject = f"regression {row.id}"
    record(session, event, target_id=opened_by.target_id, subject=subject, key=key, series=f"series {row.series_id}")


def _is_slower_already(session: Session, row: RegressionRow) -> bool:
    others = (RegressionRow.series_id == row.series_id, RegressionRow.id != row.id)
    still = select(RegressionRow.id).where(*others, RegressionRow.state.in_(OPEN_REGRESSIONS)).limit(1)
    return session.scalar(still) is not None


def results_invalid(session: Session, run: Run, verdicts: Sequence[VerdictRow], now: float) -> None:
    """A mainline run has wrong results, which its baseline did not have."""
    if is_silent(run):
        return
    for verdict in verdicts:
        if verdict.baseline_kind != BaselineKind.PARENT or verdict.outcome != Outcome.INVALID:
            continue
        if not verdict.known_before and verdict.quarantined_by is None:
            event = _of_case(session, run, (verdict.provider, verdict.case), EventKind.CASE_INVALID, now)
            event = replace(event, text=_short(words.of_verdict(verdict)))
            subject = f"{verdict.case} of {verdict.provider} on {run.device} at revision {run.revision_id}"
            key = f"{event.kind}:{subject}"
            record(session, event, target_id=run.target_id, subject=subject[:200], key=key[:240])


def gap_changed(session: Session, run: Run, name: Name, series_id: int, ratio: float, *, behind: bool) -> None:
    """A case of the mainline fell behind SOTA, or caught up with it."""
    if is_silent(run):
        return
    kind = EventKind.GAP_OPENED if behind else EventKind.GAP_CLOSED
    event = replace(_of_case(session, run, name, kind, clock(session)), ratio=ratio)
    record(session, event, target_id=run.target_id, subject=f"gap {series_id}", key=f"{kind}:{series_id}:{run.id}")


_CAUSES = {MovedBy.COMMIT: Kind.CODE, MovedBy.STACK: Kind.STACK}


def configuration_moved(session: Session, run: Run, name: Name, drift: ConfigurationDrift) -> None:
    """A run chose another configuration than an earlier one of the same revision, or than its parent."""
    if is_silent(run):
        return
    drifted = drift.moved_by is MovedBy.NOTHING
    kind = EventKind.CONFIGURATION_DRIFTED if drifted else EventKind.CONFIGURATION_CHANGED
    event = replace(
        _of_case(session, run, name, kind, drift.at),
        cause=None if drifted else _CAUSES[drift.moved_by].value,
        revision=_sha(session, session.get_one(Run, drift.earlier_run_id)),
        text=f"{drift.before} → {drift.now}",
    )
    key = f"{event.kind}:{drift.moved_by}:{drift.series_id}:{run.id}"
    record(session, event, target_id=run.target_id, subject=f"configuration {drift.series_id}", key=key)


def run_failed(session: Session, run: Run, now: float) -> None:
    """A run of the mainline was given up, or its revision does not build."""
    if is_silent(run) or not subscribers(session, run.target_id):
        return
    event = NotableEvent(
        EventKind.RUN_FAILED,
        now,
        target=session.get_one(Target, run.target_id).name,
        device=run.device,
        revision=_sha(session, run),
        text=_short(run.reason),
        run_id=run.id,
    )
    record(session, event, target_id=run.target_id, subject=f"run {run.id}", key=f"{event.kind}:{run.id}:{run.attempt}")


def target_polled(session: Session, target: Target, failures_before: int, now: float) -> None:
    """A source was polled: it is unreachable after several failures in a row, and reachable after a success."""
    lost = failures_before < POLLS <= target.poll_failures
    back = failures_before >= POLLS and target.poll_failures == 0
    if not (lost or back):
        return
    kind = EventKind.TARGET_UNREACHABLE if lost else EventKind.TARGET_REACHABLE
    event = NotableEvent(kind, now, target=target.name, text=_short(target.poll_error))
    record(
        session,
        event,
        target_id=target.id,
        subject=f"source of target {target.id}",
        key=f"{kind}:{target.id}:{now:.3f}",
    )


def quarantine_changed(session: Session, key: SeriesKey, series_id: int, why: str, *, released: bool) -> None:
    """Equal code differs too often at a case, or no longer does."""
    kind = EventKind.CASE_RELEASED if released else EventKind.CASE_QUARANTINED
    now = clock(session)
    event = NotableEvent(
        kind,
        now,
        target=session.get_one(Target, key.target_id).name,
        device=key.device,
        provider=key.provider,
        case=key.printed,
        text=_short(why),
    )
    subject = f"quarantine {series_id}"
    record(session, event, target_id=key.target_id, subject=subject, key=f"{kind}:{series_id}:{now:.3f}")


def _of_case(session: Session, run: Run, name: Name, kind: EventKind, now: float) -> NotableEvent:
    target = session.get_one(Target, run.target_id).name
    provider, case = name
    return NotableEvent(
        kind,
        now,
        target=target,
        device=run.device,
        provider=provider,
        case=case,
        revision=_sha(session, run),
        run_id=run.id,
    )


def _sha(session: Session, run: Run) -> str:
    return session.get_one(Revision, run.revision_id).sha


def _short(text: str | None) -> str | None:
    return one_line(text) if text else None


LOST_S = 300.0  # a restart takes less
_MAX_S = 86_400.0  # what was silent for longer before anybody looked is no news


def note_lost() -> int:
    """Record the workers that were lost or came back since the last call.  Returns how many there were.

    A paused worker may be switched off.
    """
    changed = 0
    with transaction() as session:
        now = clock(session)
        for row in session.scalars(select(Worker).order_by(Worker.id).with_for_update(skip_locked=True)):
            silent = not is_recent(row.seen_at, now, LOST_S)
            expected = row.paused_at is not None or now - row.seen_at > _MAX_S
            if silent is (row.lost_at is not None) or (silent and expected):
                continue
            kind = EventKind.WORKER_LOST if silent else EventKind.WORKER_BACK
            key = f"{kind}:{row.id}:{row.seen_at if silent else row.lost_at:.3f}"
            row.lost_at = now if silent else None
            event = NotableEvent(kind, now, device=row.device, by=row.name)
            record(session, event, target_id=None, subject=f"worker {row.id}", key=key)
            changed += 1
    return changed


def note_starting() -> None:
    """Record the workers with a GPU that spent most of yesterday (UTC) starting processes, each once.

    Not those of CPUs, where nothing dear is idle meanwhile.
    """
    with transaction() as session:
        now = clock(session)
        midnight = now - now % DAY_S
        for (worker, device), seconds in phases.mean_seconds_of_a_day(session, midnight).items():
            if device != "cpu" and mostly_starts(seconds):
                kind = EventKind.WORKER_STARTS
                event = NotableEvent(kind, now, device=device, by=worker, text=f"a run took {in_words(seconds)}")
                key = f"{kind}:{worker}:{device}:{midnight:.0f}"
                record(session, event, target_id=None, subject=f"starts of {worker}", key=key)
