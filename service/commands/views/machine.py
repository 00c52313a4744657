"""What this machine has and does, as commands print it: checks, stacks, database, imports, workers and queue."""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from types import MappingProxyType
from typing import TYPE_CHECKING

from pydantic import BaseModel

from kernelwatch.client.models import BatchItem, ChannelItem, QueueItem, TargetDocument, WorkerItem
from service.commands.output.views import Column, Columns, Part, Sentence, Table, View, minute, text
from service.commands.views import access
from service.commands.views.runs import QUEUE, WORKERS
from service.domain.imports.values import MISSING_WORDS
from service.domain.states import Missing
from service.domain.text import counted, in_bytes, lasted, listed

if TYPE_CHECKING:  # both import Alembic, which an installation without the extra `server` lacks
    from service.db.check import Checked
    from service.db.size import TableSize
    from service.ledger.retention import Pruned
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


class SizeItem(BaseModel):
    """How large a table of the database is."""

    table: str
    bytes: int


class PrunedItem(BaseModel):
    """How much of a kind has expired."""

    kind: str
    days: float
    rows: int


class DatabaseDocument(BaseModel):
    """What `db check` found."""

    migration: str | None
    tables: list[TableItem]
    problems: list[str]


_STYLES = {"ok": "green", "missing": "red", "optional": "yellow"}


def checks(found: "Sequence[Check]") -> View:
    """Each check, with a fix for what is missing."""
    items = [
        CheckItem(
            name=one.name,
            state="ok" if one.ok else "missing" if one.needed else "optional",
            found=one.found,
            effect=one.effect,
            fix=one.fix,
        )
        for one in found
    ]
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


STACKS = Columns(
    StackItem,
    Column("stack", lambda one: one.name, lambda _: "bold"),
    Column("python", lambda one: one.python),
    Column("paths", lambda one: " ".join(one.paths), below=True),
)


def stacks(items: Sequence[StackItem]) -> View:
    """The base environments."""
    hint = "No stacks. Create one with `kernelwatch stack create host`, or use `kernelwatch stack adopt`."
    return View(list(items), [STACKS.table(items), *([] if items else [text(hint)])])


TABLES = Columns(
    TableItem,
    Column("rows", lambda one: f"{one.rows:,}", right=True),
    Column("table", lambda one: one.table),
)


SIZES = Columns(
    SizeItem,
    Column("size", lambda one: in_bytes(one.bytes), right=True),
    Column("table", lambda one: one.table),
)
PRUNED = Columns(
    PrunedItem,
    Column("rows", lambda one: f"{one.rows:,}", right=True),
    Column("kind", lambda one: one.kind),
    Column("older than", lambda one: f"{one.days:g} days"),
)


def table_sizes(found: "Sequence[TableSize]") -> View:
    """Tables with their indexes, the largest first."""
    items = [SizeItem(table=one.table, bytes=one.bytes) for one in found]
    return View(items, [SIZES.table(items), text(f"{in_bytes(sum(one.bytes for one in items))} in all.")])


def pruned(found: "Sequence[Pruned]", *, dry_run: bool) -> View:
    """What was emptied or deleted, or would be."""
    items = [PrunedItem(kind=one.kind, days=one.days, rows=one.rows) for one in found]
    return View(items, [PRUNED.table(items), *([text("Nothing was deleted: --dry-run.")] if dry_run else [])])


def database(found: "Checked") -> View:
    """Rows by table, and what is wrong."""
    problems = found.problems()
    tables = [TableItem(table=name, rows=rows) for name, rows in found.rows.items()]
    lines: list[Part] = [text((f"Problem: {one}.", "red")) for one in problems]
    if not problems:
        lines.append(text(f"No problems at migration {found.revision}."))
    document = DatabaseDocument(migration=found.revision, tables=tables, problems=problems)
    return View(document, [TABLES.table(tables), *lines], code=1 if problems else 0)


BATCHES = Columns(
    BatchItem,
    Column("batch", lambda one: str(one.id), lambda _: "bold", right=True),
    Column("device", lambda one: one.device),
    Column("machine", lambda one: one.machine, folds=True),
    Column("tool", lambda one: one.tool, spare=2),
    Column("measured", lambda one: minute(one.measured_at), spare=1),
    Column("measurements", lambda one: f"{one.measurements:,}", right=True),
    Column("samples", lambda one: f"{one.samples:,}", right=True),
)


def imported(
    stored: Sequence[BatchItem],
    target: str,
    left_out: int = 0,
    *,
    missing: Mapping[str, int] = MappingProxyType({}),
    known: int = 0,
) -> View:
    """What was stored of imported files, and what of them has no number; `known` batches were there before."""
    batches = f"{len(stored):,} batch{'es' * (len(stored) != 1)}"
    samples = counted(sum(one.samples for one in stored), "sample")
    lines = [text(f"{batches} with {samples} of ", (target, "bold"), ", as measurements made elsewhere:")]
    if left_out:
        lines.append(text(f"Left out: {counted(left_out, 'measurement')} in other roles or without samples."))
    if missing:
        reasons = listed(f"{count:,} {MISSING_WORDS[Missing(why)]}" for why, count in missing.items())
        lines.append(text(f"Without a number: {counted(sum(missing.values()), 'value')} ({reasons})."))
    if known:
        lines.append(text(f"Already there: {known:,} batch{'es' * (known != 1)}."))
    return View(list(stored), [lines[0], *([BATCHES.table(stored)] if stored else []), *lines[1:]])


class StatusDocument(BaseModel):
    """Documents of the API side by side."""

    targets: Sequence[TargetDocument]
    workers: Sequence[WorkerItem]
    queue: Sequence[QueueItem]
    channels: Sequence[ChannelItem]


def status(
    *,
    targets: Sequence[TargetDocument],
    workers: Sequence[WorkerItem],
    queue: Sequence[QueueItem],
    channels: Sequence[ChannelItem],
) -> View:
    """Targets with what is wrong about them, channels that do not work, then workers, then the queue."""
    lines = [line for one in targets for line in _target(one)]
    parts = (
        *(lines or [text("No targets. Add one with `kernelwatch target add NAME LOCATION`.")]),
        *access.failing(channels),
        *([WORKERS.table(workers)] if workers else [text("No workers.")]),
        *([QUEUE.table(queue)] if queue else [text("The queue is empty.")]),
    )
    return View(StatusDocument(targets=targets, workers=workers, queue=queue, channels=channels), parts, over=False)


def _target(one: TargetDocument) -> list[Sentence]:
    counts = f": {counted(one.open_regressions, 'open regression')}, {counted(one.behind_sota, 'case')} behind SOTA"
    size = f", mirror {in_bytes(one.mirror_bytes)}" if one.mirror_bytes else ""
    found = [text("target ", (one.name, "bold"), f"{counts}{size}{', paused' if one.paused_at else ''}")]
    if one.poll_error:
        found.append(text("  ", (f"the last poll failed: {one.poll_error}", "red")))
    if one.forge_paused_until and (wait_s := (one.forge_paused_until - datetime.now(UTC)).total_seconds()) > 0:
        found.append(text(f"  comments and checks are sent in {lasted(wait_s)}: {one.forge_error}"))
    return found
