"""The statements that a page sends, how long each takes, and PostgreSQL's plan of a slow one."""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import event

from service.db.engine import engine
from tests.dashboards.asking import asking


@dataclass(frozen=True)
class Statement:
    sql: str
    parameters: Any
    ms: float


def print_plans(pages: dict[str, str], slower_than_ms: float) -> None:
    """Ask for each page twice, and print its statements that are slow the second time, with their plans."""
    get = asking()
    for name, path in pages.items():
        if get(path).status_code != 200:
            continue
        began = time.perf_counter()
        with timed() as sent:
            get(path)
        whole = (time.perf_counter() - began) * 1e3
        print(f"{name}: {len(sent)} statements, {sum(one.ms for one in sent):.0f} of {whole:.0f} ms", flush=True)
        for one in sorted(sent, key=lambda one: -one.ms):
            if one.ms >= slower_than_ms:
                print(f"\n{one.ms:.0f} ms: {one.sql}\n{_plan(one)}\n", flush=True)


@contextmanager
def timed() -> Iterator[list[Statement]]:
    """Collect the statements that this process sends meanwhile."""
    found = list[Statement]()

    def before(_connection: Any, _cursor: Any, _sql: str, _parameters: Any, context: Any, _many: bool) -> None:
        context.began = time.perf_counter()

    def after(_connection: Any, _cursor: Any, sql: str, parameters: Any, context: Any, _many: bool) -> None:
        found.append(Statement(sql, parameters, (time.perf_counter() - context.began) * 1e3))

    event.listen(engine(), "before_cursor_execute", before)
    event.listen(engine(), "after_cursor_execute", after)
    try:
        yield found
    finally:
        event.remove(engine(), "before_cursor_execute", before)
        event.remove(engine(), "after_cursor_execute", after)


def _plan(one: Statement) -> str:
    with engine().connect() as connection:
        if connection.dialect.name != "postgresql":
            return "(plans are PostgreSQL's)"
        rows = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS) {one.sql}", one.parameters)
        return "\n".join(row[0] for row in rows)
