"""`kernelwatch status` and `kernelwatch queue`: what is going on."""

from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import single
from service.commands.output.views import View


def status() -> View:
    """Show targets, workers and the queue."""
    from kernelwatch.client import NotAllowed, NotFound, NoValidKey

    found = client()
    try:
        channels = list(found.channels.list())
    except (NotAllowed, NotFound, NoValidKey):  # for those who may triage, and of newer servers
        channels = []
    return views.machine.status(
        targets=[found.targets.get(one.name) for one in found.targets.list()],
        workers=list(found.workers.list()),
        queue=list(found.queue.list()),
        channels=channels,
    )


def queue(
    limit: Annotated[int, typer.Option(help="Maximum number of runs.", min=1, max=1000)] = 100,
) -> View:
    """Show runs in progress, then waiting runs in their order."""
    return views.runs.QUEUE.page(first(client().queue.list(), limit), limit, over=False)


status_app, queue_app = single(status, watch=True), single(queue, watch=True)
