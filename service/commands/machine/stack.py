"""`kernelwatch stack`: base environments with torch."""

from pathlib import Path
from typing import Annotated

import typer

from kernels.cases import QUACK
from service.commands import views
from service.commands.noun import Noun, Where
from service.commands.output.console import err, out
from service.commands.output.views import View
from service.ops import torch_install

app = Noun("Manage base environments: a Python with torch.", where=Where.ONLY_HERE)


@app.verb("create")
def create(
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


@app.verb("adopt")
def adopt(
    name: str,
    python: Annotated[Path, typer.Option(help="The interpreter that has torch.")],
    path: Annotated[list[Path] | None, typer.Option(help="Another folder to import from; may be repeated.")] = None,
) -> None:
    """Use an existing environment as a base environment.  It is only read."""
    from workers import environments

    made = environments.adopt_stack(name, python, path or [])
    out.print(f"Added stack [bold]{made.name}[/bold]: {made.python}")


@app.verb("list")
def list_stacks() -> View:
    """List the base environments of this machine."""
    from workers import environments

    items = [
        views.machine.StackItem(name=one.name, python=str(one.python), paths=[str(path) for path in one.paths])
        for one in environments.list_stacks()
    ]
    return views.machine.stacks(items)
