"""The console command: the front door for operators, CI scripts and people at a terminal.

Exit codes: 0 fine; 1 a regression; 2 trouble with the infrastructure or the command line; 3 undecided: nothing bad was
found, and not every case could be decided; 125 the revision cannot be measured; 141 the reader closed the output.
Of several devices the first of 1, 125, 2 and 3 counts.  `facts`: 1 a broken limit, 125 the head does not build.
"""

import json
import sys
import time
import traceback
from enum import StrEnum
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich.markup import escape
from rich.table import Table
from rich.text import Text
from sqlalchemy import make_url
from sqlalchemy.exc import DBAPIError

from service.commands.bisect import bisect, bisection_app
from service.commands.calibration import calibration_app
from service.commands.pipes import CLOSED_PIPE, Commands, PipeClosed, outputs_of_this_process, reader_left
from service.commands.printing import Format, err, line, out
from service.commands.regressions import regression_app, regressions_command
from service.commands.replay import replay
from service.commands.targets import read_recipe, target_app
from service.db import migrate, wakeups
from service.db.engine import clock, reading, transaction
from service.db.models import Run
from service.domain.states import OPEN_STATES, Purpose, RunState, TargetKind
from service.domain.text import printable
from service.domain.verdicts.gate import worst_exit_code
from service.errors import BadInput, BuildFailed, ServiceError
from service.ledger import queries as facts_of
from service.ledger.intake import deliveries, targets
from service.ledger.queries import Glance
from service.ledger.runs import build_logs, queue
from service.ledger.server_policy import server_policy
from service.log import set_up_logging
from service.ops import doctor as doctor_room
from service.ops import torch_install
from service.reports import facts_json, facts_markdown, facts_table, markdown, schema, terminal
from service.reports.report import Report
from service.settings import settings

app = typer.Typer(
    cls=Commands, no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False, help=__doc__
)
stack_app = typer.Typer(no_args_is_help=True, help="Base environments that revisions are measured in.")
db_app = typer.Typer(no_args_is_help=True, help="The database.")
app.add_typer(target_app, name="target")
app.add_typer(stack_app, name="stack")
app.add_typer(db_app, name="db")
app.command()(bisect)
app.add_typer(bisection_app, name="bisection")
app.command("regressions")(regressions_command)
app.add_typer(regression_app, name="regression")
app.command()(replay)
app.add_typer(calibration_app, name="calibration")


class Kind(StrEnum):
    SASS = "sass"
    TTGIR = "ttgir"
    PTX = "ptx"
    GENERATED = "generated"


def main() -> None:
    """Run a command; an error that a person can mend is one sentence, not a traceback."""
    outputs = outputs_of_this_process()
    try:
        _run(outputs)
    finally:
        if reader_left(outputs):
            sys.exit(CLOSED_PIPE)


def _run(outputs: tuple[int, ...]) -> None:
    set_up_logging()
    try:
        app()
    except ServiceError as error:
        _complain(str(error))
    except DBAPIError as error:
        where = make_url(settings().database).render_as_string(hide_password=True)
        hint = "Start kernelwatch once (`kernelwatch up`), or migrate it with `kernelwatch db upgrade`."
        _complain(f"The database {where} does not answer as it should: {error.orig}. {hint}")
    except Exception as error:
        if not (isinstance(error, PipeClosed) and reader_left(outputs)):
            traceback.print_exc()
        sys.exit(2)  # Python's own 1 would mean a regression


def _complain(message: str) -> NoReturn:
    err.print(Text("kernelwatch: ", style="red"), message, soft_wrap=True, markup=False)
    sys.exit(2)


@app.command()
def up(demo: Annotated[bool, typer.Option(help="Register the demo target and measure its history.")] = False) -> None:
    """Everything on one machine: API and dashboard, worker and control, supervised, until Ctrl-C."""
    from service.ops import supervisor

    server_policy()

    def prepare() -> None:
        migrate.upgrade()
        if demo:
            _register_demo()
            _say_how_the_demo_runs()

    this = [sys.executable, "-P", "-m", "service.cli"]
    commands = {name: [*this, name] for name in ("api", "control", "worker")}
    if demo:
        from workers import device

        if device.ask().name != "cpu":  # the demo wants the processor, which the GPU's worker leaves alone
            commands["worker-cpu"] = ["env", "KERNELWATCH_DEVICE=cpu", *this, "worker"]
    sys.exit(supervisor.supervise(commands, settings().state, prepare))


