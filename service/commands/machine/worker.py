"""`kernelwatch worker`: start this machine's worker; list, pause and drain all workers."""

import time
from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun, Where
from service.commands.output.views import View

app = Noun("Start, list, pause and drain workers.")
EVERY_S = 2.0
Name = Annotated[str, typer.Argument(help="A name from `kernelwatch worker list`.")]


@app.verb("start", where=Where.ONLY_HERE)
def start() -> None:
    """Measure queued runs on this machine's device (one machine; a fleet starts Celery workers)."""
    from service.domain.access import SERVICE
    from service.ledger.acting import as_actor
    from service.ledger.policies import server_policy
    from workers import loop

    server_policy()
    with as_actor(SERVICE):
        loop.worker()


@app.verb("list", watch=True)
def list_workers() -> View:
    """List the workers, and what they do."""
    return views.runs.WORKERS.page(first(client().workers.list()), over=False)


@app.verb("pause")
def pause(name: Name) -> View:
    """Let a worker take no further run; the run that it measures goes on."""
    return views.runs.worker(client().workers.pause(name))


@app.verb("drain")
def drain(
    name: Name, wait: Annotated[bool, typer.Option("--wait", help="Wait until its run has ended.")] = False
) -> View:
    """Let a worker end its run and take no other, so that its machine can be serviced."""
    from service.commands.output.progress import progress

    found = client().workers.drain(name)
    if wait:
        with progress() as shown:
            while found.online and found.run_id is not None:
                shown.show(0, f"worker {name} measures run {found.run_id}", None)
                time.sleep(EVERY_S)
                found = next(one for one in client().workers.list() if one.name == name)
    return views.runs.worker(found)


@app.verb("resume")
def resume(name: Name) -> View:
    """Let a worker take runs again."""
    return views.runs.worker(client().workers.resume(name))
