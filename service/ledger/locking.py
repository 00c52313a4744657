"""Insert a row once, take turns between processes, bound periodic work, and retry what failed with back-off.

Failures are kept in memory: another process, or this one after a restart, retries at once.
"""

import time
from collections.abc import Hashable, Iterable, Iterator, Mapping
from typing import Any, TypeVar

from sqlalchemy import ColumnElement, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.db.models import Base, Target
from service.errors import NotFound

Item = TypeVar("Item")


def insert_if_absent(
    session: Session,
    table: type[Base],
    unique: str | tuple[str, ...],
    values: Mapping[str, Any],
    where: ColumnElement[bool] | None = None,
) -> int | None:
    """Insert a row unless one has the same `unique` column or columns: its id, or None where there was one.

    `where` is the condition of a partial unique index.  The second of two waits for the first to commit and does not
    fail, so that the rest of its transaction is kept.
    """
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    columns = (unique,) if isinstance(unique, str) else unique
    insert = dialect.insert(table).values(**values).on_conflict_do_nothing(index_elements=columns, index_where=where)
    row_id: int | None = session.scalar(insert.returning(table.__table__.c.id))
    return row_id


def lock(session: Session, target_id: int) -> None:
    """Take turns on a target, so that ordinals have no gaps and no incident is opened twice.

    SQLite has one writer anyway.  Raises NotFound where the target was removed, perhaps while this waited.
    """
    # FOR NO KEY UPDATE: rows that refer to the target may still be written by others.
    _lock(session, target_id, key_share=True)


def lock_to_remove(session: Session, target_id: int) -> None:
    """As `lock`; until this transaction ends, nobody else adds rows that refer to the target either."""
    _lock(session, target_id, key_share=False)


def _lock(session: Session, target_id: int, *, key_share: bool) -> None:
    row = select(Target.id).where(Target.id == target_id).with_for_update(key_share=key_share)
    if session.scalar(row) is None:
        raise NotFound("target", target_id, "It was removed.")


BUDGET_S = 10.0  # of one call of a periodic task, because others wait for the same thread


def within_budget(items: Iterable[Item]) -> Iterator[Item]:
    """The first of the items, and further ones until `BUDGET_S` have passed; the rest waits for the next call."""
    ends = time.monotonic() + BUDGET_S
    for number, item in enumerate(items):
        if number and time.monotonic() > ends:
            return
        yield item


WAITS_S = (0.0, 0.0, 10.0, 30.0, 120.0, 600.0)  # by the number of failures in a row


class Backoff:
    """Which keys failed lately, how often in a row, and until when to skip them."""

    def __init__(self) -> None:
        self._failed: dict[Hashable, tuple[int, float]] = {}

    def should_skip(self, key: Hashable) -> bool:
        """Did this fail so often that it must wait?"""
        return key in self._failed and time.monotonic() < self._failed[key][1]

    def failed(self, key: Hashable, longest_s: float = WAITS_S[-1]) -> None:
        times = self._failed.get(key, (0, 0.0))[0] + 1
        wait_s = min(WAITS_S[min(times, len(WAITS_S)) - 1], longest_s)
        self._failed[key] = times, time.monotonic() + wait_s

    def succeeded(self, key: Hashable) -> None:
        self._failed.pop(key, None)

    def forget(self) -> None:
        self._failed.clear()


backoff = Backoff()  # of this process; each key begins with the kind of work