@app.command()
def demo() -> None:
    """Watch the demo target, and queue the measuring of its history."""
    _register_demo()
    _say_how_the_demo_runs()
    out.print(f"The demo is watched: {settings().address}/targets/demo")


@app.command()
def doctor() -> None:
    """What is missing here, what that costs, and the command that mends it."""
    from workers import environments
    from workers.sandbox import sandbox

    stacks = [stack.name for stack in environments.list_stacks()]
    sys.exit(doctor_room.show(doctor_room.checks(sandbox.self_test, stacks), out))


@app.command()
def api() -> None:
    """Serve the API and the dashboard."""
    import uvicorn

    from service.app import create_app

    server_policy()
    _send_wakeups()
    # The event loop competes with the endpoints' threads for the interpreter's lock at each of its steps.  With the
    # default of 5 ms, and all threads busy, a webhook took half as long again.
    sys.setswitchinterval(0.001)
    uvicorn.run(create_app(), host=settings().host, port=settings().port, log_level="warning", access_log=False)


@app.command()
def worker() -> None:
    """Measure queued runs of this machine's device (the timer of the embedded size; a fleet starts Celery workers)."""
    from workers import loop

    server_policy()
    loop.worker()


@app.command()
def control() -> None:
    """Understand deliveries, poll remotes, send comments, sweep lost runs (the timer of the embedded size)."""
    from workers import loop

    server_policy()
    _send_wakeups()
    loop.run_control()


def _send_wakeups() -> None:
    if settings().broker_url is not None:
        from workers import app as fleet

        wakeups.send_with(fleet.send_wakeup)


@db_app.command("upgrade")
def db_upgrade() -> None:
    """Bring the database to the schema of this version."""
    migrate.upgrade()
    out.print("The database is up to date.")


@stack_app.command("create")
def stack_create(name: str, requirements: Annotated[list[str] | None, typer.Argument()] = None) -> None:
    """Make a base environment: torch, with Quack where there is an NVIDIA driver; or torch and what you name."""
    from workers import environments

    made = environments.create_stack(name, requirements or [])
    if not requirements and torch_install.has_driver():
        try:
            torch_install.install(made.python, [torch_install.QUACK])
        except RuntimeError as failure:
            err.print(f"Nothing will be compared with Quack: {failure}", markup=False, soft_wrap=True)
    out.print(f"Stack [bold]{made.name}[/bold] is ready at {made.python}.")


@stack_app.command("adopt")
def stack_adopt(
    name: str,
    python: Annotated[Path, typer.Option(help="The interpreter that has torch.")],
    path: Annotated[list[Path] | None, typer.Option(help="A folder to import from as well; may be repeated.")] = None,
) -> None:
    """Use an environment that is there already as a base environment.  It is only read."""
    from workers import environments

    made = environments.adopt_stack(name, python, path or [])
    out.print(f"Stack [bold]{made.name}[/bold] is {made.python}.")


@stack_app.command("list")
def stack_list() -> None:
    """The base environments of this machine."""
    from workers import environments

    if not (stacks := environments.list_stacks()):
        err.print("No stacks. Make one with `kernelwatch stack create host`, or adopt one.")
    for one in stacks:
        print(one.name, one.python, *one.paths, sep="  ")  # noqa: T201  (for pipes, as the Makefile's)


@app.command()
def run(
    target: str,
    revision: Annotated[str, typer.Argument(help="A commit, branch, tag or release.")],
    device: Annotated[str | None, typer.Option(help="Only this device; by default all of the recipe's.")] = None,
    suite: Annotated[str | None, typer.Option(help="A suite other than the recipe's for the device.")] = None,
    again: Annotated[bool, typer.Option(help="Measure once more what was measured already.")] = False,
    wait: Annotated[bool, typer.Option(help="Wait for the verdict and exit with it.")] = False,
    form: Annotated[Format, typer.Option("--format")] = Format.TABLE,
) -> None:
    """Measure one revision."""
    ids = deliveries.run_revision(target, revision, device=device, suite=suite, again=again)
    said = out if form is Format.TABLE else err  # a document must stand alone
    with reading() as session:
        for glance in facts_of.glances(session, facts_of.runs_with_ids(session, ids)):
            line(f"{_what_became(glance)}  ({settings().address}/runs/{glance.run.id})", to=said)
    if wait:
        sys.exit(_wait(ids, form))


