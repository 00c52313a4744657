"""`kernelwatch doctor`, `stack` and `db`: prepare a machine and its database."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from kernels.cases import QUACK
from service.commands.printing import err, out
from service.db import migrate
from service.ops import doctor as checks
from service.ops import torch_install

stack_app = typer.Typer(no_args_is_help=True, help="Manage base environments: a Python with torch.")
db_app = typer.Typer(no_args_is_help=True, help="Manage the database.")


def doctor() -> None:
    """Check this machine and print a fix for everything that is missing."""
    from workers import environments
    from workers.sandbox import sandbox

    stacks = [stack.name for stack in environments.list_stacks()]
    sys.exit(checks.show(checks.checks(sandbox.self_test, stacks), out))


@db_app.command("upgrade")
def db_upgrade() -> None:
    """Migrate the database to the schema of this version."""
    migrate.upgrade()
    out.print("The database is up to date.")


@stack_app.command("create")
def stack_create(
    name: str, requirements: Annotated[list[str] | None, typer.Argument(help="Packages to install with torch.")] = None
) -> None:
    """Create a base environment with torch.  Without REQUIREMENTS it also gets Quack if there is an NVIDIA driver."""
    from workers import environments

    made = environments.create_stack(name, requirements or [])
    if not requirements and torch_install.has_driver():
        try:
            torch_install.install(made.python, [QUACK])
        except RuntimeError as failure:
            err.print(f"Quack was not installed: {failure}", markup=False, soft_wrap=True)
    out.print(f"Created stack [bold]{made.name}[/bold]: {made.python}")


@stack_app.command("adopt")
def stack_adopt(
    name: str,
    python: Annotated[Path, typer.Option(help="The interpreter that has torch.")],
    path: Annotated[list[Path] | None, typer.Option(help="Another folder to import from; may be repeated.")] = None,
) -> None:
    """Use an existing environment as a base environment.  It is only read."""
    from workers import environments

    made = environments.adopt_stack(name, python, path or [])
    out.print(f"Added stack [bold]{made.name}[/bold]: {made.python}")


@stack_app.command("list")
def stack_list() -> None:
    """List the base environments of this machine."""
    from workers import environments

    if not (stacks := environments.list_stacks()):
        err.print("No stacks. Create one with `kernelwatch stack create host`, or use `kernelwatch stack adopt`.")
    for one in stacks:
        print(one.name, one.python, *one.paths, sep="  ")  # noqa: T201  (for pipes, as the Makefile's)
