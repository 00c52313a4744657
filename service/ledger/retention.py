"""Delete what a database need not keep: samples, facts, deliveries and answers, each after a period of its own.

Medians, verdicts, regressions and calibrations stay, and so do comments and checks, which are edited in place.  Texts
of runs are forgotten every hour (`stored_texts`), and so are notices.
"""

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from sqlalchemy import ColumnElement, Select, delete, func, select, update

from service.db.engine import clock, reading, transaction
from service.db.models import Delivery, Measurement, OutboxMessage, Run
from service.domain.states import OutboxState, RunState
from service.domain.text import DAY_S
from service.settings import settings

RUNS_AT_ONCE = 20  # of one transaction: some thousand measurements
ROWS_AT_ONCE = 500
_ANSWERS = ("answer", "reaction")  # kinds of messages that are never edited


class Kept(StrEnum):
    """What is kept for a period."""

    SAMPLES = "samples"
    FACTS = "facts"
    DELIVERIES = "deliveries"
    ANSWERS = "answers"


@dataclass(frozen=True)
class Pruned:
    """How many rows of a kind were emptied or deleted, or would be."""

    kind: Kept
    days: float
    rows: int


def due() -> list[Pruned]:
    """What `prune` would take.  Changes nothing."""
    with reading() as session:
        now = clock(session)
        counts = {
            kind: select(func.count()).select_from(Measurement).where(Measurement.run_id.in_(_runs(kind, now)))
            for kind in (Kept.SAMPLES, Kept.FACTS)
        }
        counts |= {kind: select(func.count()).select_from(table).where(*_expired(kind, now)) for kind, table in _ROWS}
        return [Pruned(kind, _days(kind), session.scalar(count) or 0) for kind, count in counts.items()]


def prune(goes_on: Callable[[], bool] = lambda: True) -> list[Pruned]:
    """Empty and delete what has expired, in small transactions, as long as `goes_on` says so before each."""
    with reading() as session:
        now = clock(session)
    rows = {kind: _emptied(kind, _runs(kind, now), goes_on) for kind in (Kept.SAMPLES, Kept.FACTS)}
    rows |= {kind: _deleted(kind, table, now, goes_on) for kind, table in _ROWS}
    return [Pruned(kind, _days(kind), count) for kind, count in rows.items()]


_ROWS: tuple[tuple[Kept, type[Delivery | OutboxMessage]], ...] = (
    (Kept.DELIVERIES, Delivery),
    (Kept.ANSWERS, OutboxMessage),
)


def _days(kind: Kept) -> float:
    """For how long this kind is kept."""
    match kind:
        case Kept.SAMPLES:
            return settings().samples_days
        case Kept.FACTS:
            return settings().facts_days
        case Kept.DELIVERIES | Kept.ANSWERS:
            return settings().deliveries_days


def _runs(kind: Kept, now: float) -> Select[Any]:
    """The runs whose samples or facts have expired, and are still stored."""
    stored = Run.has_samples if kind is Kept.SAMPLES else Run.has_facts
    return select(Run.id).where(stored, Run.finished_at < now - _days(kind) * DAY_S, Run.state == RunState.DONE)


def _expired(kind: Kept, now: float) -> tuple[ColumnElement[bool], ...]:
    oldest = now - _days(kind) * DAY_S
    if kind is Kept.DELIVERIES:
        return Delivery.received_at < oldest, Delivery.processed_at.is_not(None)
    ended = OutboxMessage.state != OutboxState.WAITING
    return OutboxMessage.created_at < oldest, OutboxMessage.kind.in_(_ANSWERS), ended


def _emptied(kind: Kept, runs: Select[Any], goes_on: Callable[[], bool]) -> int:
    of_samples = kind is Kept.SAMPLES
    empty: dict[Any, Any] = {Measurement.samples: None} if of_samples else {Measurement.facts: {}}
    gone = Run.has_samples if of_samples else Run.has_facts
    count = 0
    while goes_on():
        with transaction() as session:
            ids = session.scalars(runs.order_by(Run.finished_at).limit(RUNS_AT_ONCE)).all()
            if not ids:
                break
            done = session.execute(update(Measurement).where(Measurement.run_id.in_(ids)).values(empty))
            session.execute(update(Run).where(Run.id.in_(ids)).values({gone: False}))
            count += done.rowcount  # type: ignore[attr-defined]
    return count


def _deleted(kind: Kept, table: type[Delivery | OutboxMessage], now: float, goes_on: Callable[[], bool]) -> int:
    """Rows are stored in the order of their time, and some are kept: a part that begins with a newer row is the end."""
    stored_at = Delivery.received_at if kind is Kept.DELIVERIES else OutboxMessage.created_at
    count, after = 0, 0
    while goes_on():
        with transaction() as session:
            next_rows = select(table.id, stored_at).where(table.id > after).order_by(table.id).limit(ROWS_AT_ONCE)
            part = session.execute(next_rows).all()
            if not part or part[0][1] >= now - _days(kind) * DAY_S:
                break
            expired = delete(table).where(table.id.in_([row.id for row in part]), *_expired(kind, now))
            done = session.execute(expired.execution_options(synchronize_session=False))
            count, after = count + done.rowcount, part[-1].id  # type: ignore[attr-defined]
    return count
