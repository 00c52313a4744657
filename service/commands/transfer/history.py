"""`kernelwatch export history`: the history of a target in the format of another tool."""

from collections.abc import Iterable, Iterator
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from service.commands.connection import client
from service.commands.transfer.destination import destination, utc
from service.domain.exports import HistoryFormat


def history(
    target: Annotated[str, typer.Argument(help="The name of a target.")],
    tool: Annotated[
        HistoryFormat, typer.Option("--format", help="The tool that reads it.")
    ] = HistoryFormat.GITHUB_ACTION_BENCHMARK,
    device: Annotated[str | None, typer.Option(help="Only this device.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only runs queued at this time (UTC) or later.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only runs queued before this time (UTC).")] = None,
    output: Annotated[Path | None, typer.Option(help="The file to write; default: stdout.")] = None,
) -> None:
    """Write the medians of a target's mainline for another tool."""
    from service.commands.files import histories

    found = client()
    exports = found.exports
    rows = exports.read("measurements", target=target, device=device, since=utc(since), until=utc(until))
    measured = histories.measured(
        map(histories.RevisionRow.model_validate_json, _lines(exports.read("revisions", target=target))),
        map(histories.MeasurementRow.model_validate_json, _lines(rows)),
    )
    with destination(output) as write:
        for part in histories.written(tool, found.targets.get(target), measured):
            write(part)


def _lines(parts: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file that arrives in parts."""
    rest = b""
    for part in parts:
        *lines, rest = (rest + part).split(b"\n")
        yield from lines
