"""`kernelwatch target`: add, change and list targets."""

from pathlib import Path
from typing import Annotated

import typer

from service.commands import views
from service.commands.arguments import first
from service.commands.connection import client
from service.commands.noun import Noun, Where
from service.commands.output.views import View
from service.domain.states import MovedBy
from service.errors import BadInput

target_app = Noun("Manage targets: watched repositories and packages.")

_FORGE = "For webhooks and comments: owner/name on GitHub, group/project on GitLab, or its address."
Private = Annotated[
    bool | None,
    typer.Option("--private/--public", help="Whether only those with a key or a role for it know of it."),
]


@target_app.verb("add")
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
    forge: Annotated[str | None, typer.Option(help=_FORGE)] = None,
    trusted: Annotated[
        bool, typer.Option("--trusted", help="Its mainline may run without a sandbox, if that is allowed.")
    ] = False,
    private: Private = None,
    backfill: Annotated[int, typer.Option(help="Number of mainline revisions to measure now.", min=0)] = 1,
) -> View:
    """Watch a repository or a package."""
    from service.commands.arguments import read_recipe

    text, adapters = read_recipe(recipe) if recipe else (None, None)
    added = client().targets.add(
        name,
        location,
        package=package,
        branch=branch,
        forge=forge,
        trusted=trusted or None,
        private=private,
        recipe=text,
        adapters=adapters,
        backfill=backfill,
    )
    return views.targets.added(added)


@target_app.verb("edit")
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
    forge: Annotated[str | None, typer.Option(help=f"{_FORGE}  '' for none.")] = None,
    trusted: Annotated[
        bool | None, typer.Option("--trusted/--untrusted", help="Whether it may run without a sandbox.")
    ] = None,
    private: Private = None,
) -> View:
    """Change a target."""
    from service.commands.arguments import read_recipe

    text, adapters = read_recipe(recipe) if recipe else (None, None)
    if (location, text, branch, forge, trusted, private) == (None,) * 6 and not recipe_from_branch:
        raise BadInput("Nothing to change; see `kernelwatch target edit --help`.")
    changed = client().targets.edit(
        name,
        location=location,
        branch=branch,
        forge=forge,
        trusted=trusted,
        private=private,
        recipe=text,
        adapters=adapters,
        recipe_from_branch=recipe_from_branch or None,
    )
    return views.targets.changed(changed, "Changed target ", (name, "bold"), ". The next poll uses the change.")


@target_app.verb("rename")
def rename(name: str, new: str) -> View:
    """Rename a target.  URLs with the old name stop working."""
    if name == new:
        raise BadInput(f"Target {name} has that name already.")
    changed = client().targets.edit(name, name=new)
    return views.targets.changed(changed, "Renamed target ", (name, "bold"), " to ", (new, "bold"), ".")


@target_app.verb("pause")
def pause(name: str) -> View:
    """Stop polling for new revisions until `resume`.  Queued runs are still measured."""
    how = f" is paused; resume it with `kernelwatch target resume {name}`."
    return views.targets.changed(client().targets.pause(name), "Target ", (name, "bold"), how)


@target_app.verb("resume")
def resume(name: str) -> View:
    """Poll for new revisions again, including those of the meantime."""
    return views.targets.changed(client().targets.resume(name), "Resumed target ", (name, "bold"), ".")


@target_app.verb("drifts")
def drifts(
    name: str,
    device: Annotated[str | None, typer.Option(help="Only those on this device.")] = None,
    by: Annotated[MovedBy | None, typer.Option(help="Only changes with this cause.")] = None,
    limit: Annotated[int, typer.Option(help="Maximum number of changes, the newest.", min=1, max=1000)] = 20,
) -> View:
    """List configurations that changed with a commit, another stack, or nothing, the newest first."""
    return views.targets.DRIFTS.page(first(client().targets.drifts(name, device=device, by=by), limit), limit)


@target_app.verb("clean", where=Where.ONLY_HERE)
def clean(name: str) -> None:
    """Delete the heads of closed pull requests from this machine's mirror, and repack it."""
    from service.commands.output.console import line
    from service.domain.text import in_bytes
    from service.ledger.intake import registry

    before, after = registry.clean(name)
    line("Cleaned the mirror of ", (name, "bold"), f": {in_bytes(before)} before, {in_bytes(after)} now.")


@target_app.verb("remove")
def remove(
    name: str, yes: Annotated[bool, typer.Option("--yes", help="Delete without asking; for scripts.")] = False
) -> View:
    """Delete a target with all its measurements.  Use `pause` to keep them."""
    if not yes:
        counts = views.targets.holdings(client().targets.remove(name, dry_run=True))
        if not typer.confirm(f"Delete target {name}: {counts}?", err=True):
            raise BadInput("Nothing was deleted.")
    return views.targets.removed(name, client().targets.remove(name))


@target_app.verb("list")
def list_targets() -> View:
    """List the targets."""
    return views.targets.COLUMNS.page(first(client().targets.list()))


@target_app.verb("show")
def show(name: str) -> View:
    """Show a target with its recipe."""
    return views.targets.one(client().targets.get(name))


@target_app.verb("allow-unsandboxed")
def allow_unsandboxed(name: str, allow: bool = True) -> View:
    """Allow a trusted target to run on workers without a sandbox.  Its pages and comments mention it."""
    changed = client().targets.edit(name, allow_unsandboxed=allow)
    return views.targets.changed(
        changed, "Target ", (name, "bold"), f" {'may' if allow else 'may not'} run without a sandbox."
    )
