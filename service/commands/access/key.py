"""`kernelwatch key`: make, list, rotate and revoke API keys."""

import re
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun
from service.commands.output.views import View
from service.errors import BadInput

if TYPE_CHECKING:
    from kernelwatch.client.models import NewKeyDocument

app = Noun("Manage API keys.")

Which = Annotated[str, typer.Argument(metavar="KEY", help="An id or a prefix from `kernelwatch key list`.")]
_UNITS_S = {"m": 60.0, "h": 3600.0, "d": 86_400.0}


@app.verb("create")
def create(
    name: Annotated[str, typer.Argument(help="Who uses it, and for what.")],
    scopes: Annotated[
        list[str],
        typer.Option(
            "--scope",
            metavar="SCOPE",
            help="read, ingest, run, triage, worker or admin; `run:TARGET` for one target only.",
        ),
    ],
    expires: Annotated[
        str | None, typer.Option(help="Time until it expires, as in 12h or 90d; by default never.")
    ] = None,
) -> View:
    """Make an API key and print it.  It cannot be printed again."""
    expires_at = None if expires is None else datetime.now(UTC) + timedelta(seconds=_seconds(expires))
    return _new(client().keys.create(name, scopes, expires_at=expires_at))


@app.verb("list")
def show_all(
    ended: Annotated[bool, typer.Option("--all", help="Include expired and revoked keys.")] = False,
) -> View:
    """List API keys, the newest first."""
    return views.access.KEYS.page(first(client().keys.list(ended=ended or None)))


@app.verb("rotate")
def rotate(
    which: Which,
    overlap: Annotated[str, typer.Option(help="Time for which the old key stays valid, as in 12h or 1d.")] = "1d",
) -> View:
    """Replace a key by a new one with the same scopes, and print it.  It cannot be printed again."""
    return _new(client().keys.rotate(which, overlap_s=_seconds(overlap)))


@app.verb("revoke")
def revoke(which: Which) -> View:
    """Revoke a key: the next request with it is refused."""
    return views.access.revoked(client().keys.revoke(which))


def _new(made: "NewKeyDocument") -> View:
    from service.commands.output.console import err, line

    line(f"The key of {made.name} with {' '.join(made.scopes)}; it is not shown again:", to=err)
    return views.access.new_key(made)


def _seconds(text: str) -> float:
    found = re.fullmatch(r"(\d{1,6})([mhd])", text.strip())
    if found is None:
        raise BadInput(f"{text!r} is no length of time; write 30m, 12h or 90d.")
    return int(found[1]) * _UNITS_S[found[2]]
