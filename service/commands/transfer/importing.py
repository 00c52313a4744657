"""`kernelwatch import` and `kernelwatch sample`: measurements made elsewhere, and those of an H200 to look at."""

from collections.abc import Collection, Sequence
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kernels.cases import Role
from service.commands import views
from service.commands.connection import client
from service.commands.noun import Noun, Where, single
from service.commands.output.console import out
from service.commands.output.views import View
from service.domain.exports import IMPORTED_ROLES
from service.domain.imports.formats import ImportFormat
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client.models import BatchItem
    from service.domain.imports.batches import ImportOptions


def import_command(
    files: Annotated[
        list[Path],
        typer.Argument(
            metavar="FILES",
            help="JSON lines as the ingest endpoint takes them, what `export samples` wrote, or files of another tool.",
        ),
    ],
    target: Annotated[str, typer.Option(help="The target that they belong to.")],
    role: Annotated[
        list[Role] | None,
        typer.Option(help="Of exported samples, only these roles; may be repeated.  Default: head, sota and rival."),
    ] = None,
    tool: Annotated[ImportFormat | None, typer.Option("--from", help="The tool that wrote the files.")] = None,
    case: Annotated[
        list[str] | None,
        typer.Option(
            metavar="THEIRS=OURS",
            help="Name values by our cases: 'norm/{rows}x{cols}=rmsnorm.fwd.{rows}x{cols}.bf16'; may be repeated.",
        ),
    ] = None,
    revision: Annotated[str | None, typer.Option(help="The commit or release, where a file names none.")] = None,
    device: Annotated[str | None, typer.Option(help="What measured, such as h200.  Default: unknown.")] = None,
    unit: Annotated[str | None, typer.Option(help="The unit of a file of triton that names none.")] = None,
) -> View:
    """Send measurements made elsewhere, as series of their own.  The same ones are stored once."""
    if tool is not None:
        if role:
            raise BadInput("--role chooses exported samples; it does not go with --from.")
        from service.domain.imports.batches import CasePattern, ImportOptions

        patterns = [CasePattern.parse(written) for written in case or ()]
        return _import_foreign(files, ImportOptions(tool, target, device or "unknown", revision, unit, patterns))
    if any(option is not None for option in (case, revision, device, unit)):
        raise BadInput("--case, --revision, --device and --unit describe files of another tool: say which with --from.")
    from service.commands.output.console import progress
    from service.commands.transfer.reading import batches_of

    stored = list["BatchItem"]()
    left_out = 0
    with progress(lines=False) as display:
        for path in files:
            with closing(batches_of(path, role or IMPORTED_ROLES)) as batches:
                for batch in batches:
                    left_out += batch.left_out
                    if batch.measurements:
                        stored.append(client().ingested.send(target, batch.provenance, batch.measurements))
                    display.show(0, f"{path.name}: {len(stored):,} batches sent", None)
    if not stored:
        raise BadInput(f"Nothing to import in {', '.join(map(str, files))}: no samples of these roles.")
    _check_kept(target, stored)
    return views.machine.imported(stored, target, left_out)


import_app = single(import_command)


def _import_foreign(files: Sequence[Path], options: "ImportOptions") -> View:
    from service.commands.output.console import progress
    from service.commands.transfer.foreign import send_files

    with progress(lines=False) as display:
        sent = send_files(files, options, lambda done: display.show(0, done, None))
    if sent.stored:
        _check_kept(options.target, sent.stored)
    return views.machine.imported(sent.stored, options.target, missing=sent.missing, known=sent.known)


def _check_kept(target: str, stored: Collection["BatchItem"]) -> None:
    """Raise BadInput if a batch is gone: the server answered a repetition with what it had stored before."""
    wanted = {one.id for one in stored}
    kept = set[int]()
    for one in client().ingested.list(target):
        kept.add(one.id)
        if one.id <= min(wanted):
            break
    if gone := wanted - kept:
        raise BadInput(
            f"Batch {min(gone)} was stored within the last day and deleted since, so the server does not store it "
            "again: import it a day later, or with other notes."
        )


sample_app = Noun("Load or remove the sample: a repository as it was measured on an H200.", where=Where.ONLY_HERE)


@sample_app.verb("load")
def load() -> None:
    """Add real measurements of an H200 as a paused target."""
    from service.db import migrate
    from service.ledger.intake import samples
    from service.settings import settings

    migrate.upgrade()
    loaded = samples.load()
    said = f"{loaded.runs} runs with {loaded.measurements} measurements of an NVIDIA H200"
    out.print(f"{'Loaded' if loaded.new else 'Already there'}: {said}.", markup=False, soft_wrap=True)
    for name in loaded.names:
        out.print(f"  {settings().address}/targets/{name}", markup=False, soft_wrap=True)
    out.print("`kernelwatch sample remove` deletes it.", markup=False, soft_wrap=True)


@sample_app.verb("remove")
def remove() -> None:
    """Delete the sample with all its measurements."""
    from service.ledger.intake import samples

    names = samples.remove()
    out.print(f"Removed {' and '.join(names)}." if names else "There is no sample.", markup=False, soft_wrap=True)
