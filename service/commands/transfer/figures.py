"""`kernelwatch export figure`: a chart of a page as a figure of Plotly."""

import json
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands.connection import client
from service.commands.noun import Noun
from service.commands.transfer.destination import destination, utc

if TYPE_CHECKING:
    from kernelwatch.documents.figures import FigureDocument

figure_app = Noun("Write a chart as JSON, which `plotly.io.from_json` reads.")

Target = Annotated[str, typer.Argument(help="The name of a target.")]
Device = Annotated[str, typer.Option(help="The device that measured, such as h200.")]
Output = Annotated[Path | None, typer.Option(help="The file to write; default: stdout.")]


@figure_app.verb("trend")
def trend(
    target: Target,
    case: Annotated[str, typer.Argument(help="A case, such as rmsnorm.fwd.4096x1024.bf16.")],
    provider: Annotated[str, typer.Option(help="The provider that was measured.")],
    device: Device,
    unit: Annotated[str | None, typer.Option(help="amount, gb_s, ratio or ceiling; default: amount.")] = None,
    others: Annotated[
        list[str] | None, typer.Option("--with", help="Another series as 'DEVICE PROVIDER CASE'; may be repeated.")
    ] = None,
    since: Annotated[datetime | None, typer.Option(help="Only what was committed at this time (UTC) or later.")] = None,
    until: Annotated[datetime | None, typer.Option(help="Only what was committed before this time (UTC).")] = None,
    output: Output = None,
) -> None:
    """Write the history of a case."""
    figures = client().figures
    figure = figures.trend(
        target,
        case,
        provider=provider,
        device=device,
        unit=unit,
        others=others or None,
        since=utc(since),
        until=utc(until),
    )
    _write(figure, output)


Dtype = Annotated[str | None, typer.Option(help="Only cases of these dtypes, such as bf16-fp32.")]
Against = Annotated[str | None, typer.Option(help="Another provider, or `best` of all; default: SOTA.")]
At = Annotated[str | None, typer.Option(help="A commit (or its beginning) or release; default: the newest.")]


@figure_app.verb("comparison")
def comparison(
    target: Target,
    base: Annotated[str, typer.Argument(help="A commit (or its beginning), a release, or pull/7.")],
    head: Annotated[str, typer.Argument(help="The same, which is compared with the base.")],
    device: Device,
    output: Output = None,
) -> None:
    """Write the ratios of two revisions, case by case."""
    _write(client().figures.comparison(target, base, head, device=device), output)


@figure_app.verb("board")
def board(
    target: Target,
    device: Device,
    dtype: Dtype = None,
    against: Against = None,
    at: At = None,
    output: Output = None,
) -> None:
    """Write the times of a board over those of another provider."""
    _write(client().figures.board(target, device=device, dtype=dtype, against=against, at=at), output)


@figure_app.verb("roofline")
def roofline(
    target: Target,
    device: Device,
    dtype: Dtype = None,
    against: Against = None,
    at: At = None,
    output: Output = None,
) -> None:
    """Write GB/s and TFLOP/s of a board below the ceilings of its session."""
    _write(client().figures.roofline(target, device=device, dtype=dtype, against=against, at=at), output)


def _write(figure: "FigureDocument", output: Path | None) -> None:
    with destination(output) as write:
        write(json.dumps(figure, ensure_ascii=False).encode() + b"\n")