def _what_became(glance: Glance) -> str:
    """What asking for a run did: `Queued: run 12`, `Already measured: run 7, steady; …`."""
    run = glance.run
    measure_again = "use --again to measure it again"
    match run.state:
        case RunState.QUEUED:
            return f"Queued: run {run.id} on {run.device}"
        case RunState.LEASED:
            return f"Already being measured: run {run.id} on {run.device}"
        case RunState.HELD:
            return f"Held: run {run.id} on {run.device}; `kernelwatch approve {run.id}` lets it run"
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
            reports = [_report(one) for one in ids]
            if form is Format.JSON:
                print(json.dumps([schema.facts(one) for one in reports], indent=2))  # noqa: T201
            elif form is Format.MD:
                print(markdown.comment(*reports))  # noqa: T201
            else:
                out.print(*(terminal.table(one) for one in reports), sep="\n")
            return worst_exit_code(one.gate for one in reports)
        time.sleep(1)


@app.command("report")
def report_command(run_id: int, form: Annotated[Format, typer.Option("--format")] = Format.TABLE) -> None:
    """What a run found.  Exits 1 on a confirmed regression, 125 if the revision cannot be measured, 2 if it was not,
    and 3 if it is undecided.
    """
    report = _report(run_id)
    if form is Format.JSON:
        print(schema.document(report))  # noqa: T201  (for pipes: no wrapping, no colours)
    elif form is Format.MD:
        print(markdown.comment(report))  # noqa: T201
    else:
        out.print(terminal.table(report))
    sys.exit(report.gate.exit_code)


def _report(run_id: int) -> Report:
    with reading() as session:
        return facts_of.found_in(session, run_id)


@app.command()
def facts(
    target: Annotated[str, typer.Argument(help="A watched target, or a checkout: a folder, written with a slash.")],
    revisions: Annotated[
        str, typer.Argument(help="BASE..HEAD, BASE...HEAD (from where they parted), or HEAD (against its parent).")
    ] = "HEAD",
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe file; by default the target's, or kernelwatch.toml of the checkout.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="A suite other than the recipe's.")] = None,
    arch: Annotated[
        list[str] | None, typer.Option(help="sm_90, sm_100, …; may be repeated.  By default these two.")
    ] = None,
    provider: Annotated[list[str] | None, typer.Option(help="Only this provider; may be repeated.")] = None,
    form: Annotated[Format, typer.Option("--format")] = Format.TABLE,
    diff: Annotated[bool, typer.Option(help="Show how the changed kernels differ.")] = False,
    kind: Annotated[Kind, typer.Option(help="What --diff compares.")] = Kind.SASS,
    texts: Annotated[
        Path | None, typer.Option(help="Write the texts of changed kernels, before and after, into this folder.")
    ] = None,
    allow_unsandboxed: Annotated[
        bool, typer.Option(help="Compile a checkout where bubblewrap cannot work: it is your own code.")
    ] = False,
) -> None:
    """Compile two revisions for GPUs that are not here, and tell what changed; exits 1 when a limit is broken."""
    from workers.compile import compare, subjects

    wish = compare.Wish(
        revisions,
        suite,
        tuple(dict.fromkeys(arch or compare.ARCHS)),
        tuple(dict.fromkeys(provider or ())),
        kind.value if diff else None,
        texts,
    )
    text_and_adapters = read_recipe(recipe) if recipe else None
    subject = subjects.subject(target, text_and_adapters, without_sandbox=allow_unsandboxed)
    try:
        with err.status("looking at the revisions") as status:  # silent where stderr is no terminal
            found = compare.facts(subject, wish, lambda now: status.update(Text(printable(now))))
    except BuildFailed as failure:
        err.print(Text(printable("\n".join(filter(None, (str(failure), failure.log))))), soft_wrap=True)
        sys.exit(125)
    if form is Format.TABLE:
        out.print(facts_table.table(found))
    else:
        print((facts_json if form is Format.JSON else facts_markdown).document(found))  # noqa: T201
    sys.exit(found.exit_code)


@app.command()
def backfill(
    target: str, revisions: Annotated[str, typer.Argument(help="BASE..HEAD; BASE itself is not measured.")]
) -> None:
    """Measure a range of the mainline, at low priority."""
    base, dots, head = revisions.partition("..")
    if not (base and dots and head):
        raise BadInput(f"{revisions!r} is not BASE..HEAD.")
    out.print(f"{deliveries.backfill(target, base, head)} runs were queued.")


