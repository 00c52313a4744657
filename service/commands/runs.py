"""`kernelwatch run`, `report`, `log`, `backfill`, `cancel` and `approve`: measure revisions and read the results."""

import sys
import time
from typing import Annotated

import typer

from service.commands.printing import Format, Formatted, err, line, out, print_json
from service.db.engine import reading, transaction
from service.db.models import Run
from service.domain.states import OPEN_STATES, RunState
from service.domain.text import printable
from service.errors import BadInput
from service.ledger import queries
from service.ledger.intake import deliveries
from service.ledger.queries import Glance
from service.ledger.runs import build_logs, queue
from service.reports import markdown, terminal
from service.reports.gate import worst_exit_code
from service.reports.report import Report
from service.settings import settings


def run(
    target: str,
    revision: Annotated[str, typer.Argument(help="A commit, branch, tag or release.")],
    device: Annotated[str | None, typer.Option(help="Only this device; by default all of the recipe's.")] = None,
    suite: Annotated[str | None, typer.Option(help="Another suite than the recipe's for the device.")] = None,
    again: Annotated[bool, typer.Option(help="Measure again even if it was measured already.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for the result and exit with its code.")] = False,
    form: Formatted = Format.TABLE,
) -> None:
    """Queue one revision to be measured."""
    ids = deliveries.run_revision(target, revision, device=device, suite=suite, again=again)
    to = out if form is Format.TABLE else err  # stdout holds nothing but the document
    with reading() as session:
        for glance in queries.glances(session, queries.runs_with_ids(session, ids)):
            line(f"{_outcome_of_request(glance)}  ({settings().address}/runs/{glance.run.id})", to=to)
    if wait:
        sys.exit(_wait(ids, form))


def _outcome_of_request(glance: Glance) -> str:
    """`Queued: run 12`, `Already measured: run 7, steady; …`."""
    run = glance.run
    measure_again = "use --again to measure it again"
    match run.state:
        case RunState.QUEUED:
            return f"Queued: run {run.id} on {run.device}"
        case RunState.LEASED:
            return f"Already being measured: run {run.id} on {run.device}"
        case RunState.HELD:
            return f"Waiting for approval: run {run.id} on {run.device}; approve it with `kernelwatch approve {run.id}`"
        case RunState.DONE:
            return f"Already measured: run {run.id} on {run.device}, {glance.word}; {measure_again}"
        case _:
            return f"Already {run.state}: run {run.id} on {run.device}, {run.reason}; {measure_again}"


def _wait(ids: list[int], form: Format) -> int:
    last: dict[int, str] = {}
    while True:
        with reading() as session:
            runs = [session.get_one(Run, one) for one in ids]
        for one in runs:
            if last.get(one.id) != (now := one.stage or one.state.value):
                last[one.id] = now
                if form is Format.TABLE:
                    line(f"run {one.id}: {now}")
        if not any(one.state in OPEN_STATES and one.state is not RunState.HELD for one in runs):
            return _print_all(ids, form)
        time.sleep(1)


def _print_all(ids: list[int], form: Format) -> int:
    reports = [_report(one) for one in ids]
    if form is Format.JSON:
        with reading() as session:
            print_json([queries.run_document(session, one) for one in ids])
    elif form is Format.MD:
        print(markdown.comment(*reports))  # noqa: T201
    else:
        out.print(*(terminal.table(one) for one in reports), sep="\n")
    return worst_exit_code(one.gate for one in reports)


def report_command(
    run_id: int,
    form: Formatted = Format.TABLE,
    tables: Annotated[
        bool, typer.Option(help="Include the tables of `facts` in JSON: megabytes for a large suite.")
    ] = False,
) -> None:
    """Print the result of a run.

    Exit codes: 0 passed, 1 a confirmed regression, 2 not measured, 3 undecided, 125 the revision cannot be measured.
    """
    report = _report(run_id)
    if form is Format.JSON:
        with reading() as session:
            print_json(queries.run_document(session, run_id, tables=tables))
    elif form is Format.MD:
        print(markdown.comment(report))  # noqa: T201
    else:
        out.print(terminal.table(report))
    sys.exit(report.gate.exit_code)


def _report(run_id: int) -> Report:
    with reading() as session:
        return queries.found_in(session, run_id)


def backfill(
    target: str, revisions: Annotated[str, typer.Argument(help="BASE..HEAD; BASE itself is not measured.")]
) -> None:
    """Queue a range of mainline revisions at low priority."""
    base, dots, head = revisions.partition("..")
    if not (base and dots and head):
        raise BadInput(f"{revisions!r} is not a range BASE..HEAD.")
    queued = deliveries.backfill(target, base, head)
    out.print(f"Queued {queued} run{'s' * (queued != 1)}.")


def log_command(run_id: int) -> None:
    """Print the build log of a run's revision."""
    with reading() as session:
        print(printable(build_logs.text_of(session, run_id)).rstrip("\n"))  # noqa: T201  (for pipes)


def cancel(run_id: int) -> None:
    """Cancel a run."""
    with transaction() as session:
        done = queue.cancel(session, run_id, "the operator")
    out.print(f"Cancelled run {run_id}." if done else f"Run {run_id} has ended already; nothing was changed.")


def approve(run_id: int) -> None:
    """Approve a run of an outside contributor: exactly this commit, not later ones."""
    with transaction() as session:
        deliveries.approve(session, run_id)
    out.print(f"Queued run {run_id}.")
