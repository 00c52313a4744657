"""`kernelwatch replay`: what another policy would have said of what is stored.  It never writes, and exits with 0."""

import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from service.commands.printing import Format, err, out
from service.db.engine import reading
from service.ledger.intake import targets
from service.ledger.runs import replays
from service.ledger.server_policy import policy_file, server_policy
from service.reports import replay as told


def replay(
    policy: Annotated[Path, typer.Option(help="A TOML file with what a recipe says under policy, or a recipe.")],
    target: Annotated[str | None, typer.Option(help="Only this target's runs.")] = None,
    device: Annotated[str | None, typer.Option(help="Only runs on this device.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only runs that ended since then (UTC).")] = None,
    form: Annotated[Format, typer.Option("--format")] = Format.TABLE,
) -> None:
    """Run a policy over the stored history: what would have alarmed, what would have been missed, what stays."""
    written, server = policy_file(policy), server_policy()
    at = since.replace(tzinfo=since.tzinfo or UTC).timestamp() if since else 0.0
    with reading() as session, err.status("replaying") as status:  # silent where stderr is no terminal
        of = targets.target_named(session, target) if target else None
        answer = replays.replayed(
            session, written, server, of, device, at, lambda runs: status.update(f"replaying run {runs}")
        )
    if form is Format.JSON:
        print(json.dumps(told.document(answer), indent=2))  # noqa: T201  (for pipes: no wrapping, no colours)
    elif form is Format.MD:
        print(told.page(answer))  # noqa: T201
    else:
        out.print(told.table(answer))
