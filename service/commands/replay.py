"""`kernelwatch replay`: apply another policy to stored runs.  It never writes, and exits with 0."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from service.commands.printing import Format, Formatted, err, out, print_json
from service.db.engine import reading
from service.ledger.intake import targets
from service.ledger.runs import replays
from service.ledger.server_policy import policy_file, server_policy
from service.reports import replay as rendering
from service.reports.schema.replay import ReplayDocument


def replay(
    policy: Annotated[Path, typer.Option(help="A TOML file with the keys of a recipe's [policy], or a recipe.")],
    target: Annotated[str | None, typer.Option(help="Only runs of this target.")] = None,
    device: Annotated[str | None, typer.Option(help="Only runs on this device.")] = None,
    since: Annotated[datetime | None, typer.Option(help="Only runs that ended after this time (UTC).")] = None,
    form: Formatted = Format.TABLE,
) -> None:
    """Apply a policy to stored runs and show which alarms would be new, missed or unchanged."""
    written, server = policy_file(policy), server_policy()
    at = since.replace(tzinfo=since.tzinfo or UTC).timestamp() if since else 0.0
    with reading() as session, err.status("replaying") as status:  # silent where stderr is no terminal
        of = targets.target_named(session, target) if target else None
        answer = replays.replayed(
            session, written, server, of, device, at, lambda runs: status.update(f"replaying run {runs}")
        )
    if form is Format.JSON:
        print_json(ReplayDocument.of(answer))
    elif form is Format.MD:
        print(rendering.page(answer))  # noqa: T201
    else:
        out.print(rendering.table(answer))
