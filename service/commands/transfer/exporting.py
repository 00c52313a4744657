"""`kernelwatch export`: everything of one kind as a file."""

import functools
import inspect
import re
import sys
from collections.abc import Callable
from contextlib import nullcontext
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from service.commands.connection import client
from service.commands.noun import Noun, Where
from service.commands.transfer.destination import destination, utc
from service.commands.transfer.figures import figure_app
from service.commands.transfer.history import history
from service.domain.exports import Exportable, FileFormat
from service.errors import BadInput

_SUFFIXES = {
    ".csv": FileFormat.CSV,
    ".json": FileFormat.JSON,
    ".jsonl": FileFormat.JSON,
    ".ndjson": FileFormat.JSON,
    ".parquet": FileFormat.PARQUET,
}
_WORDS = {Exportable.INGESTED: "measurements made elsewhere", Exportable.AUDIT: "entries of the audit log"}


def _write(
    what: Exportable,
    target: Annotated[str | None, typer.Option(help="Only this target.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device.")] = None,
    revision: Annotated[str | None, typer.Option(help="Only this commit (or its beginning) or release.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only what began at this time (UTC) or later.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only what began before this time (UTC).")] = None,
    file_format: Annotated[
        FileFormat | None,
        typer.Option("--format", help="json has one object a line.  Default: by the suffix of the file, else csv."),
    ] = None,
    output: Annotated[Path | None, typer.Option(help="The file to write; default: stdout.")] = None,
) -> None:
    """Write everything of one kind."""
    from service.commands.output.console import NoProgress, err, line, progress

    form = file_format or _SUFFIXES.get(output.suffix if output else "", FileFormat.CSV)
    if form is FileFormat.PARQUET and output is None and sys.stdout.isatty():
        raise BadInput("Parquet is not text: write it to a file with --output FILE.")
    parts = client().exports.read(
        what.value,
        format=form.value,
        target=target,
        device=device,
        revision=revision,
        since=utc(since),
        until=utc(until),
    )
    count = ReceivedCount(form)
    shown = nullcontext(NoProgress()) if output is None and sys.stdout.isatty() else progress(lines=False)
    with shown as display, destination(output) as write:
        for part in parts:
            write(part)
            count.add(part)
            display.show(0, count.said, None)
    if output is not None:
        line(f"{output}: {count.said}", to=err)


def _verb(what: Exportable) -> Callable[..., None]:
    """The command that writes this kind."""
    verb = functools.partial(_write, what)
    functools.update_wrapper(verb, _write)
    words = _WORDS.get(what, what.value.replace("-", " "))
    verb.__doc__ = f"Write all {words} as CSV, JSON lines or Parquet."
    signature = inspect.signature(_write)
    options = [one for one in signature.parameters.values() if one.name != "what"]
    verb.__signature__ = signature.replace(parameters=options)  # type: ignore[attr-defined]
    return verb


export_app = Noun("Write everything of one kind to a file, a figure to explore, or public boards as a web site.")
for each in Exportable:
    export_app.verb(each.value)(_verb(each))
export_app.add_typer(figure_app, name="figure")
export_app.verb("history")(history)


class ReceivedCount:
    """Counts what has arrived of a file: its bytes, and its rows unless it is Parquet."""

    def __init__(self, form: FileFormat) -> None:
        self._form = form
        self._bytes = 0
        self._ends = 0
        self._quoted = False

    def add(self, part: bytes) -> None:
        """Count the next bytes.  In CSV a line that ends inside of quotes is no row."""
        self._bytes += len(part)
        if self._form is FileFormat.PARQUET:
            return
        if self._form is FileFormat.JSON:
            self._ends += part.count(b"\n")
            return
        for number, text in enumerate(part.split(b'"')):
            self._quoted ^= number > 0
            if not self._quoted:
                self._ends += text.count(b"\n")

    @property
    def rows(self) -> int:
        return max(0, self._ends - (self._form is FileFormat.CSV))

    @property
    def said(self) -> str:
        size = f"{self._bytes / 1e6:,.1f} MB"
        return size if self._form is FileFormat.PARQUET else f"{self.rows:,} rows, {size}"


_ADDRESS = re.compile(r"https?://[^\s/?#]+(/[^\s?#]*)?")


@export_app.verb("site", where=Where.ONLY_HERE)
def site(
    folder: Annotated[
        Path, typer.Argument(help="A new folder, or one that this command made, which is then replaced.")
    ],
    target: Annotated[list[str] | None, typer.Option(help="Only this target; may be repeated.")] = None,
    address: Annotated[
        str, typer.Option(metavar="URL", help="Where the site will be published, for its sitemap; default: anywhere.")
    ] = "",
    service: Annotated[
        str, typer.Option(metavar="URL", help="Link runs and regressions to this kernelwatch; default: no links.")
    ] = "",
) -> None:
    """Write the boards, trends and releases of public targets as a folder for any web host."""
    from dashboards.site.export import export_site
    from service.commands.output.console import err, line, progress

    for option, given in (("--address", address), ("--service", service)):
        if given and not _ADDRESS.fullmatch(given):
            raise BadInput(f"{option} takes an address such as https://kernels.example.org/board, not {given}.")
    with progress(lines=False) as display:
        try:
            made = export_site(
                folder, target or (), address=address, service=service, show=lambda said: display.show(0, said, None)
            )
        except OSError as error:
            raise BadInput(f"{folder} cannot be written: {error.strerror or error}.") from None
    line(
        f"{folder}: {made.boards} boards, {made.trends} trends, {made.files:,} files, {made.bytes / 1e6:,.1f} MB",
        to=err,
    )
    if made.without_page:
        line(f"{made.without_page} cases have no page of their own; their histories are in the data.", to=err)
    if made.form != "parquet":
        line("Tables are CSV, because pyarrow is missing: install it with pip install 'kernelwatch[server]'.", to=err)
