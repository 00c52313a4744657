"""`kernelwatch export site`: the boards of public targets as plain files."""

import re
from pathlib import Path
from typing import Annotated

import typer

from service.commands.noun import Where
from service.commands.transfer.exporting import export_app
from service.errors import BadInput

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
