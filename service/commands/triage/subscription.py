"""`kernelwatch subscription`: who is notified of what."""

from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun
from service.commands.output.views import View
from service.domain.states import GateAction

app = Noun("Send notices of events to Slack, mail, webhooks and other channels.")

Number = Annotated[int, typer.Argument(metavar="ID", help="An id from `kernelwatch subscription list`.")]


@app.verb("channels")
def list_channels() -> View:
    """List the channels that the operator named, and how they work."""
    return views.access.CHANNELS.page(first(client().channels.list()))


@app.verb("list")
def list_subscriptions(
    target: Annotated[str | None, typer.Argument(help="Only subscriptions to this target.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of subscriptions, the newest.", min=1, max=1000)] = 50,
) -> View:
    """List subscriptions, the newest first."""
    return views.access.SUBSCRIPTIONS.page(first(client().subscriptions.list(target=target), limit), limit)


@app.verb("create")
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


@app.verb("test")
def test(number: Number) -> View:
    """Send a test to the channel of a subscription now, and print whether it arrived."""
    return views.access.tried(client().subscriptions.test(number))


@app.verb("delete")
def delete(number: Number) -> None:
    """Delete a subscription.  What waits for it is not sent."""
    from service.commands.output.console import err, line

    client().subscriptions.delete(number)
    line(f"Deleted subscription {number}.", to=err)
