"""`kernelwatch up`, `api`, `control` and `demo`: start the processes of the service."""

import sys
from pathlib import Path
from typing import Annotated

import structlog
import typer
from rich.markup import escape

from service.commands.arguments import read_recipe
from service.commands.noun import Where, single
from service.commands.nouns import importing
from service.commands.output.console import out
from service.db import check, migrate, wakeups
from service.db.engine import reading, transaction
from service.domain.access import SERVICE
from service.domain.states import TargetKind
from service.errors import BadInput
from service.ledger import targets
from service.ledger.acting import as_actor
from service.ledger.intake import deliveries, samples
from service.ledger.policies import server_policy
from service.ops.garbage import keep_what_is_loaded
from service.settings import settings

log = structlog.get_logger()

_BACKLOG = 256  # connections that asyncio accepts at a time, before the limit on them applies
_SHUTDOWN_S = 10  # for the responses in progress


def up(
    demo: Annotated[bool, typer.Option("--demo", help="Add the demo target and measure its history.")] = False,
) -> None:
    """Run API, dashboard, worker and control on this machine until Ctrl-C."""
    from service.ops import supervisor

    server_policy()

    def prepare() -> None:
        migrate.upgrade()
        if demo:
            _register_demo()
            _print_sandbox_state()
            _offer_sample()

    this = [sys.executable, "-P", "-m", f"{__name__.partition('.commands.')[0]}.cli"]
    commands = {"api": [*this, "api"], "control": [*this, "control"], "worker": [*this, "worker", "start"]}
    if demo:
        from workers.machine import device

        if device.ask()[0].name != "cpu":  # the demo is measured on the CPU, which the GPU's worker does not serve
            commands["worker-cpu"] = ["env", "KERNELWATCH_DEVICE=cpu", *this, "worker", "start"]
    sys.exit(supervisor.supervise(commands, settings().state, prepare))


def demo() -> None:
    """Add the demo target and queue runs for its history."""
    _register_demo()
    _print_sandbox_state()
    out.print(f"Added target demo: {settings().address}/targets/demo")


def api() -> None:
    """Serve the API and the dashboard."""
    with importing():
        import uvicorn

        from service.api.gateway.connections import server_options
        from service.app import create_app
        from service.ops import supervisor

    server_policy()
    if trouble := supervisor.cannot_listen(settings().host, settings().port):
        raise BadInput(trouble)
    _send_wakeups()
    # The event loop competes with the endpoints' threads for the interpreter lock at each of its steps.  With the
    # default of 5 ms and all threads busy, a webhook took 50 % longer.
    sys.setswitchinterval(0.001)
    with importing():
        app = create_app()
    for problem in check.unready():  # it starts all the same, and /readyz says so
        log.error("not ready", reason=problem)
    keep_what_is_loaded()
    uvicorn.run(
        app,
        host=settings().host,
        port=settings().port,
        **server_options(),
        backlog=_BACKLOG,
        timeout_graceful_shutdown=_SHUTDOWN_S,
        log_level="error",  # clients can cause warnings as often as they like
        access_log=False,
    )


def control() -> None:
    """Run the periodic tasks of the service.

    It processes webhooks, polls remotes, sends comments and requeues lost runs.  A fleet uses Celery instead.
    """
    from workers import loop

    server_policy()
    _send_wakeups()
    with as_actor(SERVICE):
        loop.run_control()


def _send_wakeups() -> None:
    if settings().broker_url is not None:
        from workers import app as fleet

        wakeups.send_with(fleet.send_wakeup)


def _print_sandbox_state() -> None:
    """If there is no sandbox, print what that means for the demo and for other targets, and how to get one."""
    from workers.sandbox import sandbox

    if (error := sandbox.self_test()) is None:
        return
    with reading() as session:
        allowed = targets.target_named(session, "demo").allow_unsandboxed
    out.print(f"[yellow]The sandbox does not work[/yellow]: {escape(error)}.", soft_wrap=True)
    if allowed:
        out.print("The demo runs without a sandbox, because its code is part of kernelwatch.", soft_wrap=True)
    else:
        changed = f"{settings().state / 'demo'} has commits that are not part of kernelwatch"
        out.print(f"The demo is not measured: {escape(changed)}. Remove that folder to rebuild it.", soft_wrap=True)
    out.print("Other targets are not measured until the sandbox works; run `kernelwatch doctor`.", soft_wrap=True)


def _offer_sample() -> None:
    """Name the command that shows what a GPU's measurements look like, while the demo is measured."""
    with reading() as session:
        if not samples.is_loaded(session):
            out.print("For a look at measurements of an H200: `kernelwatch sample load`.", soft_wrap=True)


def _register_demo() -> None:
    """Build the demo repository in the state folder and add it as a target; repeating this changes nothing.

    Only a repository whose commits are exactly those built here may be measured without a sandbox.
    """
    import importlib.util

    example = Path(__file__).parents[3] / "examples" / "norms"
    spec = importlib.util.spec_from_file_location("kernelwatch_demo", example / "build.py")
    if spec is None or spec.loader is None or not (example / "build.py").exists():
        raise BadInput("The demo is in the source tree (examples/norms); run this from a clone.")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    folder = settings().state / "demo"
    repository = folder if (folder / ".git").exists() else module.build(folder)
    text, adapters = read_recipe(example / "recipe.toml")
    with transaction() as session:
        target = targets.register(
            session,
            "demo",
            location=str(repository),
            kind=TargetKind.GIT,
            branch="main",
            trusted=True,
            allow_unsandboxed=module.is_built(repository),
            recipe_text=text,
            adapters=adapters,
        )
        target_id = target.id
    deliveries.backfill_last(target_id, 100)
    deliveries.pull_appeared(target_id, module.PULL, vouched=True)


up_app = single(up, where=Where.ONLY_HERE)
demo_app = single(demo, where=Where.ONLY_HERE)
api_app = single(api, where=Where.ONLY_HERE)
control_app = single(control, where=Where.ONLY_HERE)
