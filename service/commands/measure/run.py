"""`kernelwatch run`, `report`, `queue` and `status`: measure revisions, follow runs, and print their results."""

import uuid
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands import views
from service.commands.arguments import RunNumber, first
from service.commands.connection import client
from service.commands.measure.fail_on import FailOn, exit_code, explain, read_findings
from service.commands.noun import Noun, single
from service.commands.output.formats import RunFormat
from service.commands.output.views import View
from service.domain.states import RunState
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client.models import RunDocument

run_app = Noun("Measure revisions, and follow the runs that do it.")

Timeout = Annotated[float | None, typer.Option(metavar="SECONDS", min=1, help="How long to wait for the result.")]
Save = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Also write the report there, in several formats.")]


@run_app.verb("start")
def start(
    target: str,
    revision: Annotated[str, typer.Argument(help="A commit, branch, tag or release.")],
    device: Annotated[str | None, typer.Option(help="Only this device; by default all of the recipe's.")] = None,
    suite: Annotated[str | None, typer.Option(help="Another suite than the recipe's for the device.")] = None,
    again: Annotated[bool, typer.Option("--again", help="Measure again even if it was measured already.")] = False,
    wait: Annotated[bool, typer.Option("--wait", help="Wait for the result and exit with its code.")] = False,
    fail_on: FailOn = None,
    timeout: Timeout = None,
    save: Save = None,
    idempotency_key: Annotated[
        str | None, typer.Option(metavar="TEXT", help="A repetition with the same text within a day queues nothing.")
    ] = None,
) -> View:
    """Queue one revision to be measured."""
    from service.commands.measure import waiting
    from service.commands.output.console import err, line

    if not wait and (fail_on or timeout or save):
        raise BadInput("--fail-on, --timeout and --save need --wait.")
    if revision.strip() == "HEAD":
        raise BadInput(
            "HEAD would be the tip of the default branch, wherever you are: "
            'write "$(git rev-parse HEAD)" for the commit of your checkout, or the name of a branch.'
        )
    wanted = read_findings(fail_on)
    repeat_key = idempotency_key or uuid.uuid4().hex  # the same in each repetition, which thus queues nothing twice

    def queued() -> "list[RunDocument]":
        runs = client().runs
        asked = runs.start(
            target, revision, device=device, suite=suite, again=again or None, idempotency_key=repeat_key
        )
        return [runs.get(one.id) for one in asked.items]

    found = waiting.until_answered(queued, timeout) if wait else queued()
    view = views.runs.started(found)
    if not wait:
        return view
    for said in view.parts:
        line(str(said), to=err)
    return waiting.results(waiting.until_done([one.id for one in found], timeout, save), wanted, save)


