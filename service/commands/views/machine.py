"""What this machine has, as commands print it: checks, stacks and the database."""

from collections.abc import Sequence

from pydantic import BaseModel

from service.commands.output.views import Column, Part, Table, View, text
from service.db.check import Checked
from service.ops.doctor import Check


class CheckItem(BaseModel):
    """One check of `doctor`."""

    name: str
    state: str  # ok, missing or optional
    found: str
    effect: str
    fix: str


class StackItem(BaseModel):
    """A base environment."""

    name: str
    python: str
    paths: list[str]


class TableItem(BaseModel):
    """A table of the database."""

    table: str
    rows: int


class DatabaseDocument(BaseModel):
    """What `db check` found."""

    migration: str | None
    tables: list[TableItem]
    problems: list[str]


_STYLES = {"ok": "green", "missing": "red", "optional": "yellow"}


def checks(found: Sequence[Check]) -> View:
    """Each check, with a fix for what is missing."""
    items = [CheckItem(state=_state(one), **_named(one)) for one in found]
    width = max(len(one.name) for one in items)
    lines = list[Part]()
    for one in items:
        lines.append(text((f"{one.state:>8}", _STYLES[one.state]), f"  {one.name:<{width}}  {one.found}"))
        if one.state != "ok":
            hints = (one.effect, one.fix and f"fix: {one.fix}")
            lines += [text(f"{'':>{width + 12}}{hint}") for hint in hints if hint]
    missing = [one.name for one in items if one.state == "missing"]
    end = f"Missing requirements: {', '.join(missing)}." if missing else "All requirements are met."
    return View(items, [*lines, text(f"\n{end}")], code=1 if missing else 0, table=Table(CheckItem, items, ()))


def _state(one: Check) -> str:
    return "ok" if one.ok else "missing" if one.needed else "optional"


def _named(one: Check) -> dict[str, str]:
    return {"name": one.name, "found": one.found, "effect": one.effect, "fix": one.fix}


STACKS = (
    Column[StackItem]("stack", lambda one: one.name, lambda _: "bold"),
    Column[StackItem]("python", lambda one: one.python),
    Column[StackItem]("paths", lambda one: " ".join(one.paths), below=True),
)


def stacks(items: Sequence[StackItem]) -> View:
    """The base environments."""
    hint = "No stacks. Create one with `kernelwatch stack create host`, or use `kernelwatch stack adopt`."
    return View(list(items), [Table(StackItem, items, STACKS), *([] if items else [text(hint)])])


TABLES = (
    Column[TableItem]("rows", lambda one: f"{one.rows:,}", right=True),
    Column[TableItem]("table", lambda one: one.table),
)


def database(found: Checked) -> View:
    """Rows by table, and what is wrong."""
    problems = found.problems()
    tables = [TableItem(table=name, rows=rows) for name, rows in found.rows.items()]
    lines: list[Part] = [text((f"Problem: {one}.", "red")) for one in problems]
    if not problems:
        lines.append(text(f"No problems at migration {found.revision}."))
    document = DatabaseDocument(migration=found.revision, tables=tables, problems=problems)
    return View(document, [Table(TableItem, tables, TABLES), *lines], code=1 if problems else 0)
