"""`kernelwatch policy`: the policies that made verdicts, and another one applied to stored runs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun
from service.commands.output.views import View
from service.errors import BadInput

app = Noun("Show a policy, or apply another one to stored runs.")


@app.verb("list")
def list_policies(
    limit: Annotated[int, typer.Option(help="Maximum number of versions, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List the versions of policies that made verdicts, the newest first."""
    return views.policies.COLUMNS.page(first(client().policies.list(), limit), limit)


@app.verb("show")
def show(
    version: Annotated[str, typer.Argument(help="A version from `kernelwatch policy list`, or its beginning.")],
) -> View:
    """Show a version of a policy with its values."""
    found = [one.digest for one in client().policies.list() if one.digest.startswith(version.lower())]
    if len(found) != 1:
        problem = "No policy has" if not found else f"{len(found)} policies have"
        raise BadInput(f"{problem} a version that begins with {version}. `kernelwatch policy list` lists them.")
    return views.policies.whole(client().policies.get(found[0]))


@app.verb("replay")
def replay(
    target: Annotated[str, typer.Argument(help="Runs of this target.")],
    policy: Annotated[Path, typer.Option(help="A TOML file with the keys of a recipe's [policy], or a recipe.")],
    device: Annotated[str | None, typer.Option(help="Only runs on this device.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only runs that ended after this time (UTC).")] = None,
) -> View:
    """Apply a policy to stored runs and show which alarms would be new, missed or unchanged.  Nothing is changed."""
    try:
        text = policy.read_text()
    except OSError as error:
        raise BadInput(f"{policy}: {error.strerror}.") from None
    at = since.replace(tzinfo=since.tzinfo or UTC) if since else None
    return views.policies.replayed(client().policies.replay(target, text, device=device, since=at))
