"""`kernelwatch weekly` and `kernelwatch subscription`: what happened, and who is notified of it."""

from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun, single
from service.commands.output.views import View
from service.domain.states import GateAction


def weekly(
    week: Annotated[
        str | None, typer.Option(metavar="WEEK", help="An ISO week, as in 2026-W47; by default the current one.")
    ] = None,
    target: Annotated[str | None, typer.Option(help="Only this target.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device.")] = None,
) -> View:
    """Print what moved in a week, by time at stake.

    Regressions and gaps to SOTA opened and closed in the week follow, and those that are open at its end.
    """
    reports = client().weekly
    found = reports.get(week=week, target=target, device=device)
    return views.weekly.report(found, markdown=lambda: reports.markdown(week=week, target=target, device=device))


weekly_app = single(weekly)


subscription_app = Noun("Send notices of events to Slack, mail, webhooks and other channels.")

Number = Annotated[int, typer.Argument(metavar="ID", help="An id from `kernelwatch subscription list`.")]


@subscription_app.verb("channels")
def list_channels() -> View:
    """List the channels that the operator named, and how they work."""
    return views.access.CHANNELS.page(first(client().channels.list()))


@subscription_app.verb("list")
def list_subscriptions(
    target: Annotated[str | None, typer.Argument(help="Only subscriptions to this target.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of subscriptions, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List subscriptions, the newest first."""
    return views.access.SUBSCRIPTIONS.page(first(client().subscriptions.list(target=target), limit), limit)


@subscription_app.verb("create")
def create(
    channel: Annotated[str, typer.Argument(help="A channel from `kernelwatch subscription channels`.")],
    target: Annotated[str | None, typer.Option(help="Only this target; by default all, and workers.")] = None,
    device: Annotated[str | None, typer.Option(help="Only this device, or a pattern such as `h*`.")] = None,
    severity: Annotated[GateAction, typer.Option(help="The smallest severity.")] = GateAction.WARN,
    event: Annotated[
        list[str] | None,
        typer.Option(
            help="Only this kind of event (`regression.opened`, or `regression` for all of them); repeatable."
        ),
    ] = None,
) -> View:
    """Send events of a target, or of all, to a channel."""
    made = client().subscriptions.create(
        channel, target=target, device=device, severity=severity.value, kinds=event or None
    )
    return views.access.created(made)


@subscription_app.verb("test")
def test(number: Number) -> View:
    """Send a test to the channel of a subscription now, and print whether it arrived."""
    return views.access.tried(client().subscriptions.test(number))


@subscription_app.verb("delete")
def delete(number: Number) -> None:
    """Delete a subscription.  What waits for it is not sent."""
    from service.commands.output.console import err, line

    client().subscriptions.delete(number)
    line(f"Deleted subscription {number}.", to=err)
