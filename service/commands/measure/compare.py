"""`kernelwatch compare`: measure two revisions of a checkout on this machine."""

from pathlib import Path
from typing import Annotated

import typer

from service.commands import views
from service.commands.connection import client
from service.commands.noun import Where, single
from service.commands.output.views import View


def compare(
    base: Annotated[str, typer.Argument(help="The revision to compare with: whatever git understands.")],
    head: Annotated[str, typer.Argument(help="The revision that is judged.")] = "HEAD",
    checkout: Annotated[Path, typer.Option(help="The folder of the repository.")] = Path(),
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe file; by default kernelwatch.toml of the checkout.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Another suite than the recipe's for the device.")] = None,
    python: Annotated[
        Path | None, typer.Option(help="A Python with torch; by default the recipe's stack, else the active one.")
    ] = None,
    allow_unsandboxed: Annotated[
        bool, typer.Option("--allow-unsandboxed", help="Measure without a sandbox; only for your own code.")
    ] = False,
    every: Annotated[bool, typer.Option("--all", help="List every case, not only those that changed.")] = False,
) -> View:
    """Measure two revisions of a checkout on this machine.

    Both are measured on its device, in turns, and the verdict is printed.  Neither a server nor a target is needed.
    Files that are not committed are not measured.

    Exit codes: 0 passed, 1 a confirmed regression, 2 not measured, 3 undecided, 125 the revision cannot be measured.
    """
    from service.commands.arguments import read_recipe
    from service.commands.output.console import err, line
    from service.commands.output.progress import progress
    from service.commands.output.wording import some
    from service.errors import BadInput
    from service.log import only_warnings
    from service.sources.checkout import Checkout
    from workers import checkouts
    from workers.compile import offline

    found = Checkout(checkout)
    text, adapters = read_recipe(recipe) if recipe else offline.own_recipe(found)
    shas = found.resolve(base), found.resolve(head)
    if shas[0] == shas[1]:
        raise BadInput(f"{base} and {head} are the same commit; name two that differ.")
    if head == "HEAD" and (changed := found.uncommitted()):
        line(f"Not measured: {some(changed, 'file')} with changes that are not committed.", to=err)
    wanted = checkouts.Wanted(found, *shas, text, adapters, suite, python, allow_unsandboxed)
    with only_warnings(), checkouts.prepared(wanted), progress() as shown:
        run_id = checkouts.measured(wanted, lambda said: shown.show(0, said, None))
        comment = client().runs.comment(run_id)
        return views.reports.report(client().runs.get(run_id), every=every, markdown=lambda: comment, page=False)


app = single(compare, where=Where.HERE)
