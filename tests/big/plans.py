"""How much each statement that this process sends reads, by the plan of the database.

A statement is executed once more right before it is sent, in a savepoint that is rolled back.  PostgreSQL explains what
it did: the rows that its scans returned or left out.  SQLite counts the instructions of its virtual machine.
"""

import re
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event

from service.db.engine import engine
from tests.workers.periodic import until_idle

_READS_ROWS = re.compile(r"\s*(SELECT|WITH|INSERT|UPDATE|DELETE)\b", re.IGNORECASE)
_LIST = re.compile(r"IN \((%\(\w+\)s(::\w+)?|\?)(, (%\(\w+\)s(::\w+)?|\?))*\)")
_INSTRUCTIONS = 50  # of a count


@dataclass(frozen=True)
class Statement:
    """What a statement read, of rows on PostgreSQL and in instructions on SQLite, and how."""

    sql: str
    work: int
    plan: str


@contextmanager
def measured() -> Iterator[dict[str, Statement]]:
    """Collect the statements that are sent meanwhile: of each that execution which read most.

    A list of parameters counts as the same statement however long it is.
    """
    found = dict[str, Statement]()
    seen = set[tuple[str, str]]()

    def before(_connection: Any, cursor: Any, sql: str, parameters: Any, _context: Any, many: bool) -> None:
        own = parameters[0] if many else parameters
        key = (sql, repr(own))
        if key in seen or not _READS_ROWS.match(sql):
            return
        seen.add(key)
        name = _LIST.sub("IN (…)", sql)
        statement = _HOW[engine().dialect.name](cursor.connection, sql, own)
        if name not in found or found[name].work < statement.work:
            found[name] = statement

    event.listen(engine(), "before_cursor_execute", before)
    try:
        yield found
    finally:
        until_idle()
        event.remove(engine(), "before_cursor_execute", before)


def _on_postgresql(connection: Any, sql: str, parameters: Any) -> Statement:
    with connection.cursor() as cursor:
        cursor.execute("SAVEPOINT measured")
        cursor.execute(f"EXPLAIN (ANALYZE, TIMING OFF, FORMAT JSON) {sql}", parameters)
        plan = cursor.fetchone()[0][0]["Plan"]
        cursor.execute("ROLLBACK TO SAVEPOINT measured")
        cursor.execute("RELEASE SAVEPOINT measured")
    return Statement(sql, _rows(plan), "\n".join(_lines(plan)))


def _rows(plan: Mapping[str, Any]) -> int:
    """The rows that the scans of a plan returned or left out."""
    own = 0
    if "Scan" in plan["Node Type"] and plan["Node Type"] not in ("CTE Scan", "Subquery Scan", "Bitmap Index Scan"):
        left_out = plan.get("Rows Removed by Filter", 0) + plan.get("Rows Removed by Index Recheck", 0)
        own = round((plan["Actual Rows"] + left_out) * plan["Actual Loops"])
    return own + sum(_rows(each) for each in plan.get("Plans", ()))


def _lines(plan: Mapping[str, Any], depth: int = 1) -> Iterator[str]:
    """For each node what it is, and its rows."""
    of = " ".join(str(plan[key]) for key in ("Relation Name", "Index Name") if key in plan)
    left_out = plan.get("Rows Removed by Filter", 0)
    yield f"{'  ' * depth}{plan['Node Type']} {of}: {plan['Actual Rows']} rows x {plan['Actual Loops']}, -{left_out}"
    for each in plan.get("Plans", ()):
        yield from _lines(each, depth + 1)


def _on_sqlite(connection: Any, sql: str, parameters: Any) -> Statement:
    driver = getattr(connection, "driver_connection", connection)
    counts = 0

    def count() -> None:
        nonlocal counts
        counts += 1

    cursor = driver.cursor()
    plan = cursor.execute(f"EXPLAIN QUERY PLAN {sql}", parameters).fetchall()
    cursor.execute("SAVEPOINT measured")
    driver.set_progress_handler(count, _INSTRUCTIONS)
    cursor.execute(sql, parameters).fetchall()
    driver.set_progress_handler(None, _INSTRUCTIONS)
    cursor.execute("ROLLBACK TO SAVEPOINT measured")
    cursor.execute("RELEASE SAVEPOINT measured")
    cursor.close()
    return Statement(sql, counts * _INSTRUCTIONS, "\n".join(f"  {row[3]}" for row in plan))


_HOW: Mapping[str, Callable[[Any, str, Any], Statement]] = {"postgresql": _on_postgresql, "sqlite": _on_sqlite}
