"""`kernelwatch compare`, `isolate` and `facts`: measure or compile two revisions on this machine, without a server."""

import sys
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from service.commands import views
from service.commands.arguments import read_recipe
from service.commands.connection import client
from service.commands.measure.fail_on import VERDICTS, exit_code
from service.commands.noun import Where, single
from service.commands.output.views import View
from service.errors import BadInput, BuildFailed

if TYPE_CHECKING:
    from workers.checkouts import Wanted


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
    from service.commands.output.console import err, line
    from service.domain.text import counted
    from service.sources.checkout import Checkout
    from workers import checkouts
    from workers.compile import offline

    source = Checkout(checkout)
    text, adapters = read_recipe(recipe) if recipe else offline.own_recipe(source)
    shas = source.resolve(base), source.resolve(head)
    if shas[0] == shas[1]:
        raise BadInput(f"{base} and {head} are the same commit; name two that differ.")
    if head == "HEAD" and (changed := source.uncommitted()):
        line(f"Not measured: {counted(changed, 'file')} with changes that are not committed.", to=err)
    return measured(checkouts.Wanted(source, *shas, text, adapters, suite, python, allow_unsandboxed), every=every)


def measured(wanted: "Wanted", *, every: bool) -> View:
    """Measure two revisions of a checkout, and return the result; its code is the worst verdict."""
    from service.commands.output.console import progress
    from service.log import only_warnings
    from workers import checkouts

    with only_warnings(), checkouts.prepared(wanted), progress() as shown:
        run_id = checkouts.measured(wanted, lambda stage: shown.show(0, stage, None))
        comment = client().runs.comment(run_id)
        run = client().runs.get(run_id)
        view = views.reports.report(run, every=every, texts={"md": lambda: comment}, page=False)
        return replace(view, code=exit_code([run], VERDICTS))


compare_app = single(compare, where=Where.HERE)


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
    from service.commands.output.console import err, progress
    from service.domain.text import printable
    from service.log import only_warnings
    from workers.compile import offline
    from workers.isolation import session

    if max_trials < trials:
        raise BadInput(f"--max-trials {max_trials} is less than --trials {trials}.")
    if save is not None:
        views.facts.make_folder(save)
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
    view = views.facts.isolated(result)
    if save is not None:
        views.facts.save(save, view)
    return view


isolate_app = single(isolate, where=Where.HERE)


class TextKind(StrEnum):
    SASS = "sass"
    TTGIR = "ttgir"
    PTX = "ptx"
    GENERATED = "generated"


def facts(
    target: Annotated[str, typer.Argument(help="A target, or a checkout: a folder, written with a slash.")],
    revisions: Annotated[
        str,
        typer.Argument(help="BASE..HEAD, BASE...HEAD (from their merge base), or HEAD (against its parent)."),
    ] = "HEAD",
    recipe: Annotated[
        Path | None, typer.Option(help="A recipe file; by default the target's, or kernelwatch.toml of the checkout.")
    ] = None,
    suite: Annotated[str | None, typer.Option(help="Another suite than the recipe's.")] = None,
    arch: Annotated[
        list[str] | None, typer.Option(help="A GPU architecture; may be repeated.  By default sm_90 and sm_100.")
    ] = None,
    provider: Annotated[list[str] | None, typer.Option(help="Only this provider; may be repeated.")] = None,
    diff: Annotated[bool, typer.Option("--diff", help="Show how the changed kernels differ.")] = False,
    kind: Annotated[TextKind, typer.Option(help="What --diff compares.")] = TextKind.SASS,
    texts: Annotated[
        Path | None, typer.Option(help="Write the code of changed kernels, before and after, into this folder.")
    ] = None,
    allow_unsandboxed: Annotated[
        bool,
        typer.Option("--allow-unsandboxed", help="Compile a checkout without a sandbox; only for your own code."),
    ] = False,
) -> View:
    """Compile two revisions without a GPU and show what changed.  Exits with 1 if a limit is broken."""
    from rich.text import Text

    from service.commands.output.console import err
    from service.domain.text import printable
    from workers.compile import compare, offline

    wish = compare.Wish(
        revisions,
        suite,
        tuple(dict.fromkeys(arch or compare.ARCHS)),
        tuple(dict.fromkeys(provider or ())),
        kind.value if diff else None,
        texts,
    )
    text_and_adapters = read_recipe(recipe) if recipe else None
    subject = offline.subject(target, text_and_adapters, without_sandbox=allow_unsandboxed)
    try:
        with err.status("reading the revisions") as status:  # silent where stderr is no terminal
            found = compare.facts(subject, wish, lambda now: status.update(Text(printable(now))))
    except BuildFailed as failure:
        err.print(Text(printable("\n".join(filter(None, (str(failure), failure.log))))), soft_wrap=True)
        sys.exit(125)
    return views.facts.compared(found)


facts_app = single(facts, where=Where.HERE)
