"""`kernelwatch isolate`: which component of a stack moved which case."""

import sys
from pathlib import Path
from typing import Annotated

import typer

from service.commands.arguments import read_recipe
from service.commands.noun import Where, single
from service.commands.output.views import View
from service.errors import BadInput, BuildFailed


def isolate(
    target: Annotated[str, typer.Argument(help="A target, or a checkout: a folder, written with a slash.")],
    before: Annotated[str, typer.Option("--from", metavar="STACK", help="The old stack.")],
    after: Annotated[str, typer.Option("--to", metavar="STACK", help="The new stack.")],
    revision: Annotated[
        str | None, typer.Option(help="The revision to measure; by default the newest of the mainline.")
    ] = None,
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe file; by default the target's, or kernelwatch.toml of the checkout.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Another suite than the recipe's for the device.")] = None,
    provider: Annotated[
        list[str] | None, typer.Option(help="Only this provider, or a built-in one; may be repeated.")
    ] = None,
    component: Annotated[
        list[str] | None, typer.Option(help="Swap only this component; may be repeated.  By default all that differ.")
    ] = None,
    trials: Annotated[int, typer.Option(help="Trials of every case.", min=2, max=32)] = 4,
    max_trials: Annotated[int, typer.Option(help="Maximum trials of a case that is undecided.", min=2, max=64)] = 12,
    save: Annotated[Path | None, typer.Option(help="Also write isolation.json and isolation.md here.")] = None,
    allow_unsandboxed: Annotated[
        bool, typer.Option("--allow-unsandboxed", help="Measure a checkout without a sandbox; only for your own code.")
    ] = False,
) -> View:
    """Find which component of a new stack made a revision slower.

    It measures the revision in both stacks, and in both with one component of the other (Triton, torch, Quack, …), in
    turns on this machine's device.  Nothing is stored in the history of the target.

    Exit codes: 0 nothing became slower, 1 something did, 2 not measured, 3 undecided.
    """
    from service.commands.measure import isolation_view
    from service.commands.output.console import err
    from service.commands.output.progress import progress
    from service.domain.text import printable
    from service.log import only_warnings
    from workers.compile import offline
    from workers.isolation import session

    if max_trials < trials:
        raise BadInput(f"--max-trials {max_trials} is less than --trials {trials}.")
    if save is not None:
        isolation_view.make_folder(save)
    text_and_adapters = read_recipe(recipe) if recipe else None
    subject = offline.subject(target, text_and_adapters, without_sandbox=allow_unsandboxed)
    providers, components = tuple(provider or ()), tuple(component or ())
    wish = session.IsolationWish(before, after, revision, suite, providers, components, trials, max_trials)
    try:
        with only_warnings(), progress() as shown:
            result = session.isolated(subject, wish, lambda said: shown.show(0, said, None))
    except BuildFailed as failure:
        err.print(printable("\n".join(filter(None, (str(failure), failure.log)))), markup=False, soft_wrap=True)
        sys.exit(2)
    view = isolation_view.isolated(result)
    if save is not None:
        isolation_view.save(save, view)
    return view


app = single(isolate, where=Where.HERE)
