"""`kernelwatch calibration`: false-alarm rates of equal code, and quarantined cases."""

from typing import Annotated

import typer

from service.commands import connection, views
from service.commands.connection import client
from service.commands.noun import Noun
from service.commands.output.views import View

app = Noun("Compare equal code, and quarantine cases.")

OnDevice = Annotated[str, typer.Option(help="The device.")]
Provider = Annotated[str | None, typer.Option(help="Only this provider; by default all.")]


@app.verb("show")
def show(
    target: Annotated[str | None, typer.Argument(help="Only this target.")] = None,
    worker: Annotated[str | None, typer.Option(help="Only this worker.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device.")] = None,
    days: Annotated[int, typer.Option(help="Only comparisons of the last days.", min=1)] = 90,
) -> View:
    """Show how often equal code differed, by worker and metric, the worst cases, and the quarantined cases."""
    return views.calibration.shown(client().calibration.get(target=target, worker=worker, device=device, days=days))


@app.verb("start")
def start(
    target: str,
    device: OnDevice,
    revision: Annotated[str | None, typer.Option(help="By default the newest suitable mainline revision.")] = None,
    suite: Annotated[str | None, typer.Option(help="By default the recipe's for the device.")] = None,
    worker: Annotated[str | None, typer.Option(help="Run it on this worker.")] = None,
) -> View:
    """Queue a calibration: two builds of one revision, and a copy, measured against each other."""
    run = client().calibration.start(target, device=device, revision=revision, suite=suite, worker=worker)
    return views.calibration.started(run, connection.address())


@app.verb("quarantine")
def quarantine(
    target: str,
    case: str,
    device: OnDevice,
    reason: Annotated[str, typer.Option(help="Why; it is shown with every verdict.")],
    provider: Provider = None,
) -> View:
    """Stop reporting a case until it is released.  It is still measured and shown."""
    found = client().calibration.quarantine(target, case, device=device, reason=reason, provider=provider)
    return views.calibration.quarantined(found, case)


@app.verb("release")
def release(
    target: str,
    case: str,
    device: OnDevice,
    reason: Annotated[str, typer.Option(help="Why it is reliable again.")],
    provider: Provider = None,
) -> View:
    """Report a quarantined case again.  Earlier comparisons of equal code no longer count."""
    found = client().calibration.release(target, case, device=device, reason=reason, provider=provider)
    return views.calibration.released(found, case)
