"""`kernelwatch worker`, `stack` and `doctor`: what measures on this machine, with which base environments."""

import os
import time
from pathlib import Path
from typing import Annotated

import typer

from kernels.cases import QUACK
from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun, Where, single
from service.commands.output.console import err, out
from service.commands.output.views import View
from service.errors import BadInput
from service.ops import torch_install

worker_app = Noun("Start, list, pause and drain workers.")
EVERY_S = 2.0
Name = Annotated[str, typer.Argument(help="A name from `kernelwatch worker list`.")]


@worker_app.verb("start", where=Where.ONLY_HERE)
def start(
    gpus: Annotated[
        str | None, typer.Option(help="GPUs that share each run, like `0-3` or `0,2`; by default the first.")
    ] = None,
) -> None:
    """Measure queued runs on this machine's device (one machine; a fleet starts Celery workers)."""
    from service.domain.access import SERVICE
    from service.ledger.acting import as_actor
    from service.ledger.policies import server_policy
    from service.settings import settings
    from workers import loop

    server_policy()
    if gpus is not None:
        settings().gpus = gpus
    with as_actor(SERVICE):
        loop.worker()


@worker_app.verb("list", watch=True)
def list_workers() -> View:
    """List the workers, and what they do."""
    return views.runs.WORKERS.page(first(client().workers.list()), over=False)


@worker_app.verb("pause")
def pause(name: Name) -> View:
    """Let a worker take no further run; the run that it measures goes on."""
    return views.runs.worker(client().workers.pause(name))


@worker_app.verb("drain")
def drain(
    name: Name, wait: Annotated[bool, typer.Option("--wait", help="Wait until its run has ended.")] = False
) -> View:
    """Let a worker end its run and take no other, so that its machine can be serviced."""
    from service.commands.output.console import progress

    found = client().workers.drain(name)
    if wait:
        with progress() as shown:
            while found.online and found.run_id is not None:
                shown.show(0, f"worker {name} measures run {found.run_id}", None)
                time.sleep(EVERY_S)
                found = next(one for one in client().workers.list() if one.name == name)
    return views.runs.worker(found)


@worker_app.verb("resume")
def resume(name: Name) -> View:
    """Let a worker take runs again."""
    return views.runs.worker(client().workers.resume(name))


stack_app = Noun("Manage base environments: a Python with torch.", where=Where.ONLY_HERE)


@stack_app.verb("create")
def create(
    name: str,
    requirements: Annotated[list[str] | None, typer.Argument(help="Packages to install with torch.")] = None,
    lock: Annotated[
        Path | None, typer.Option(help="Install only what this file lists, torch too, each with its hash.", exists=True)
    ] = None,
) -> None:
    """Create a base environment with torch.  Without REQUIREMENTS it also gets Quack if there is an NVIDIA driver."""
    from workers.machine import environments

    if lock and requirements:
        raise BadInput(f"Give requirements or --lock: {lock} lists all that is installed.")
    made = environments.create_stack(name, requirements or [], lock)
    if not (requirements or lock) and torch_install.has_driver():
        try:
            torch_install.install(made.python, [QUACK])
        except RuntimeError as failure:
            err.print(f"Quack was not installed: {failure}", markup=False, soft_wrap=True)
    out.print(f"Created stack [bold]{made.name}[/bold]: {made.python}")


@stack_app.verb("adopt")
def adopt(
    name: str,
    python: Annotated[Path, typer.Option(help="The interpreter that has torch.")],
    path: Annotated[list[Path] | None, typer.Option(help="Another folder to import from; may be repeated.")] = None,
) -> None:
    """Use an existing environment as a base environment.  Only byte code is written into it."""
    from workers.machine import environments

    made = environments.adopt_stack(name, python, path or [])
    torch_install.compile_modules(made.python, made.folders)
    if foreign := [str(folder) for folder in made.folders if folder.exists() and not os.access(folder, os.W_OK)]:
        remedy = f"run `{made.python} -m compileall -q {' '.join(foreign)}` as the owner"
        err.print(f"Without byte code each process starts slowly: {remedy}.", markup=False, soft_wrap=True)
    out.print(f"Added stack [bold]{made.name}[/bold]: {made.python}")


@stack_app.verb("list")
def list_stacks() -> View:
    """List the base environments of this machine."""
    from workers.machine import environments

    items = [
        views.machine.StackItem(name=one.name, python=str(one.python), paths=[str(path) for path in one.paths])
        for one in environments.list_stacks()
    ]
    return views.machine.stacks(items)


def doctor() -> View:
    """Check this machine, and print a fix for what is missing."""
    from service.ops import doctor as checks
    from workers.machine import environments
    from workers.sandbox import sandbox

    stacks = [stack.name for stack in environments.list_stacks()]
    return views.machine.checks(checks.checks(sandbox.self_test, stacks))


doctor_app = single(doctor, where=Where.ONLY_HERE)
