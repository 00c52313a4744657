"""Makes millions of measurements of a seeded database, inside of it: an ever longer past of the mainlines.

Each copy of the mainlines lies before the one after it, in time, in place and by id.  Copied measurements have neither
samples nor facts, which only the page of their own run reads.
"""

import hashlib
from collections.abc import Sequence
from typing import Any

from sqlalchemy import Connection, Enum, Float, LargeBinary, Numeric, Table, insert, text
from sqlalchemy.orm import Session

from service.db.models import Base
from tests.big.events import NUMBERED, copy_events

FIRST_ID = 1_000_000  # of seeded revisions and runs, so that there are smaller ids for what is older
_STRIDE = 5_000  # ids of a copy
_SPAN_S = 151 * 86400.0  # a copy is older by so much
# What is copied: runs of the mainlines that have ended.
_COPIED = "runs.pull IS NULL AND runs.purpose = 'watch' AND runs.state IN ('done', 'failed', 'skipped')"
_REBUILT = ("ix_measurements_series", "ix_measurements_history")  # afterwards, which is faster
_PAST = ("created_at", "started_at", "finished_at", "scanned_at")


def reserve_ids(session: Session) -> None:
    """Let revisions and runs begin at FIRST_ID.  Before the database is seeded."""
    for name in ("revisions", "runs", *NUMBERED):
        if session.get_bind().dialect.name == "postgresql":
            session.execute(text(f"SELECT setval(pg_get_serial_sequence('{name}', 'id'), {FIRST_ID}, false)"))
        else:  # the next id is one more than the largest; `release_ids` deletes the row
            session.execute(text("PRAGMA defer_foreign_keys = ON"))
            session.execute(insert(Base.metadata.tables[name]).values(_placeholder(Base.metadata.tables[name])))


def release_ids(session: Session) -> None:
    """Delete what `reserve_ids` wrote.  Once the database is seeded."""
    if session.get_bind().dialect.name != "postgresql":
        for name in ("revisions", "runs", *NUMBERED):
            session.execute(text(f"DELETE FROM {name} WHERE id = {FIRST_ID - 1}"))


def _placeholder(table: Table) -> dict[str, Any]:
    """A row of any values."""

    def value(column: Any) -> Any:
        kind = column.type
        if isinstance(kind, Enum):
            return kind.enum_class and next(iter(kind.enum_class))
        return b"" if isinstance(kind, LargeBinary) else 0 if isinstance(kind, Numeric | Float) else column.name

    required = [one for one in table.columns if not one.nullable and not one.primary_key]
    made = {one.name: 0 if one.foreign_keys or one.type.python_type in (int, bool) else value(one) for one in required}
    return made | {"id": FIRST_ID - 1}


def multiply(connection: Connection, wanted: int) -> int:
    """Copy the past until there are about `wanted` measurements.  Returns how many there are."""
    have, copied = (_count(connection, where) for where in ("TRUE", _COPIED))
    copies = max(0, round((wanted - have) / copied))
    assert copies * _STRIDE < FIRST_ID, "more copies than there are ids"
    if connection.dialect.name == "sqlite":
        _define_functions(connection)
    indexes = [one for one in Base.metadata.tables["measurements"].indexes if one.name in _REBUILT]
    for index in indexes:
        index.drop(connection)
    for number in range(copies, 0, -1):
        _copy(connection, number)
    for index in indexes:
        index.create(connection)
    # Ordinals count from the oldest, and those of the copies are below zero.
    lowest = connection.execute(text("SELECT target_id, min(ordinal) FROM revisions GROUP BY target_id")).all()
    for target, least in lowest:
        moved = "UPDATE revisions SET ordinal = ordinal - :least WHERE target_id = :target AND ordinal IS NOT NULL"
        connection.execute(text(moved), {"least": least, "target": target})
    return _count(connection, "TRUE")


def _count(connection: Connection, where: str) -> int:
    counted = f"SELECT count(*) FROM measurements JOIN runs ON runs.id = run_id WHERE {where}"
    return int(connection.execute(text(counted)).scalar_one())


def _define_functions(connection: Connection) -> None:
    """Give SQLite the functions of PostgreSQL that the copies are made with."""
    functions: dict[str, tuple[int, Any]] = {
        "md5": (1, lambda of: of and hashlib.md5(of.encode(), usedforsecurity=False).hexdigest()),
        "repeat": (2, lambda of, times: of and of * times),
        "convert_to": (2, lambda of, _: of and of.encode()),
    }
    driver: Any = connection.connection.driver_connection
    for name, (parameters, function) in functions.items():
        driver.create_function(name, parameters, function, deterministic=True)


def _copy(connection: Connection, number: int) -> None:
    """Write the copy that lies `number` spans before the original."""
    back, ago = number * _STRIDE, number * _SPAN_S

    def sha(column: str) -> str:
        return f"substr(md5({column} || '-{number}') || md5('{number}-' || {column}), 1, 40)"

    places = (
        "(SELECT max(ordinal) + 1 FROM revisions AS own WHERE own.target_id = revisions.target_id AND own.id >= :first)"
    )
    seeded = "id >= :first AND ordinal IS NOT NULL"
    changed = {
        "id": f"id - {back}",
        "ordinal": f"ordinal - {number} * {places}",
        "sha": sha("sha"),
        "parent": sha("parent"),
        "committed_at": f"committed_at - {ago}",
    }
    _insert(connection, "revisions", changed, f"revisions WHERE {seeded}")
    past = {column: f"{column} - {ago}" for column in _PAST}
    changed = past | {
        "id": f"id - {back}",
        "revision_id": f"revision_id - {back}",
        "dedupe": f"dedupe || '-{number}'",
        "baseline": sha("baseline"),
    }
    runs = f"SELECT id FROM runs WHERE {_COPIED} AND id >= :first"
    _insert(connection, "runs", changed, f"runs WHERE id IN ({runs})")
    of_run = {"run_id": f"run_id - {back}"}
    whose = f"WHERE run_id IN ({runs}) ORDER BY id"
    _insert(connection, "measurements", of_run | {"samples": "NULL", "facts": "'{}'"}, f"measurements {whose}", ["id"])
    _insert(connection, "verdicts", of_run, f"verdicts {whose}", ["id"])
    _insert(connection, "run_totals", of_run | {"at": f"at - {ago}"}, f"run_totals WHERE run_id IN ({runs})")
    copy_events(connection, back, ago, _insert, runs, FIRST_ID)


def _insert(
    connection: Connection, table: str, changed: dict[str, str], source: str, left_out: Sequence[str] = ()
) -> None:
    columns = [one.name for one in Base.metadata.tables[table].columns if one.name not in left_out]
    values = ", ".join(changed.get(name, f'"{name}"') for name in columns)
    listed = ", ".join(f'"{name}"' for name in columns)
    connection.execute(text(f"INSERT INTO {table} ({listed}) SELECT {values} FROM {source}"), {"first": FIRST_ID})