@run_app.verb("list")
def list_runs(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device.")] = None,
    state: Annotated[list[RunState] | None, typer.Option(help="Only this state; may be repeated.")] = None,
    revision: Annotated[str | None, typer.Option(help="Only this commit (or its beginning) or release.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of runs, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List runs, the newest first."""
    states = [one.value for one in state or ()] or None
    found = client().runs.list(target=target, device=device, state=states, revision=revision)
    return views.runs.COLUMNS.page(first(found, limit), limit)


@run_app.verb("show", watch=True)
def show(run_id: RunNumber) -> View:
    """Show how far a run is.  `kernelwatch report` prints its result."""
    return views.runs.progress(client().runs.get(run_id))


@run_app.verb("wait")
def wait_for(
    runs: Annotated[list[int], typer.Argument(metavar="RUNS", help="The numbers of runs.")],
    fail_on: FailOn = None,
    timeout: Timeout = None,
    save: Save = None,
) -> View:
    """Wait until runs have ended, print their results and exit with the code of the most severe."""
    from service.commands.measure import waiting

    wanted = read_findings(fail_on)
    return waiting.results(waiting.until_done(runs, timeout, save), wanted, save)


@run_app.verb("logs")
def logs(run_id: RunNumber) -> None:
    """Print the build log of a run's revision."""
    from service.domain.text import printable

    print(printable(client().runs.log(run_id)).rstrip("\n"))  # noqa: T201  (for pipes)


@run_app.verb("texts")
def texts(
    run_id: RunNumber,
    case: Annotated[str | None, typer.Option(help="Only texts of this case.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of texts.", min=1, max=2000)] = 200,
) -> View:
    """List the texts of compiled code that are stored of a run and of the facts check of its revision."""
    return views.runs.TEXTS.page(first(client().runs.texts(run_id, case=case), limit), limit)


@run_app.verb("text")
def text(run_id: RunNumber, sha256: Annotated[str, typer.Argument(help="As `texts` lists it.")]) -> None:
    """Print one text of compiled code of a run."""
    from service.domain.text import printable

    print(printable(client().runs.text(run_id, sha256)).rstrip("\n"))  # noqa: T201  (for pipes)


@run_app.verb("backfill")
def backfill(
    target: str,
    revisions: Annotated[str, typer.Argument(metavar="BASE..HEAD", help="BASE itself is not measured.")],
    sample: Annotated[
        int | None,
        typer.Option(
            help="Measure only so many of them at equal distances, each against the one before; what is slower between "
            "two is bisected.",
            min=1,
            max=1000,
        ),
    ] = None,
) -> View:
    """Queue a range of mainline revisions at low priority."""
    base, dots, head = revisions.partition("..")
    if not (base and dots and head):
        raise BadInput(f"{revisions!r} is not a range BASE..HEAD.")
    return views.runs.backfilled(client().targets.backfill(target, base, head, sample=sample))


@run_app.verb("cancel")
def cancel(run_id: RunNumber) -> View:
    """Cancel a run."""
    return views.runs.cancelled(client().runs.cancel(run_id))


@run_app.verb("retry")
def retry(run_id: RunNumber) -> View:
    """Queue a run again that ended without a result: failed, cancelled, superseded or skipped."""
    return views.runs.queued([client().runs.retry(run_id)])


@run_app.verb("approve")
def approve(run_id: RunNumber) -> View:
    """Approve a run of an outside contributor: exactly this commit, on every device."""
    return views.runs.queued(client().runs.approve(run_id).items)


def report(
    run_id: RunNumber,
    every: Annotated[bool, typer.Option("--all", help="List every case, not only those that changed.")] = False,
    tables: Annotated[
        bool, typer.Option("--tables", help="Include the tables of `facts` in JSON: megabytes for a large suite.")
    ] = False,
    fail_on: FailOn = None,
) -> View:
    """Print the result of a run.

    Exit codes: 0 passed or warned, 1 a confirmed regression that fails the gate, 2 not measured, 3 undecided where
    that fails the gate, 125 the revision cannot be measured.
    """
    from service.commands import files

    wanted = read_findings(fail_on)
    runs = client().runs
    found = runs.get(run_id, tables=tables or None)
    view = views.reports.report(found, every=every, texts=files.texts([found], lambda: runs.comment(run_id)))
    explain([found], wanted)
    return replace(view, code=exit_code([found], wanted))


report_app = single(report, formats=RunFormat)


def status() -> View:
    """Show targets, workers and the queue."""
    from kernelwatch.client import NotAllowed, NotFound, NoValidKey

    found = client()
    try:
        channels = list(found.channels.list())
    except (NotAllowed, NotFound, NoValidKey):  # for those who may triage, and of newer servers
        channels = []
    return views.machine.status(
        targets=[found.targets.get(one.name) for one in found.targets.list()],
        workers=list(found.workers.list()),
        queue=list(found.queue.list()),
        channels=channels,
    )


def queue(
    limit: Annotated[int, typer.Option(help="Maximum number of runs.", min=1, max=1000)] = 100,
) -> View:
    """Show runs in progress, then waiting runs in their order."""
    return views.runs.QUEUE.page(first(client().queue.list(), limit), limit, over=False)


status_app, queue_app = single(status, watch=True), single(queue, watch=True)
