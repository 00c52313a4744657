"""`kernelwatch study`: published results that are measured again."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun, Where
from service.commands.output.views import View

if TYPE_CHECKING:
    from kernelwatch.client.models import StudySessionDocument

study_app = Noun("Measure published results again, and read what follows.")

HOST = "host"  # the stack that is used if none is named
OnDevice = Annotated[str | None, typer.Option(help="Only sessions on this device.")]
SessionOrStudy = Annotated[str, typer.Argument(metavar="SESSION", help="The number of a session, or a study's name.")]


@study_app.verb("list")
def list_studies(device: OnDevice = None) -> View:
    """List the studies, how many sessions of each are stored, and how many claims of each source hold."""
    return views.studies.studies(list(client().studies.list(device=device)))


@study_app.verb("sessions")
def list_sessions(
    study: Annotated[str, typer.Argument(help="For example s3.")],
    device: OnDevice = None,
    limit: Annotated[int, typer.Option(help="Maximum number of sessions, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List the stored sessions of a study, those that began last first."""
    return views.studies.sessions(study, first(client().studies.sessions(study, device=device), limit), limit)


@study_app.verb("run", where=Where.ONLY_HERE)
def run(
    name: Annotated[str, typer.Argument(help="For example s3.")],
    device: Annotated[str | None, typer.Option(help="cpu, or the GPU of this machine; by default its own.")] = None,
    quick: Annotated[bool, typer.Option("--quick", help="Fewer cases and one trial.")] = False,
    only: Annotated[list[str] | None, typer.Option(metavar="STEP", help="Only this step; may be repeated.")] = None,
    limit: Annotated[
        float | None,
        typer.Option(metavar="SECONDS", min=1, help="Stop after so many seconds, within a case too."),
    ] = None,
    resume: Annotated[
        int | None, typer.Option(metavar="SESSION", help="Go on with this session; by default the newest that fits.")
    ] = None,
    stack: Annotated[
        str | None, typer.Option(help="The base environment that measures; by default `host`, else the active Python.")
    ] = None,
    python: Annotated[Path | None, typer.Option(help="A Python with torch, instead of a base environment.")] = None,
) -> View:
    """Measure a study on this machine, and store every case as it is measured.

    The programs of studies are in a clone of kernelwatch; a wheel or an image has none.

    Ctrl-C keeps what was measured.  The same command goes on with it, as long as the code of the kernels is the same.

    Exit codes: 0 everything that was asked for is measured, 2 an error, 3 a part of it: run the same command again.
    """
    from service.commands.output.console import progress
    from service.db import migrate
    from service.errors import BadInput
    from service.log import only_warnings
    from workers import studies
    from workers.machine import environments

    if stack and python:
        raise BadInput("Use --stack or --python, not both.")
    studies.check_clone()
    on = device or studies.default_device()
    studies.check_device(on)
    base = environments.stack(stack) if stack else environments.with_torch(HOST, python)
    wanted = studies.StudyWanted(name, on, base, quick, tuple(only or ()), limit, resume)
    _ = wanted.steps  # a mistake is reported before anything is prepared
    migrate.upgrade()
    with only_warnings(), progress() as shown:
        result = studies.measured(wanted, lambda said: shown.show(0, said, None))
    return views.studies.measured(_session(str(result.session_id)), result.left)


@study_app.verb("add", where=Where.ONLY_HERE)
def add(
    files: Annotated[list[Path], typer.Argument(metavar="FILE", help="A file that a study wrote, on any machine.")],
) -> View:
    """Store a study that was measured on another machine.

    `python -m benchmarks.kernels.published run` writes such files.  Adding one again stores what is new in it.
    """
    from service.db import migrate
    from service.db.engine import transaction
    from service.ledger.studies import sessions

    migrate.upgrade()
    read = [sessions.read(path) for path in files]
    with transaction() as session:
        stored = [sessions.store(session, file) for file in read]
    return views.studies.added([(one, _session(str(one.session_id))) for one in stored])


@study_app.verb("show")
def show(
    which: SessionOrStudy,
    device: Annotated[str | None, typer.Option(help="Of a study, the session on this device.")] = None,
) -> View:
    """Print a session: the claims of the source, what was measured, and its tables.

    Of a study it is the newest session, full ones before quick ones and GPUs before CPUs.
    """
    return views.studies.whole(_session(which, device))


@study_app.verb("remove")
def remove(
    session: Annotated[int, typer.Argument(metavar="SESSION", help="The number of a session.", min=1)],
    yes: Annotated[bool, typer.Option("--yes", help="Delete without asking; for scripts.")] = False,
) -> View:
    """Delete a session with all its records."""
    from service.errors import BadInput

    found = client().studies.find_session(session)
    if not yes and not typer.confirm(f"Delete {views.studies.named(found)}?", err=True):
        raise BadInput("Nothing was deleted.")
    return views.studies.removed(client().studies.remove(found.study, found.id))


@study_app.verb("compare")
def compare(
    a: Annotated[str, typer.Argument(metavar="A", help="The number of a session, or a study's name.")],
    b: Annotated[str, typer.Argument(metavar="B", help="Another session of the same study.")],
) -> View:
    """Compare two sessions of a study: times in B over times in A, by arm and case.

    Also the change of each arm's ratio to the baseline, which was measured in turns and depends less on the machine.
    """
    from service.errors import BadInput

    first, second = _session(a), _session(b)
    if first.study != second.study:
        raise BadInput(
            f"Session {first.id} is of {first.study}, and {second.id} of {second.study}: both must be of one study."
        )
    if first.id == second.id:
        raise BadInput(f"A and B are both session {first.id}; name two that differ.")
    return views.studies.compared(first, second)


def _session(which: str, device: str | None = None) -> "StudySessionDocument":
    """A session by its number, or that of a study to read first.  Raises NotFound."""
    from service.errors import NotFound

    studies = client().studies
    if which.isdecimal() and len(which) < 20:
        found = studies.find_session(int(which))
        return studies.session(found.study, found.id)
    study = studies.get(which, device=device)
    if study.shown is None:
        on = f" on {device}" if device else ""
        raise NotFound("session", f"of study {study.name}{on}", f"`kernelwatch study run {study.name}` measures one.")
    return studies.session(study.name, study.shown)
