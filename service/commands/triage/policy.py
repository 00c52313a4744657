"""`kernelwatch policy` and `kernelwatch calibration`: how verdicts are made, and how often equal code differs."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer

from service.commands import connection, views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun
from service.commands.output.views import View
from service.errors import BadInput

policy_app = Noun("Show a policy, or apply another one to stored runs.")


@policy_app.verb("list")
def list_policies(
    limit: Annotated[int, typer.Option(help="Maximum number of versions, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List the versions of policies that made verdicts, the newest first."""
    return views.policies.COLUMNS.page(first(client().policies.list(), limit), limit)


@policy_app.verb("show")
def show(
    version: Annotated[str, typer.Argument(help="A version from `kernelwatch policy list`, or its beginning.")],
) -> View:
    """Show a version of a policy with its values."""
    found = [one.digest for one in client().policies.list() if one.digest.startswith(version.lower())]
    if len(found) != 1:
        problem = "No policy has" if not found else f"{len(found)} policies have"
        raise BadInput(f"{problem} a version that begins with {version}. `kernelwatch policy list` lists them.")
    return views.policies.whole(client().policies.get(found[0]))


@policy_app.verb("replay")
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


calibration_app = Noun("Compare equal code, and quarantine cases.")

OnDevice = Annotated[str, typer.Option(help="The device.")]
Provider = Annotated[str | None, typer.Option(help="Only this provider; by default all.")]


@calibration_app.verb("show")
def show_rates(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    worker: Annotated[str | None, typer.Option(help="Only this worker.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device.")] = None,
    days: Annotated[int, typer.Option(help="Only comparisons of the last days.", min=1)] = 90,
) -> View:
    """Show how often equal code differed, by worker and metric, the worst cases, and the quarantined cases."""
    return views.policies.calibration(client().calibration.get(target=target, worker=worker, device=device, days=days))


@calibration_app.verb("start")
def start(
    target: str,
    device: OnDevice,
    revision: Annotated[str | None, typer.Option(help="By default the newest suitable mainline revision.")] = None,
    suite: Annotated[str | None, typer.Option(help="By default the recipe's for the device.")] = None,
    worker: Annotated[str | None, typer.Option(help="Run it on this worker.")] = None,
) -> View:
    """Queue a calibration: two builds of one revision, and a copy, measured against each other."""
    run = client().calibration.start(target, device=device, revision=revision, suite=suite, worker=worker)
    return views.policies.calibration_started(run, connection.address())


@calibration_app.verb("quarantine")
def quarantine(
    target: str,
    case: str,
    device: OnDevice,
    reason: Annotated[str, typer.Option(help="Why; it is shown with every verdict.")],
    provider: Provider = None,
) -> View:
    """Stop reporting a case until it is released.  It is still measured and shown."""
    found = client().calibration.quarantine(target, case, device=device, reason=reason, provider=provider)
    return views.policies.quarantined(found, case)


@calibration_app.verb("release")
def release(
    target: str,
    case: str,
    device: OnDevice,
    reason: Annotated[str, typer.Option(help="Why it is reliable again.")],
    provider: Provider = None,
) -> View:
    """Report a quarantined case again.  Earlier comparisons of equal code no longer count."""
    found = client().calibration.release(target, case, device=device, reason=reason, provider=provider)
    return views.policies.released(found, case)
