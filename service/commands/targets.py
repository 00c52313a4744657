"""`kernelwatch target`: what is watched."""

from pathlib import Path
from typing import Annotated

import typer

from service.commands.printing import line, out
from service.db.engine import reading, transaction
from service.db.models import Target
from service.errors import BadInput
from service.ledger.intake import registry, targets

target_app = typer.Typer(no_args_is_help=True, help="Watched repositories and packages.")


def read_recipe(path: Path) -> tuple[str, dict[str, str]]:
    """The recipe's text and the adapters it names, by file name."""
    from service.domain.policy import recipes

    try:
        text = path.read_text()
        return text, {name: (path.parent / name).read_text() for name in recipes.parse(text).adapters}
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}.") from None


@target_app.command("add")
def add(
    name: str,
    location: Annotated[
        str, typer.Argument(help="https URL or folder of a repository; index URL or folder of wheels.")
    ],
    recipe: Annotated[
        Path | None,
        typer.Option(
            help="The recipe (TOML), its adapters in the same folder.  Without it, kernelwatch.toml of the mainline."
        ),
    ] = None,
    package: Annotated[
        str | None, typer.Option(help="Watch the releases of this distribution instead of commits.")
    ] = None,
    branch: Annotated[str | None, typer.Option(help="The mainline; by default the remote's default branch.")] = None,
    forge: Annotated[str | None, typer.Option(help="owner/name on GitHub, for webhooks and comments.")] = None,
    trusted: Annotated[
        bool, typer.Option(help="Its mainline may be measured where there is no sandbox, if allowed.")
    ] = False,
    backfill: Annotated[int, typer.Option(help="How many revisions of the mainline to measure now.", min=0)] = 1,
) -> None:
    """Watch a repository or a package.  A refused command changes nothing."""
    queued = registry.add(
        name,
        location=location,
        package=package,
        branch=branch,
        forge=forge,
        trusted=trusted,
        recipe=read_recipe(recipe) if recipe else None,
        backfill=backfill,
    )
    out.print(f"Target [bold]{name}[/bold] is watched; {queued} runs were queued.")


@target_app.command("edit")
def edit(
    name: str,
    location: Annotated[
        str | None, typer.Option(help="The new address; it must have the newest revision that is known.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="A recipe file; what was measured keeps the old one.")] = None,
    recipe_from_branch: Annotated[
        bool, typer.Option("--recipe-from-branch", help="Take the recipe from kernelwatch.toml of the mainline.")
    ] = False,
    branch: Annotated[str | None, typer.Option(help="The mainline; '' for the remote's default branch.")] = None,
    forge: Annotated[str | None, typer.Option(help="owner/name on GitHub; '' for none.")] = None,
    trusted: Annotated[
        bool | None, typer.Option("--trusted/--untrusted", help="Whether it may run where there is no sandbox.")
    ] = None,
) -> None:
    """Change how a target is watched; what is not named stays.  A refused command changes nothing."""
    files = read_recipe(recipe) if recipe else None
    if (location, files, branch, forge, trusted) == (None,) * 5 and not recipe_from_branch:
        raise BadInput("Name what to change: see `kernelwatch target edit --help`.")
    registry.edit(
        name,
        location=location,
        recipe=files,
        recipe_from_branch=recipe_from_branch,
        branch=branch,
        forge=forge,
        trusted=trusted,
    )
    line("Target ", (name, "bold"), " is changed; the next poll uses it.")


@target_app.command("rename")
def rename(name: str, new: str) -> None:
    """Give a target another name; its history stays.  Addresses with the old name end."""
    registry.rename(name, new)
    line("Target ", (name, "bold"), " is now ", (new, "bold"), ".")


@target_app.command("pause")
def pause(name: str) -> None:
    """Take no new revisions until `resume`.  What is queued is still measured, and all history stays."""
    registry.pause(name)
    line("Target ", (name, "bold"), f" is paused; `kernelwatch target resume {name}` ends that.")


@target_app.command("resume")
def resume(name: str) -> None:
    """Take new revisions again, beginning with those that the mainline got meanwhile."""
    registry.resume(name)
    line("Target ", (name, "bold"), " is polled again.")


@target_app.command("remove")
def remove(
    name: str, yes: Annotated[bool, typer.Option("--yes", help="Delete without asking; for scripts.")] = False
) -> None:
    """Delete a target with everything that was measured of it.  `pause` keeps the history."""
    had = registry.holdings(name)
    what = (
        f"target {name}: {had.revisions} revisions, {had.runs} runs, {had.measurements} measurements, "
        f"{had.regressions} regressions"
    )
    if not yes and not typer.confirm(f"Delete {what}?"):
        raise BadInput("Nothing was deleted.")
    registry.remove(name)
    line(f"Deleted {what}.")


@target_app.command("list")
def show() -> None:
    """The watched targets."""
    with reading() as session:
        for one in targets.all_targets(session):
            line((one.name, "bold"), f"  {one.kind}  {one.location}", (_trouble(one), "red"))


@target_app.command("allow-unsandboxed")
def allow_unsandboxed(name: str, allow: bool = True) -> None:
    """Let a trusted target be measured on workers that have no sandbox.  Its pages and comments say so."""
    with transaction() as session:
        target = targets.target_named(session, name)
        if allow and not target.trusted:
            raise BadInput(f"Target {name} is not trusted; only trusted targets may run without a sandbox.")
        target.allow_unsandboxed = allow
    out.print(f"Target [bold]{name}[/bold] {'may' if allow else 'may not'} run without a sandbox.")


def _trouble(target: Target) -> str:
    paused = "  paused" if target.paused_at else ""
    return f"{paused}  {target.poll_error or ''}"