@app.command("log")
def log_command(run_id: int) -> None:
    """Everything that the build of a run's revision printed, also where it went well."""
    with reading() as session:
        print(printable(build_logs.text_of(session, run_id)).rstrip("\n"))  # noqa: T201  (for pipes)


@app.command()
def cancel(run_id: int) -> None:
    """Cancel a run, whatever its state."""
    with transaction() as session:
        done = queue.cancel(session, run_id, "the operator")
    out.print(f"Run {run_id} is cancelled." if done else f"Run {run_id} had ended already; nothing was changed.")


@app.command()
def approve(run_id: int) -> None:
    """Let a stranger's revision run: exactly this commit, nothing pushed later."""
    with transaction() as session:
        deliveries.approve(session, run_id)
    out.print(f"Run {run_id} is queued.")


@app.command()
def status() -> None:
    """Targets, workers and the queue."""
    table = Table("run", "target", "revision", "device", "for", "state", "stage")
    with reading() as session:
        cards = [facts_of.card(session, one, lines=1) for one in targets.all_targets(session)]
        for one in facts_of.queue(session):
            names = (str(one.id), one.target.name, one.revision.short, one.device)
            cells = (*names, _purpose(one), one.state.value, one.stage or "")
            table.add_row(*(Text(printable(cell)) for cell in cells))
        workers = facts_of.workers(session)
        now = clock(session)
    for card in cards:
        standing = ", ".join(f"{n} {state.value}" for state, n in card.standing.items()) or "none"
        paused = "; paused" if card.target.paused_at else ""
        line("target ", (card.target.name, "bold"), f": regressions {standing}; {card.behind} behind SOTA{paused}")
    out.print(table if table.row_count else "The queue is empty.")
    for each in workers:
        line("worker ", (each.name, "bold"), f" ({each.description}) was seen {now - each.seen_at:.0f} s ago")


def _purpose(one: Run) -> str:
    """What it is measured for, where that is not to be told."""
    if one.purpose is Purpose.WATCH:
        return f"pull request {one.pull}" if one.pull else ""
    return f"bisection {one.bisection_id}" if one.bisection_id else one.purpose.value


def _say_how_the_demo_runs() -> None:
    """Where there is no sandbox: what that means for the demo and for other targets, and how to get one."""
    from workers.sandbox import sandbox

    if (trouble := sandbox.self_test()) is None:
        return
    with reading() as session:
        allowed = targets.target_named(session, "demo").allow_unsandboxed
    out.print(f"[yellow]No sandbox here[/yellow]: {escape(trouble)}.", soft_wrap=True)
    if allowed:
        out.print("The demo is measured without a sandbox: its code came with kernelwatch.", soft_wrap=True)
    else:
        changed = f"{settings().state / 'demo'} has commits that did not come with kernelwatch"
        out.print(f"The demo is not measured: {escape(changed)}. Remove that folder to build it anew.", soft_wrap=True)
    out.print("Other targets are not measured until the sandbox works (`kernelwatch doctor`).", soft_wrap=True)


def _register_demo() -> None:
    """Build the demo repository beside the database and watch it; a second start changes nothing.

    Only a repository whose commits are exactly those built here may be measured without a sandbox.
    """
    import importlib.util

    example = Path(__file__).parent.parent / "examples" / "norms"
    spec = importlib.util.spec_from_file_location("kernelwatch_demo", example / "build.py")
    if spec is None or spec.loader is None or not (example / "build.py").exists():
        raise BadInput("The demo lies in the source tree (examples/norms); start from a clone.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = settings().state / "demo"
    repository = folder if (folder / ".git").exists() else module.build(folder)
    text, adapters = read_recipe(example / "recipe.toml")
    with transaction() as session:
        target = targets.register(
            session,
            "demo",
            location=str(repository),
            kind=TargetKind.GIT,
            branch="main",
            trusted=True,
            allow_unsandboxed=module.is_built(repository),
            recipe_text=text,
            adapters=adapters,
        )
        target_id = target.id
    deliveries.backfill_last(target_id, 100)
    deliveries.pull_appeared(target_id, module.PULL)


if __name__ == "__main__":
    main()
