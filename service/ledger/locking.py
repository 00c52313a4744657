"""What two may want to do at the same moment, and one does."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import ColumnElement, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.orm import Session

from service.db.models import Base, Target


def insert_if_absent(
    session: Session,
    table: type[Base],
    unique: str | tuple[str, ...],
    values: Mapping[str, Any],
    where: ColumnElement[bool] | None = None,
) -> int | None:
    """Insert a row unless there is one with the same `unique` column or columns: its id, None where there was one.

    Where they are unique among some rows only, `where` is the condition of the index.

    Whoever comes second waits for the first to commit, and does not fail: its own work in the transaction is kept.
    """
    dialect = postgresql if session.get_bind().dialect.name == "postgresql" else sqlite
    columns = (unique,) if isinstance(unique, str) else unique
    insert = dialect.insert(table).values(**values).on_conflict_do_nothing(index_elements=columns, index_where=where)
    found: int | None = session.scalar(insert.returning(table.__table__.c.id))
    return found


def lock(session: Session, target_id: int) -> None:
    """One at a time for each target: ordinals stay without gaps, incidents are not opened twice.

    SQLite has one writer anyway.
    """
    # A key share lock is enough: rows that point at the target may be written meanwhile, by who waits for nobody here.
    session.execute(select(Target.id).where(Target.id == target_id).with_for_update(key_share=True))
