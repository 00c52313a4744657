"""`kernelwatch target`: add, change and list targets."""

from pathlib import Path
from typing import Annotated

import typer

from service.commands.printing import TableOrJson, TableOrJsonFormat, line, out, print_json
from service.db.engine import reading, transaction
from service.db.models import Target
from service.domain.text import without_credentials
from service.errors import BadInput
from service.ledger.intake import registry, targets
from service.reports.schema.base import Page
from service.reports.schema.targets import TargetItem

target_app = typer.Typer(no_args_is_help=True, help="Manage targets: watched repositories and packages.")


def read_recipe(path: Path) -> tuple[str, dict[str, str]]:
    """Return the text of a recipe and its adapters by file name."""
    from service.domain.policy import recipes

    try:
        text = path.read_text()
        return text, {name: (path.parent / name).read_text() for name in recipes.parse(text).adapters}
    except OSError as error:
        raise BadInput(f"{error.filename}: {error.strerror}.") from None


@target_app.command("add")
def add(
    name: str,
    location: Annotated[str, typer.Argument(help="URL or folder of a repository; index URL or folder of wheels.")],
    recipe: Annotated[
        Path | None,
        typer.Option(
            help="The recipe (TOML), with its adapters in its folder.  By default kernelwatch.toml of the mainline."
        ),
    ] = None,
    package: Annotated[str | None, typer.Option(help="Watch the releases of this package instead of commits.")] = None,
    branch: Annotated[str | None, typer.Option(help="The mainline; by default the remote's default branch.")] = None,
    forge: Annotated[str | None, typer.Option(help="owner/name on GitHub, for webhooks and comments.")] = None,
    trusted: Annotated[bool, typer.Option(help="Its mainline may run without a sandbox, if that is allowed.")] = False,
    backfill: Annotated[int, typer.Option(help="Number of mainline revisions to measure now.", min=0)] = 1,
) -> None:
    """Watch a repository or a package."""
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
    out.print(f"Added target [bold]{name}[/bold]; queued {queued} run{'s' * (queued != 1)}.")


@target_app.command("edit")
def edit(
    name: str,
    location: Annotated[
        str | None, typer.Option(help="The new location; it must have the newest known revision.")
    ] = None,
    recipe: Annotated[Path | None, typer.Option(help="A new recipe; earlier runs keep the old one.")] = None,
    recipe_from_branch: Annotated[
        bool, typer.Option("--recipe-from-branch", help="Use kernelwatch.toml of the mainline as the recipe.")
    ] = False,
    branch: Annotated[str | None, typer.Option(help="The mainline; '' for the remote's default branch.")] = None,
    forge: Annotated[str | None, typer.Option(help="owner/name on GitHub; '' for none.")] = None,
    trusted: Annotated[
        bool | None, typer.Option("--trusted/--untrusted", help="Whether it may run without a sandbox.")
    ] = None,
) -> None:
    """Change a target."""
    files = read_recipe(recipe) if recipe else None
    if (location, files, branch, forge, trusted) == (None,) * 5 and not recipe_from_branch:
        raise BadInput("Nothing to change; see `kernelwatch target edit --help`.")
    registry.edit(
        name,
        location=location,
        recipe=files,
        recipe_from_branch=recipe_from_branch,
        branch=branch,
        forge=forge,
        trusted=trusted,
    )
    line("Changed target ", (name, "bold"), ". The next poll uses the change.")


@target_app.command("rename")
def rename(name: str, new: str) -> None:
    """Rename a target.  URLs with the old name stop working."""
    registry.rename(name, new)
    line("Renamed target ", (name, "bold"), " to ", (new, "bold"), ".")


@target_app.command("pause")
def pause(name: str) -> None:
    """Stop polling for new revisions until `resume`.  Queued runs are still measured."""
    registry.pause(name)
    line("Target ", (name, "bold"), f" is paused; resume it with `kernelwatch target resume {name}`.")


@target_app.command("resume")
def resume(name: str) -> None:
    """Poll for new revisions again, including those of the meantime."""
    registry.resume(name)
    line("Resumed target ", (name, "bold"), ".")


@target_app.command("remove")
def remove(
    name: str, yes: Annotated[bool, typer.Option("--yes", help="Delete without asking; for scripts.")] = False
) -> None:
    """Delete a target with all its measurements.  Use `pause` to keep them."""
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
def show(form: TableOrJsonFormat = TableOrJson.TABLE) -> None:
    """List the targets."""
    with reading() as session:
        found = targets.all_targets(session)
        if form is TableOrJson.JSON:
            print_json(Page(items=[TargetItem.of(one) for one in found]))
            return
        for one in found:
            line((one.name, "bold"), f"  {one.kind}  {without_credentials(one.location)}", (_problem(one), "red"))


@target_app.command("allow-unsandboxed")
def allow_unsandboxed(name: str, allow: bool = True) -> None:
    """Allow a trusted target to run on workers without a sandbox.  Its pages and comments mention it."""
    with transaction() as session:
        target = targets.target_named(session, name)
        if allow and not target.trusted:
            raise BadInput(f"Target {name} is not trusted; only trusted targets may run without a sandbox.")
        target.allow_unsandboxed = allow
    out.print(f"Target [bold]{name}[/bold] {'may' if allow else 'may not'} run without a sandbox.")


def _problem(target: Target) -> str:
    paused = "  paused" if target.paused_at else ""
    return f"{paused}  {target.poll_error or ''}"
