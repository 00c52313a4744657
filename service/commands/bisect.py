"""`kernelwatch bisect` and `kernelwatch bisection`: find the revision that made it slower."""

import sys
import time
from typing import Annotated

import typer
from rich.table import Table
from rich.text import Text

from service.commands.people import this_person
from service.commands.printing import Format, Formatted, err, line, out, print_json
from service.db.engine import reading, transaction
from service.domain.bisection.search import Ending
from service.domain.states import UNDECIDED, SearchState
from service.domain.text import printable, short
from service.errors import BadInput
from service.ledger.bisections import advance, bisections
from service.ledger.intake import targets
from service.reports.bisection import COLUMNS, page, step_cells
from service.reports.schema.base import Page, one_page
from service.reports.schema.bisections import BisectionDocument, BisectionItem
from service.reports.views import BisectionView, StepView
from service.settings import settings

bisection_app = typer.Typer(no_args_is_help=True, help="Show and stop bisections.")

_CODES = {SearchState.FOUND: 0, SearchState.RANGE: 1, SearchState.STOPPED: 2, SearchState.NOT_REPRODUCED: 125}


def bisect(
    target: str,
    revisions: Annotated[str, typer.Argument(help="GOOD..BAD: commits, tags or releases, the older one first.")],
    device: Annotated[str | None, typer.Option(help="The device; required if the recipe has several.")] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(help="Only cases that match this pattern; may be repeated.  By default those known to be slower."),
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Another suite than the recipe's for the device.")] = None,
    max_runs: Annotated[
        int | None, typer.Option(help="Maximum number of runs; by default the policy's.", min=3, max=200)
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait for the result and exit with its code.")] = False,
    form: Formatted = Format.TABLE,
) -> None:
    """Find the revision that made it slower, by measuring.  Each step is a run at the lowest priority.

    Exit codes with --wait, and of `bisection show`: 0 the culprit was found, or the search continues; 1 the regression
    is confirmed, but only narrowed down to a range of revisions; 2 the search was stopped, or an infrastructure or
    usage error; 3 it is undecided whether the bad revision is slower; 125 the bad revision is not slower, or an end
    cannot be measured.
    """
    good, dots, bad = revisions.partition("..")
    if not (good and dots and bad) or bad.startswith("."):
        raise BadInput(f"{revisions!r} is not a range GOOD..BAD.")
    bisection_id = advance.search(
        target, good, bad, device=device, suite=suite, patterns=case or (), max_runs=max_runs, asked_by=this_person()
    )
    to = out if form is Format.TABLE else err  # stdout holds nothing but the document
    to.print(f"Bisection {bisection_id}  ({settings().address}/bisections/{bisection_id})", soft_wrap=True)
    if wait:
        sys.exit(_wait(bisection_id, form))


@bisection_app.command("list")
def bisection_list(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of bisections, the newest.", min=1, max=200)] = 50,
    form: Formatted = Format.TABLE,
) -> None:
    """List the newest bisections and their results."""
    table = Table("bisection", "target", "device", "good..bad", "state", "")
    with reading() as session:
        of = targets.target_named(session, target) if target else None
        rows, following = one_page(bisections.listed(session, of, most=limit + 1), 0, limit)
        if form is Format.MD:
            whole = [bisections.one(session, row.id) for row in rows]
    if form is Format.JSON:
        print_json(Page(items=[BisectionItem.of(row, row.target.name) for row in rows], next=following))
    elif form is Format.MD:
        print("\n\n".join(page(one) for one in whole))  # noqa: T201
    else:
        for row in rows:
            ends = f"{short(row.good)}..{short(row.bad)}"
            cells = (str(row.id), row.target.name, row.device, ends, row.state.value, row.reason or "queued")
            table.add_row(*(Text(printable(cell)) for cell in cells))
        out.print(table if rows else "No bisections. Start one with `kernelwatch bisect TARGET GOOD..BAD`.")


@bisection_app.command("show")
def bisection_show(bisection_id: int, form: Formatted = Format.TABLE) -> None:
    """Show one bisection with its steps.  The exit codes are those of `bisect --wait`."""
    with reading() as session:
        found = bisections.one(session, bisection_id)
    _show(found, form)
    sys.exit(_code(found))


@bisection_app.command("stop")
def bisection_stop(bisection_id: int) -> None:
    """Stop a bisection.  Its steps are kept."""
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


def _code(found: BisectionView) -> int:
    undecided = found.progress is not None and found.progress.ending is Ending.UNDECIDED
    if undecided and found.row.state is SearchState.NOT_REPRODUCED:
        return UNDECIDED
    return _CODES.get(found.row.state, 0)


def _show(found: BisectionView, form: Format) -> None:
    if form is Format.JSON:
        print_json(BisectionDocument.whole(found))
    elif form is Format.MD:
        print(page(found))  # noqa: T201
    else:
        out.print(_table(found.steps))
        line((found.row.state.value, "bold"), ": ", found.words)


def _table(steps: tuple[StepView, ...]) -> Table:
    table = Table(*COLUMNS)
    for one in steps:
        table.add_row(*(Text(printable(cell)) for cell in step_cells(one)))
    return table
