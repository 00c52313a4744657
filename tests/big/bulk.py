"""Rows by the million: COPY on PostgreSQL, one prepared statement on SQLite.  Values are plain, JSON is text."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from service.db.models import Base

_MANY = 20_000  # rows that are sent together


class Bulk:
    """Collects rows of tables in the transaction of a session, and sends them in the order of the columns given."""

    def __init__(self, session: Session) -> None:
        self._connection = session.connection()
        self._rows = defaultdict[tuple[str, tuple[str, ...]], list[tuple[Any, ...]]](list)
        self.written = 0

    def add(self, model: type[Base], columns: tuple[str, ...], rows: Sequence[tuple[Any, ...]]) -> None:
        waiting = self._rows[model.__tablename__, columns]
        waiting += rows
        self.written += len(rows)
        if len(waiting) >= _MANY:
            self._send(model.__tablename__, columns)

    def flush(self) -> None:
        for table, columns in self._rows:
            self._send(table, columns)

    def _send(self, table: str, columns: tuple[str, ...]) -> None:
        rows = self._rows[table, columns]
        names = ", ".join(f'"{name}"' for name in columns)
        if not rows:
            return
        if self._connection.dialect.name == "postgresql":
            cursor = self._connection.connection.cursor()
            with cursor.copy(f"COPY {table} ({names}) FROM STDIN") as copy:  # type: ignore[attr-defined]
                for row in rows:
                    copy.write_row(row)
        else:
            marks = ", ".join("?" * len(columns))
            self._connection.exec_driver_sql(f"INSERT INTO {table} ({names}) VALUES ({marks})", rows)
        rows.clear()
