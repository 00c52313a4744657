"""`kernelwatch facts`: compare compiled code without a GPU."""

import sys
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import read_recipe
from service.commands.noun import Where, single
from service.commands.output.views import View
from service.errors import BuildFailed


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


app = single(facts, where=Where.HERE)
