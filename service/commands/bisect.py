"""`kernelwatch bisect` and `kernelwatch bisection`: who made it slower?"""

import json
import sys
import time
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from service.commands.people import this_person
from service.commands.printing import Format, err, line, out
from service.db.engine import reading, transaction
from service.domain.bisection.search import Ending
from service.domain.states import SearchState
from service.domain.text import printable, short
from service.domain.verdicts.gate import UNDECIDED
from service.errors import BadInput
from service.ledger.bisections import advance, bisections
from service.ledger.intake import targets
from service.reports.bisection import COLUMNS, document, page, step_cells
from service.reports.views import Search, Stepped
from service.settings import settings

bisection_app = typer.Typer(no_args_is_help=True, help="Searches for the revision that made it slower.")

_CODES = {SearchState.FOUND: 0, SearchState.RANGE: 1, SearchState.STOPPED: 2, SearchState.NOT_REPRODUCED: 125}
Formatted = Annotated[Format, typer.Option("--format")]


def bisect(
    target: str,
    revisions: Annotated[str, typer.Argument(help="GOOD..BAD: commits, tags or releases, the older one first.")],
    device: Annotated[str | None, typer.Option(help="Where; needed when the recipe has several.")] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="Only cases that fit this pattern; may be repeated.  By default those known to be slower."),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="A suite other than the recipe's for the device.")] = None,
    most: Annotated[int | None, typer.Option(help="Steps at most; by default the policy's.", min=3, max=200)] = None,
    wait: Annotated[bool, typer.Option(help="Wait for the end and exit with it.")] = False,
    form: Formatted = Format.TABLE,
) -> None:
    """Search for the revision that made it slower, by measuring; each step is a run when nothing else waits.

    Exit codes with --wait, and of `bisection show`: 0 the culprit was found, or the search goes on; 1 there is a
    regression, and a range of revisions that may have made it; 2 it was stopped, or the command or the infrastructure
    failed; 3 whether the bad end is slower stayed undecided; 125 there is nothing to search: the bad end is not slower,
    or an end cannot be measured.
    """
    good, dots, bad = revisions.partition("..")
    if not (good and dots and bad) or bad.startswith("."):
        raise BadInput(f"{revisions!r} is not GOOD..BAD.")
    bisection_id = advance.search(
        target, good, bad, device=device, suite=suite, patterns=case or (), max_runs=most, asked_by=this_person()
    )
    said = out if form is Format.TABLE else err  # a document must stand alone
    said.print(f"Bisection {bisection_id}  ({settings().address}/bisections/{bisection_id})", soft_wrap=True)
    if wait:
        sys.exit(_wait(bisection_id, form))


@bisection_app.command("list")
def bisection_list(
    target: Annotated[str | None, typer.Argument(help="Only of this target.")] = None, form: Formatted = Format.TABLE
) -> None:
    """The newest searches, and what they found."""
    table = Table("bisection", "target", "device", "good..bad", "state", "")
    with reading() as session:
        rows = bisections.listed(session, targets.target_named(session, target) if target else None)
        if form is not Format.TABLE:
            whole = [bisections.one(session, row.id) for row in rows]
    if form is Format.JSON:
        print(json.dumps([document(one) for one in whole], indent=2))  # noqa: T201
    elif form is Format.MD:
        print("\n\n".join(page(one) for one in whole))  # noqa: T201
    else:
        for row in rows:
            ends = f"{short(row.good)}..{short(row.bad)}"
            cells = (str(row.id), row.target.name, row.device, ends, row.state.value, row.reason or "queued")
            table.add_row(*(Text(printable(cell)) for cell in cells))
        out.print(table if rows else "None yet.  `kernelwatch bisect TARGET GOOD..BAD` begins one.")


@bisection_app.command("show")
def bisection_show(bisection_id: int, form: Formatted = Format.TABLE) -> None:
    """One search with its steps; the exit codes are those of `bisect`."""
    with reading() as session:
        found = bisections.one(session, bisection_id)
    _show(found, form)
    sys.exit(_code(found))


@bisection_app.command("stop")
def bisection_stop(bisection_id: int) -> None:
    """End a search; what it found so far is kept."""
    with transaction() as session:
        row = bisections.stop(session, bisection_id, this_person())
    line(row.reason or "")


def _wait(bisection_id: int, form: Format) -> int:
    last = ""
    while True:
        with reading() as session:
            found = bisections.one(session, bisection_id)
        if found.done:
            _show(found, form)
            return _code(found)
        if form is Format.TABLE and found.words != last:
            line(f"bisection {bisection_id}: {found.words}")
            last = found.words
        time.sleep(1)


def _code(found: Search) -> int:
    undecided = found.progress is not None and found.progress.ending is Ending.UNDECIDED
    if undecided and found.row.state is SearchState.NOT_REPRODUCED:
        return UNDECIDED
    return _CODES.get(found.row.state, 0)


def _show(found: Search, form: Format) -> None:
    if form is Format.JSON:
        print(json.dumps(document(found), indent=2))  # noqa: T201  (for pipes: no wrapping, no colours)
    elif form is Format.MD:
        print(page(found))  # noqa: T201
    else:
        out.print(_table(found.steps))
        line((found.row.state.value, "bold"), ": ", found.words)


def _table(steps: tuple[Stepped, ...]) -> Table:
    table = Table(*COLUMNS)
    for one in steps:
        table.add_row(*(Text(printable(cell)) for cell in step_cells(one)))
    return table
